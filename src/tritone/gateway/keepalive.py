"""Connections as uvicorn makes them, with time limits that it does not have.

Of HTTP, the head of a request has to come in time. Of a WebSocket: a longer patience, a shorter good-bye, and quiet
refusals.
"""

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

HEAD_S = 10.0  # from a connection's begin, or from the first byte after an answer, to the end of a request's head
LINGER_S = 5.0  # for what a client has not read when its conversation is over


class ClientProtocol(WebSocketsSansIOProtocol):
    """A connection that ends when a ping has no answer, unless the answer may wait behind audio.

    A client that sends audio faster than it is recognised is not read while enough of it waits, its answers neither.
    """

    heard_at = 0.0  # the loop's time

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)

    def keepalive_timeout(self) -> None:
        if self.read_paused or self.heard_at > self.ping_sent_at:
            self.pong_timer = None
            self.schedule_ping()
            return
        super().keepalive_timeout()

    async def send(self, message: "ASGISendEvent") -> None:
        await super().send(message)
        # uvicorn 0.54 completes a handshake by accepting or closing, and writes an error for the third way to end it.
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        await super().run_asgi()
        # One that does not read would keep its connection for as long as it likes.
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LINGER_S, self.transport.abort)


class HeadProtocol(HttpToolsProtocol):
    """A connection of HTTP that ends when the head of a request does not come in time."""

    head_s = HEAD_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
