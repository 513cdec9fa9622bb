"""An HTTP server of a test's own on loopback: a handler that knows its owner, a free port, an end.

class HubServer(LoopbackServer):
    def __init__(self):
        super().__init__(Handler)
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; `owner` is the server."""

    owner: Any
    protocol_version = "HTTP/1.1"
    # A body is written after its head. Nagle's algorithm would hold it back until the client has acknowledged the head,
    # 40 ms later.
    disable_nagle_algorithm = True

    def log_message(self, *arguments: object) -> None:
        pass


class LoopbackServer:
    """See the top of this file."""

    def __init__(self, handler: type[LoopbackHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"owner": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
