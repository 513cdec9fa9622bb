"""The events of a Realtime session as they are on the wire: JSON objects with a type, audio in base64.

text of a client  ->  the event, its samples as bytes          a type and fields  ->  text for the client
"""

import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any

from tritone.errors import InputError
from tritone.gateway.protocols.openai.errors import FieldError
from tritone.gateway.protocols.openai.session import Dialect
from tritone.gateway.sockets import read_json


def new_id(kind: str) -> str:
    """An id that nothing else has, such as item_3f0a...; `kind`: what it begins with."""
    return f"{kind}_{secrets.token_hex(12)}"


def read_event(text: str | None) -> dict[str, Any]:
    """An event of the client; None is a binary message. Raises `FieldError` if it is no event."""
    if text is None:
        raise FieldError("event", "is a binary message; events are JSON in text messages, with audio in base64")
    try:
        return read_json(text)
    except InputError as error:
        raise FieldError("event", f"{error}") from error


def read_audio(value: object) -> bytes:
    """The audio in an event's field; raises `FieldError` if it is no base64."""
    if not isinstance(value, str):
        raise FieldError("audio", "must be base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:  # of its alphabet, or not of ASCII at all
        raise FieldError("audio", f"is no base64: {error}") from error


def write_event(kind: str, fields: dict[str, Any]) -> str:
    """An event for the client, with an id of its own."""
    event = {"type": kind, "event_id": new_id("event"), **fields}
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def item_events(item_id: str, previous: str | None, dialect: Dialect) -> Iterator[tuple[str, dict[str, Any]]]:
    """Types and fields of the events by which a session gets an item of audio. `previous`: the id of the one before."""
    yield "input_audio_buffer.committed", {"item_id": item_id, "previous_item_id": previous}
    content = {"type": "input_audio", "transcript": None}
    item = {"id": item_id, "object": "realtime.item", "type": "message", "role": "user", "content": [content]}
    stages = {"created": "completed"} if dialect == "beta" else {"added": "in_progress", "done": "completed"}
    for stage, status in stages.items():
        yield f"conversation.item.{stage}", {"previous_item_id": previous, "item": item | {"status": status}}
