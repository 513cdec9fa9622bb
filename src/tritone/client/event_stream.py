"""Many answers to one request over HTTP, by Triton's generate extension: texts and numbers as JSON, one event each.

    path, headers, body = generate_request(call, endpoint)
    for reply in events.push(bytes): call.read(reply, endpoint)

Tensors are lists of numbers there, whose types JSON does not say: only replies that know theirs (`types`) can be read.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from tritone.client.endpoint import Endpoint
from tritone.client.failure import unstated
from tritone.client.transport import Call
from tritone.errors import InputError

DATA = b"data:"


def generate_request(call: Call[Any], endpoint: Endpoint) -> tuple[str, dict[str, str], bytes]:
    """The path of a request below /v2/, its headers and its body.

    Raises:
        InputError: its answers, or what is sent, cannot be JSON.
    """
    if not hasattr(call.reply, "types") or any(each.size != 1 for each in call.tensors.values()):
        raise InputError(
            f"{endpoint}: model '{call.model}' answers many times, which Triton's HTTP has only as JSON text "
            "(/generate_stream); use its gRPC port: grpc://HOST:8001"
        )
    values = {name: each.reshape(-1)[0] for name, each in call.tensors.items()}
    fields = {name: each.decode() if isinstance(each, bytes) else each for name, each in values.items()}
    body = json.dumps({**call.parameters, **fields}).encode()
    headers = {"Content-Type": "application/json", **call.headers}
    return f"models/{quote(call.model, safe='')}/generate_stream", headers, body


class JsonReply:
    """The outputs of an answer, as `Reply.read` takes them."""

    def __init__(self, fields: Mapping[str, Any], types: Mapping[str, Any]) -> None:
        self._fields, self._types = fields, types

    def as_numpy(self, name: str) -> npt.NDArray[Any] | None:
        if name not in self._fields:
            return None
        value = self._fields[name]
        if name in self._types:
            return np.array(value, dtype=self._types[name]).reshape(-1)
        return np.array([value.encode() if isinstance(value, str) else value], dtype=object)

    def raw(self, name: str) -> bytes | None:
        return None


class Events:
    """The events of one answer, from bytes in any pieces."""

    def __init__(self, call: Call[Any]) -> None:
        self._types: Mapping[str, Any] = call.reply.types  # type: ignore[attr-defined]  # looked for with the request
        self._pending = bytearray()

    def push(self, data: bytes) -> Iterator[JsonReply]:
        """The answers that are complete with these bytes.

        Raises:
            Refusal: one is an error.
            ValueError: something that came is no such event.
        """
        self._pending += data
        while (end := self._pending.find(b"\n\n")) >= 0:
            event, self._pending = bytes(self._pending[:end]), self._pending[end + 2 :]
            fields = json.loads(event.removeprefix(DATA))
            if not isinstance(fields, dict):
                raise ValueError(f"an event is {str(fields)[:80]}")
            if "error" in fields:
                raise unstated(str(fields["error"]))
            yield JsonReply(fields, self._types)
