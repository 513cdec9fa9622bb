"""Requests over HTTP: one kept connection for each request in flight."""

import json
import time
from urllib.parse import quote

from tritone.client.endpoint import Endpoint
from tritone.client.failure import HTTP_STATUS
from tritone.client.http_message import JSON_LENGTH
from tritone.client.http_transport import message_in
from tritone.loadtest.options import TENSORS
from tritone.loadtest.senders.sender import Sender, too_late
from tritone.loadtest.senders.wire import Body, Reply, error_kind, read_reply, unreadable
from tritone.net.http_client import HttpConnections
from tritone.net.routing import STREAM_HEADER

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
        self._path = f"{endpoint.path}/v2/models/"
        # Triton would compress its few bytes, which costs the server more than it saves.
        plain = {"Content-Type": "application/octet-stream", "Accept-Encoding": "identity"}
        self._headers = {**plain, **endpoint.headers}
        tls = endpoint.files.context() if endpoint.tls else None
        self._connections = HttpConnections(endpoint.host, endpoint.port, tls)
        super().__init__()

    async def _connect(self) -> None:
        pass  # with the first request

    async def _ask(self, body: Body, timeout_s: float) -> Reply:
        headers = {**self._headers, JSON_LENGTH: str(len(body.json))}
        if body.route:
            headers[STREAM_HEADER] = body.route
        path = f"{self._path}{quote(body.model, safe='')}/infer"
        try:
            answer = await self._connections.request(
                "POST", path, headers, body.json, body.content, timeout_s=timeout_s
            )
            received = time.perf_counter()
        except TimeoutError:
            return too_late(timeout_s)
        except OSError as error:
            message = str(error) or type(error).__name__
            return Reply(error=error_kind("no connection", message), received=time.perf_counter())
        if answer.status != 200:
            return Reply(error=_failure(answer.status, answer.body), received=received)
        if body.output == TENSORS:
            return Reply(answers=1, received=received)
        try:
            tensor, shape = _tensor(body.output, answer.body, int(answer.headers[JSON_LENGTH.lower()]))
        except (ValueError, KeyError, TypeError) as error:
            return Reply(error=unreadable(body, repr(error)), received=received)
        return read_reply(body, tensor, shape, received)

    async def _disconnect(self) -> None:
        self._connections.close()


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
    message = message_in(content)
    name = HTTP_STATUS.get(str(status), str(status))
    return error_kind(KINDS.get(name, f"server error ({name})"), message)
