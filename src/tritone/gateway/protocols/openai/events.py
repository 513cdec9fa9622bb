"""The events of a Realtime session that OpenAI's clients send, and those by which a session gets an item."""

from collections.abc import Iterator
from typing import Any

from tritone.errors import InputError
from tritone.gateway.protocols.openai.session import Dialect
from tritone.gateway.refusal import FieldError
from tritone.gateway.sockets import read_json


def read_event(text: str | None) -> dict[str, Any]:
    """An event of the client; None is a binary message. Raises `FieldError` if it is no event."""
    if text is None:
        raise FieldError("event", "is a binary message; events are JSON in text messages, with audio in base64")
    try:
        return read_json(text)
    except InputError as error:
        raise FieldError("event", f"{error}") from error


def item_events(item_id: str, previous: str | None, dialect: Dialect) -> Iterator[tuple[str, dict[str, Any]]]:
    """Types and fields of the events by which a session gets an item of audio. `previous`: the id of the one before."""
    yield "input_audio_buffer.committed", {"item_id": item_id, "previous_item_id": previous}
    content = {"type": "input_audio", "transcript": None}
    item = {"id": item_id, "object": "realtime.item", "type": "message", "role": "user", "content": [content]}
    stages = {"created": "completed"} if dialect == "beta" else {"added": "in_progress", "done": "completed"}
    for stage, status in stages.items():
        yield f"conversation.item.{stage}", {"previous_item_id": previous, "item": item | {"status": status}}
