"""WebSockets as uvicorn makes them, with a longer patience, a shorter good-bye, and quiet refusals.

HttpServer(app, ws=ClientProtocol, ...)

What of uvicorn is used for it beyond its documents is in tests/net/test_uvicorn.py.
"""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

LINGER_S = 5.0  # for what a client has not read when its conversation is over


class ClientProtocol(WebSocketsSansIOProtocol):
    """A connection that ends when a ping has no answer, unless the answer may wait behind audio.

    A client that sends audio faster than it is recognised is not read while enough of it waits, its answers neither.
    """

    received_at = 0.0  # the loop's time

    def data_received(self, data: bytes) -> None:
        self.received_at = self.loop.time()
        super().data_received(data)

    def keepalive_timeout(self) -> None:
        if self.read_paused or self.received_at > self.ping_sent_at:
            self.pong_timer = None
            self.schedule_ping()
            return
        super().keepalive_timeout()

    async def send(self, message: Any) -> None:
        await super().send(message)
        # uvicorn 0.54 completes a handshake by accepting or closing, and writes an error for the third way to end it.
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        await super().run_asgi()
        # One that does not read would keep its connection for as long as it likes.
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LINGER_S, self.transport.abort)
