"""Many answers to one request by HTTP, Triton's generate extension: values by name go in, events of JSON come out.

fields  ->  Inference  ->  (gate)  ->  Triton  ->  Events, sent as they come
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tritone.net.http_server import Receive, Scope, Send, when_lost
from tritone.net.refusal import BAD_REQUEST, RefusedError
from tritone.proxy.checks import outward
from tritone.proxy.inference import Inference
from tritone.proxy.json_body import check_data, write_json

EVENT_END = b"\n\n"
ERROR = b'data: {"error"'
LOST = "the server did not answer to the end; try again later"
OF_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")


def generation(model: str, version: str, fields: Any, inputs: Mapping[str, str]) -> Inference:
    """The request that a body means: texts, numbers, true and false by the names of inputs and parameters.

    Args:
        inputs: Triton's types of the model's inputs, as of `ModelFacts`.

    Raises:
        RefusedError: it is something else.
    """
    if not isinstance(fields, Mapping):
        raise RefusedError(BAD_REQUEST, "the body must be a JSON object of texts and numbers by their names")
    if unfit := [name for name, value in fields.items() if not isinstance(value, str | int | float)]:
        raise RefusedError(BAD_REQUEST, f"{unfit[0][:80]!r} must be a text, a number, true or false here; use /infer")
    for name in inputs.keys() & fields.keys():
        check_data(
            name, "BYTES" if inputs[name] == "TYPE_STRING" else inputs[name].removeprefix("TYPE_"), [fields[name]]
        )
    if any(name in fields for name in OF_SEQUENCES):
        raise RefusedError(BAD_REQUEST, "requests of sequences have one answer each; use /infer")
    return Inference(model=model, version=version, parameters=fields, encoded=lambda stream: write_json(fields))


class Events:
    """An answer that is sent as it comes.

    Args:
        first: its first bytes.
        parts: its next ones; empty bytes at its end.
        asking: the request to Triton, which ends with the client.
    """

    status = 200

    def __init__(self, first: bytes, parts: "asyncio.Queue[bytes]", asking: "asyncio.Future[Any]") -> None:
        self._first, self._parts, self._asking = first, parts, asking

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        try:
            with when_lost(scope, self._asking.cancel):
                await send({"type": "http.response.start", "status": self.status, "headers": headers})
                async for event in self._events():
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._asking.cancel()

    async def _events(self) -> AsyncIterator[bytes]:
        waiting, part = b"", self._first
        while part:
            *events, waiting = (waiting + part).split(EVENT_END)
            for event in events:
                yield _outward(event) + EVENT_END
            part = await self._parts.get()
        if self._asking.cancelled() or self._asking.exception() is not None:
            yield b"data: " + json.dumps({"error": LOST}).encode() + EVENT_END


def _outward(event: bytes) -> bytes:
    """An event without what no client may read of an error."""
    if not event.startswith(ERROR):
        return event
    try:
        message = str(json.loads(event.removeprefix(b"data:"))["error"])
    except (ValueError, KeyError, TypeError):
        message = "the server failed"
    return b"data: " + json.dumps({"error": outward(message)}).encode()
