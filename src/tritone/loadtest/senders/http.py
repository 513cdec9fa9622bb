"""Requests over HTTP: one kept connection for each request in flight, answers read by aiohttp's parser in C."""

import json
import time
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp.payload import Payload

from tritone.client.endpoint import Endpoint
from tritone.client.failure import HTTP_STATUS
from tritone.client.http_transport import open_connector
from tritone.loadtest.senders.sender import Sender, too_late
from tritone.loadtest.senders.wire import Body, Reply, error_kind, read_reply, unreadable
from tritone.routing import STREAM_HEADER

SHORT = 65536  # bytes
JSON_LENGTH = "Inference-Header-Content-Length"
KINDS = {
    "INVALID_ARGUMENT": "refused",
    "NOT_FOUND": "refused",
    "RESOURCE_EXHAUSTED": "busy",
    "UNAVAILABLE": "busy",
    "CANCELLED": "cancelled",
}


class HttpSender(Sender):
    """A sender over HTTP connections, one for each request in flight, which it keeps open."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._base = f"http{'s' if endpoint.tls else ''}://{endpoint.address}/v2/models/"
        super().__init__()

    async def _connect(self) -> None:
        connector = open_connector(self._endpoint)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._endpoint.headers)

    async def _ask(self, body: Body, timeout_s: float) -> Reply:
        header = body.json
        # Triton would compress its few bytes, which costs the server more than it saves.
        headers = {JSON_LENGTH: str(len(header)), "Accept-Encoding": "identity"}
        if body.route:
            headers[STREAM_HEADER] = body.route
        try:
            async with self._session.post(
                f"{self._base}{quote(body.model, safe='')}/infer",
                data=_Parts(header, body.content),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                content = await response.read()
                received = time.perf_counter()
        except TimeoutError:
            return too_late(timeout_s)
        except (aiohttp.ClientError, OSError) as error:
            message = getattr(error, "message", "") or str(error) or type(error).__name__
            return Reply(error=error_kind("no connection", str(message)), received=time.perf_counter())
        if response.status != 200:
            return Reply(error=_failure(response.status, content), received=received)
        try:
            tensor, shape = _tensor(body.output, content, int(response.headers[JSON_LENGTH]))
        except (ValueError, KeyError, TypeError) as error:
            return Reply(error=unreadable(body, repr(error)), received=received)
        return read_reply(body, tensor, shape, received)

    async def _disconnect(self) -> None:
        await self._session.close()


class _Parts(Payload):
    """A message of two parts. Joining long ones would cost more than writing twice."""

    def __init__(self, header: bytes, content: bytes) -> None:
        super().__init__(header, content_type="application/octet-stream")
        self._content = content
        self._size = len(header) + len(content)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise NotImplementedError("a request's tensors are no text")

    async def write(self, writer: Any) -> None:
        if len(self._content) < SHORT:
            await writer.write(self._value + self._content)
            return
        await writer.write(self._value)
        await writer.write(self._content)


def _tensor(name: str, content: bytes, json_length: int) -> tuple[bytes, list[int]]:
    """The bytes of an answer's tensor, and its shape."""
    place = json_length
    for output in json.loads(content[:json_length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        if output["name"] == name:
            return content[place : place + size], output["shape"]
        place += size
    raise ValueError(f"{name} is not in the answer")


def _failure(status: int, content: bytes) -> str:
    try:
        message = str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        message = content.decode("utf-8", "replace")
    name = HTTP_STATUS.get(str(status), str(status))
    return error_kind(KINDS.get(name, f"server error ({name})"), message)
