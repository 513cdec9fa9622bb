"""An HTTP server in an event loop: an ASGI application behind connections of uvicorn, with limits that those lack.

    server = HttpServer(app, idle_s=60.0)
    await server.start(host="127.0.0.1", port=8000)
    await server.stop(linger_s=1.0)

uvicorn bounds neither the time nor the size of a request's head, nor how many wait behind the one at hand, and tells an
application that its client has gone only where that asks. What of uvicorn is used for it beyond its documents is in
tests/net/test_uvicorn.py, and pyproject.toml bounds the version.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tritone.net.address import ANY_IPV6, listening
from tritone.net.connections import Connections, as_peer

HEAD_S = 10.0  # from a connection's begin, or the first byte after an answer, to the end of a request's head
MAX_HEAD_BYTES = 16 << 10  # as Node.js has it
MAX_HEADERS = 100  # as Apache has it
READ_BYTES = 256 << 10  # of a body that nobody has taken yet; uvicorn stops at 64 KB, after which recordings wait
MAX_WAITING = 16  # requests of a connection behind the one at hand, as many as those send that read the answers
WAITING_BYTES = 64 << 10  # of their heads, and of their bodies, after which nothing is read
LINGER_S = 1.0  # how long a connection is read after it was refused, so that its client reads the refusal
LINGER_BYTES = 4 << 20  # and how much of it
DATE_S = 1.0
LOOK_S = 0.02

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer, which is an ASGI application, too."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> "Response":
        return cls(status, json.dumps(value).encode(), {**(headers or {}), "content-type": "application/json"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        all_headers = {**self.headers, "content-length": str(len(self.body))}
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in all_headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class HttpServer:
    """A server of one application.

    Args:
        idle_s: how long a connection may be without a request.
        worded: the JSON that says what is wrong with what is no HTTP request.
        connections: notified of each connection that is accepted.
        others: further options of `uvicorn.Config`, such as those of WebSockets.
    """

    def __init__(
        self,
        app: App,
        *,
        idle_s: float,
        worded: Callable[[str], Any] = lambda message: {"error": message},
        connections: Connections | None = None,
        **others: Any,
    ) -> None:
        self.worded, self.connections = worded, connections
        settings: dict[str, Any] = {
            "http": Connection,
            "ws": "none",
            "interface": "asgi3",
            "lifespan": "off",
            "log_config": None,
            "log_level": "error",  # what strangers send is in metrics, and fills no log
            "access_log": False,
            "proxy_headers": False,
            "timeout_keep_alive": idle_s,
        }
        self._config = uvicorn.Config(app, **settings | others)
        self._config.load()
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._dating: asyncio.TimerHandle | None = None

    async def start(self, *, tls: ssl.SSLContext | None = None, **where: Any) -> None:
        """Listen; `where`: arguments of the loop's `create_server`, but for `::`, which is for IPv4, too.

        Raises:
            OSError: as `create_server`.
        """
        loop = asyncio.get_running_loop()
        self._date(loop)
        if where.get("host") == ANY_IPV6:
            where["sock"] = listening(where.pop("host"), where.pop("port"))
        self._listener = await loop.create_server(
            lambda: Connection(self, self._config, self._state),
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HEAD_S,
            **where,
        )

    async def stop(self, linger_s: float) -> None:
        """Take nothing new, and end when all requests are answered, or after `linger_s`; a second call does nothing."""
        if self._dating is not None:
            self._dating.cancel()
        if self._listener is None:
            return
        self._listener.close()
        for each in list(self._state.connections):
            each.shutdown()
        await asyncio.sleep(0)  # connections are closed in the next round of the loop
        loop = asyncio.get_running_loop()
        ends = loop.time() + linger_s
        while (self._state.connections or self._state.tasks) and loop.time() < ends:
            await asyncio.sleep(LOOK_S)
        for each in list(self._state.connections):
            each.transport.abort()  # `close` waits for clients to read
        for act in (lambda task: None, asyncio.Task.cancel):  # that nobody waits for an answer, they are notified
            for task in self._state.tasks:
                act(task)
            if self._state.tasks:
                await asyncio.wait(self._state.tasks, timeout=linger_s)

    def _date(self, loop: asyncio.AbstractEventLoop) -> None:
        # and not which versions of what answers
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode()), (b"server", b"tritone")]
        self._dating = loop.call_later(DATE_S, self._date, loop)


class _Flow(FlowControl):
    """What is read and written of a connection. uvicorn reads on at the end of each answer; here, unless `is_full`."""

    def __init__(self, transport: asyncio.Transport, is_full: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_full = is_full

    def resume_reading(self) -> None:
        if not self._is_full():
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """A connection with bounds on the time and the size of heads and on the requests that wait for their turn.

    It knows at once when its client has gone.
    """

    def __init__(self, server: HttpServer, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, app_state={"connection": self})
        self.is_lost = False
        self.when_lost: set[Callable[[], Any]] = set()
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes that are neither of a body nor of a head that is whole
        self._is_refused = False
        self._at_hand: RequestResponseCycle | None = None  # what is answered; `cycle` is what came last

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self._is_full)
        address = transport.get_extra_info("peername")
        if self._server.connections is not None and address:
            self._server.connections.opened(as_peer(address), transport.get_extra_info("socket"))
        self._abort_after(HEAD_S)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        if self._is_refused:
            if self._unread > LINGER_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade() and self._is_answered():
                self.handle_websocket_upgrade()
                return  # its bytes and its time are another protocol's now
            if self._should_upgrade():
                self._refuse("a WebSocket begins when all requests before it are answered")
            else:
                self._go_on(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse("this is no HTTP request")
        if self._unread > MAX_HEAD_BYTES:
            self._refuse_head()
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._abort_after(HEAD_S)  # a head has started

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and not self._should_upgrade():
            return  # see `_go_on`
        self._stop_timer()
        self._unread = 0
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._refuse_head()
            raise ValueError  # ends the parser
        waiting = (len(each) for cycle, _ in self.pipeline for header in cycle.scope["headers"] for each in header)
        if len(self.pipeline) >= MAX_WAITING or sum(waiting) > WAITING_BYTES:
            most = f"{MAX_WAITING} requests, or {WAITING_BYTES >> 10} KB of their heads,"
            self._refuse(f"more than {most} wait on this connection; read answers before you send more")
            raise ValueError
        super().on_headers_complete()
        self._read_on()  # uvicorn stops at a request that waits, in the middle of its body

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._at_hand = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if self.cycle.response_complete or (self.parser.should_upgrade() and self._should_upgrade()):
            return
        self.cycle.body += body
        if len(self.cycle.body) > READ_BYTES or (self.pipeline and self._is_full()):
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and not self._should_upgrade():
            return
        self._unread = 0
        super().on_message_complete()
        self._read_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.flow.resume_reading()  # which one request less may wait for
        if self.cycle.response_complete and self.cycle.more_body:  # refused: its rest may take as long as a head
            self._abort_after(HEAD_S)

    @property
    def has_part(self) -> bool:
        """Whether a part of the body is there, so that nobody waits for it."""
        return self._at_hand is not None and self._at_hand.message_event.is_set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._lose()
        super().connection_lost(exc)

    def _read_on(self) -> None:
        """Read while there is room: who is not read is not seen to go."""
        if self._at_hand is not None and len(self._at_hand.body) <= READ_BYTES:
            self.flow.resume_reading()

    def _is_full(self) -> bool:
        """Whether enough is there of requests that wait for their turn."""
        return sum(len(cycle.body) for cycle, _ in self.pipeline) > WAITING_BYTES

    def _is_answered(self) -> bool:
        return self._at_hand is None or self._at_hand.response_complete

    def _go_on(self, rest: bytes) -> None:
        """Read a request that proposes another protocol, such as HTTP/2 by Java's client, as if it did not.

        The parser ends at its head, and what follows is its body.
        """
        headers = [each for each in self.headers if each[0] != b"upgrade"]
        if len(headers) == len(self.headers):
            self._refuse("CONNECT is for proxies")
            return
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        version = self.parser.get_http_version().encode()
        self.data_received(
            self.parser.get_method() + b" " + self.url + b" HTTP/" + version + b"\r\n" + lines + b"\r\n" + rest
        )

    def _refuse_head(self) -> None:
        self._refuse(f"a head may have {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes, and this one has more")

    def _refuse(self, message: str) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused, self._unread = True, 0
        has_started = not self._is_answered() and self._at_hand.response_started  # type: ignore[union-attr]
        self._lose()
        self.flow.resume_reading()  # what is not read resets the connection before its client has read the refusal
        if has_started:  # another word would be taken for a part of that answer
            self.transport.abort()
            return
        body = json.dumps(self._server.worded(message)).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._abort_after(LINGER_S)

    def _lose(self) -> None:
        """Have the application know that nobody waits for its answer."""
        self.is_lost = True
        self.pipeline.clear()
        if self._at_hand is not None and not self._at_hand.response_complete:
            self._at_hand.disconnected = True
            self._at_hand.message_event.set()
        for each in list(self.when_lost):
            each()

    def _abort_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@contextmanager
def when_lost(scope: Scope, act: Callable[[], Any]) -> Iterator[None]:
    """Have `act` called as soon as the client of a request goes, while the block runs."""
    connection: Connection = scope["state"]["connection"]
    connection.when_lost.add(act)
    try:
        if connection.is_lost:
            act()
        yield
    finally:
        connection.when_lost.discard(act)


def is_lost(scope: Scope) -> bool:
    """Whether the client of a request has gone."""
    connection: Connection = scope["state"]["connection"]
    return connection.is_lost
