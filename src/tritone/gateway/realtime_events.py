"""Events of Realtime sessions as they are on the wire, OpenAI's and NVIDIA's: JSON with a type, audio in base64."""

import base64
import json
import secrets
from typing import Any

from tritone.gateway.refusal import FieldError


def new_id(kind: str) -> str:
    """An id that nothing else has, such as item_3f0a...; `kind`: what it begins with."""
    return f"{kind}_{secrets.token_hex(12)}"


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
