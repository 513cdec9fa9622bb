"""HTTP to Triton: few lines that do only what Triton's answers need, for every request pays for them.

Triton is trusted, answers one request after the other on a connection, and gives the length of each answer.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tritone.proxy.refusal import DOWN, RefusedError

CONNECT_TIMEOUT_S = 5.0
MAX_IDLE = 64  # connections


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers in lower case, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """Triton's message, if the body is one."""
        try:
            return str(json.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError):
            return ""


class HttpUpstream:
    """Connections to Triton's HTTP service, which are used again."""

    def __init__(self, address: str, retry_after_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._retry_after_s = retry_after_s
        self._idle: list[_Connection] = []

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request. If the caller is cancelled, the connection is closed, which tells Triton.

        Raises:
            RefusedError: Triton does not answer.
        """
        lines = [f"{method} {path} HTTP/1.1", "Host: triton", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        connection = None
        try:
            connection = await self._connection()
            answer = await connection.exchange(head, body)
        except (OSError, asyncio.TimeoutError) as error:
            raise RefusedError(
                DOWN, "the server does not answer now; it may be restarting. Try again.", self._retry_after_s
            ) from error
        finally:
            if connection is not None:
                self._give_back(connection)
        return answer

    def close(self) -> None:
        for each in self._idle:
            each.abort()
        self._idle.clear()

    async def _connection(self) -> "_Connection":
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        loop = asyncio.get_running_loop()
        making = loop.create_connection(_Connection, self._host, self._port)
        return (await asyncio.wait_for(making, CONNECT_TIMEOUT_S))[1]

    def _give_back(self, connection: "_Connection") -> None:
        if connection.closed or connection.in_use or len(self._idle) >= MAX_IDLE:
            connection.abort()
        else:
            self._idle.append(connection)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[Answer] | None = None
        self._head: tuple[int, dict[str, str], int, int] | None = None  # status, headers, start and end of the body

    @property
    def in_use(self) -> bool:
        """Whether an answer is still to come."""
        return self._waiter is not None

    async def exchange(self, head: bytes, body: bytes) -> Answer:
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(head)
        if body:
            self._transport.write(body)
        answer = await self._waiter
        self._waiter = None
        return answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error or ConnectionResetError("closed before the answer came"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = self._read_head(bytes(self._buffer[:end]).decode("latin-1"), end + 4)
        status, headers, start, end = self._head
        if len(self._buffer) < end:
            return
        answer = Answer(status, headers, bytes(self._buffer[start:end]))
        self._buffer.clear()
        self._head = None
        if headers.get("connection", "").lower() == "close":
            self.abort()
            self.closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)

    def _read_head(self, text: str, start: int) -> tuple[int, dict[str, str], int, int]:
        first, *lines = text.split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        with suppress(ValueError, IndexError, KeyError):
            if "transfer-encoding" in headers:
                raise ValueError("no API that is passed on answers so")
            return int(first.split(" ", 2)[1]), headers, start, start + int(headers["content-length"])
        return 502, {"connection": "close"}, start, start
