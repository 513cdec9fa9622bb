"""HTTP/1.1 to one server from an event loop, with little work for each request: connections that are used again.

    await connections.request("POST", "/v2/models/demo/infer", headers, body)   ->  HttpAnswer

The proxy asks Triton so, clients and the load generator any server. No redirect is followed, no cookie is kept, and
nothing is unpacked. Answers are parsed by httptools, which is the parser of Node.js.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httptools

from tritone.net.address import joined

SHORT_BYTES = 64 << 10  # a request that is not longer is sent in one piece; joining longer ones takes more time
MAX_HEAD_BYTES = 64 << 10  # of an answer, or of trailers; the parser joins what comes of one header again and again
MAX_HEADERS = 256
MAX_IDLE_S = 10.0  # of a connection: servers close what is idle, and a request that meets this is lost


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, headers by names in lower case, body."""

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


class HttpConnections:
    """Connections to a server.

    Args:
        host, port: of the server.
        tls: None for plain text.
        connect_s: how long a new connection may take, in seconds; None sets no limit beside that of a request.
        max_bytes: of an answer, headers included; None sets no limit.
        max_idle_s: after which a connection is not used again, in seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        connect_s: float | None = None,
        max_bytes: int | None = None,
        max_idle_s: float = MAX_IDLE_S,
    ) -> None:
        self._host, self._port, self._tls, self._connect_s = host, port, tls, connect_s
        self._max_bytes, self._max_idle_s = max_bytes, max_idle_s
        name = joined(host, port)
        self._name = name.removesuffix(f":{port}") if port == (80 if tls is None else 443) else name
        self._idle: deque[_Connection] = deque()  # the longest idle first

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *body: bytes,
        timeout_s: float | None = None,
        on_part: Callable[[bytes], None] | None = None,
    ) -> HttpAnswer:
        """Send a request and return the answer, whatever its status. Cancelling it closes the connection.

        Args:
            body: in any number of parts.
            on_part: takes the body of an answer with status 200 as it comes, in place of the answer: all that was read
                at once in one call, in however many chunks it was sent.

        Raises:
            OSError: there is no connection, it broke, or what came is no HTTP or too long.
            asyncio.TimeoutError: it took longer than `timeout_s`.
        """
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._name}", f"Content-Length: {sum(map(len, body))}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        loop = asyncio.get_running_loop()
        ends = None if timeout_s is None else loop.time() + timeout_s
        connection = self._kept(loop.time())
        if connection is None:
            limit_s = timeout_s if self._connect_s is None else self._connect_s
            try:
                async with asyncio.timeout(limit_s):  # `wait_for` of Python 3.11 loses what cancels it as it ends
                    _, connection = await loop.create_connection(
                        lambda: _Connection(loop, self._max_bytes), self._host, self._port, ssl=self._tls
                    )
            except ConnectionResetError as error:  # in TLS's handshake, about which asyncio says nothing
                raise ConnectionResetError(str(error) or "Handshake read failed") from error
        try:
            head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
            return await connection.exchange([head, *body], ends, on_part)
        finally:
            if connection.is_over or connection.in_use:
                connection.abort()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that are idle; requests under way go on."""
        for each in self._idle:
            each.abort()
        self._idle.clear()

    def _kept(self, now: float) -> "_Connection | None":
        """The connection that was used last, if there is one that may be used again; closes the others."""
        while self._idle and (now - self._idle[0].idle_since > self._max_idle_s or self._idle[0].is_over):
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_over:
                return connection
        return None


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time. The methods `on_...` are called by the parser."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int | None = None) -> None:
        self.closed = False
        self._max_bytes, self._num_bytes = max_bytes, 0  # of the answer under way
        self._unread = 0  # bytes that are neither of a body nor of a head that is whole
        self._num_headers = 0
        self.idle_since = 0.0
        self._broken: Exception | None = None  # by what came before a request was sent
        self._loop = loop
        self._transport: Any = None
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._on_part: Callable[[bytes], None] | None = None
        self._is_open_ended = False  # the answer ends with the connection

    @property
    def is_over(self) -> bool:
        """Whether it takes no other request; its transport knows of the server's end a round of the loop before us."""
        return self.closed or self._transport.is_closing()

    @property
    def in_use(self) -> bool:
        """Whether an answer is still to come."""
        return self._waiter is not None

    async def exchange(
        self, parts: Sequence[bytes], ends: float | None, on_part: Callable[[bytes], None] | None = None
    ) -> HttpAnswer:
        """Send a request and return the answer; `ends`: by the loop's time, when to give up."""
        self._on_part = on_part
        if self._broken is not None:
            self.closed = True
            raise self._broken
        self._waiter = self._loop.create_future()
        self._num_bytes = self._unread = 0
        # `wait_for` would take a task more.
        timer = None if ends is None else self._loop.call_at(ends, self._fail, TimeoutError())
        try:
            for part in parts if sum(map(len, parts)) > SHORT_BYTES else (b"".join(parts),):
                self._transport.write(part)
            answer = await self._waiter
        finally:
            if timer is not None:
                timer.cancel()
        self._waiter = None
        self.idle_since = self._loop.time()
        return answer

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if error is None and self._is_open_ended:
            self.on_message_complete()
        self._fail(error or ConnectionResetError("Server disconnected before it answered"))

    def data_received(self, data: bytes) -> None:
        self._num_bytes += len(data)
        self._unread += len(data)
        if self._max_bytes is not None and self._num_bytes > self._max_bytes:
            self._fail(ConnectionError(f"The answer has more than {self._max_bytes} bytes"))
            self.abort()
            return
        try:
            self._parser.feed_data(data)
            self._hand_on()
            if self._unread > MAX_HEAD_BYTES:
                raise httptools.HttpParserError("its heads have no end")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            what = "it switched protocols" if isinstance(error, httptools.HttpParserUpgrade) else error
            self._fail(ConnectionError(f"Bad status line or damaged answer: {what}"))
            self.abort()

    def on_message_begin(self) -> None:
        self._headers, self._parts, self._is_open_ended = {}, [], False
        self._num_headers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        if self._num_headers > MAX_HEADERS:
            raise ValueError  # ends the parser
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() >= 200:  # before it may come others, such as "100 Continue"
            self._unread = 0
        self._is_open_ended = not self._headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        self._unread = 0
        self._parts.append(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an answer follows
            return
        self._unread = 0
        self._hand_on()
        if not self._parser.should_keep_alive():
            self.closed = True
        if self._waiter is None:  # an answer that nobody asked for
            self.closed = True
        elif not self._waiter.done():
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._waiter.set_result(HttpAnswer(status, self._headers, body))

    def _hand_on(self) -> None:
        if self._on_part is not None and self._parts and self._parser.get_status_code() == 200:
            part, self._parts = b"".join(self._parts), []
            self._on_part(part)

    def _fail(self, error: Exception) -> None:
        if self._waiter is None:
            self._broken = self._broken or error
        elif not self._waiter.done():
            self._waiter.set_exception(error)
