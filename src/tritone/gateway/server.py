"""Running a gateway: uvicorn on its ports, until SIGTERM or SIGINT; live streams may end before it does.

GatewayServer(options).run()                      blocks
with GatewayServer(options).background() as it:   in a thread; it.port, it.gateway
"""

import asyncio
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tritone.errors import MissingDependencyError, ServerSetupError
from tritone.gateway.options import GatewayOptions
from tritone.gateway.refusal import CODES, ErrorAnswer
from tritone.installing import pip_install
from tritone.net.address import joined, listening

try:
    import uvloop
    from starlette.types import ASGIApp, Receive, Scope, Send

    from tritone.gateway.app import build_app, operators_app
    from tritone.gateway.gateway import Gateway
    from tritone.gateway.protocol import Protocol
    from tritone.gateway.protocols import all_protocols
    from tritone.net.http_server import HttpServer
    from tritone.net.websockets import ClientProtocol
except ImportError as error:
    raise MissingDependencyError(
        f"the gateway needs packages that are not installed ({error.name}): {pip_install('gateway')}"
    ) from error

LOG = logging.getLogger("tritone.gateway")
LINGER_S = 1.0  # for connections that are still open when all streams have ended
LOOK_S = 0.05
IDLE_S = 5.0  # of a connection between two requests
BACKLOG = 2048
# Python's full collections look at every object there is, and all streams wait meanwhile: with 300 of them chunks' p99
# was 120 to 185 ms with the thresholds of Python and 25 ms with these (docs/applications/gateway.md).
COLLECTED_AFTER = (50_000, 50, 1000)
# A connection leaves cycles of a hundred objects in uvicorn's and websockets' protocols. Those that lived longer than a
# few collections wait for a full one, which by these thresholds would never come.
COLLECTED_EVERY_S = 60.0


class GatewayServer:
    """One gateway with its ports. `ports`: where it listens, by the names of `GatewayOptions.ports`, and "http".

    Args:
        protocols: those to open, by name; None takes all there are.
        on_started: called when it listens.
    """

    def __init__(
        self,
        options: GatewayOptions,
        *,
        protocols: Mapping[str, Protocol] | None = None,
        on_started: Callable[["GatewayServer"], None] = lambda server: None,
    ) -> None:
        self.options = options
        self.ports: dict[str, int] = {}
        self.gateway = Gateway(options)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._protocols = all_protocols() if protocols is None else protocols
        self._on_started = on_started
        self._ending: asyncio.Event | None = None
        self._at_once = False

    @property
    def port(self) -> int:
        """Where HTTP and WebSockets are."""
        return self.ports["http"]

    def run(self) -> None:
        """Serve until a signal ends it, or `end` is called.

        Raises:
            ServerSetupError: a port cannot be listened on.
        """
        loop = self.loop = uvloop.new_event_loop()
        if threading.current_thread() is threading.main_thread():  # the process is the gateway's
            gc.freeze()  # what was imported stays
            gc.set_threshold(*COLLECTED_AFTER)
            collect_again(loop, COLLECTED_EVERY_S)
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._serve())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    @contextmanager
    def background(self) -> Iterator["GatewayServer"]:
        """Serve in a thread while the block runs; ends at once."""
        listening = threading.Event()
        failed: list[BaseException] = []
        earlier = self._on_started

        def started(server: GatewayServer) -> None:
            earlier(server)
            listening.set()

        def work() -> None:
            try:
                self.run()
            except BaseException as error:
                failed.append(error)
            finally:
                listening.set()

        self._on_started = started
        thread = threading.Thread(target=work, name="tritone-gateway")
        thread.start()
        try:
            listening.wait()
            if failed:
                raise failed[0]
            yield self
        finally:
            self.end(at_once=True)
            thread.join()

    def end(self, *, at_once: bool = False) -> None:
        """Take nothing new, and end when live streams have ended, or after `drain_s`. From any thread."""
        loop = self.loop
        if loop is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._end, at_once)

    def _end(self, at_once: bool) -> None:
        self._at_once = self._at_once or at_once or self.gateway.state == "draining"
        self.gateway.state = "draining"
        if self._ending is not None:
            self._ending.set()

    async def _serve(self) -> None:
        ending = self._ending = asyncio.Event()
        others = []
        servers: list[HttpServer] = []
        sockets: dict[str, socket.socket] = {}
        loop = asyncio.get_running_loop()
        try:
            host, ports = self.options.host, self._http_ports()
            for name, port in ports.items():
                sockets[name] = listen(host, port, _option(name))
            for name in set(self.options.ports) - set(
                ports
            ):  # that a protocol takes itself, with errors for programmers
                listen(host, self.options.ports[name], _option(name)).close()
        except BaseException:
            for listener in sockets.values():
                listener.close()
            await self.gateway.close()
            raise
        app = build_app(self.gateway, self._protocols.values())
        apps = {"http": app, "metrics": operators_app(self.gateway)}
        certificates = self.gateway.certificates
        watching = asyncio.ensure_future(self.gateway.watch())
        try:
            for name, listener in sockets.items():
                serves = apps.get(name) or _at(app, self._protocols[name].paths[0])
                servers.append(self._server(serves))
                tls = None if certificates is None else certificates.context
                await servers[-1].start(tls=tls, sock=listener, backlog=BACKLOG)
                self.ports[name] = listener.getsockname()[1]
            for name in self.options.ports:
                if self._protocols[name].serve:
                    address = self.options.address(self.options.ports[name])
                    others.append(await self._protocols[name].server(self.gateway, address))
                    self.ports[name] = others[-1].port
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self._end, False)
            self._on_started(self)
            await ending.wait()
            await self._drained()
        finally:
            watching.cancel()
            for other in others:
                await other.stop(LINGER_S)
            await asyncio.gather(*(each.stop(LINGER_S) for each in servers))
            for listener in sockets.values():
                listener.close()
            await self.gateway.close()

    async def _drained(self) -> None:
        """Return when no stream is live, at the latest after `drain_s`."""
        ends = asyncio.get_running_loop().time() + self.options.drain_s
        while self.gateway.speech.open_streams and not self._at_once:
            if asyncio.get_running_loop().time() > ends:
                LOG.warning(
                    "%d live streams are ended, %g s after the signal",
                    self.gateway.speech.open_streams,
                    self.options.drain_s,
                )
                return
            await asyncio.sleep(LOOK_S)

    def _http_ports(self) -> dict[str, int]:
        """Those that speak HTTP; a protocol that has routes and no server of its own is served there alone."""
        unknown = [name for name in (*self.options.ports, *self.options.protocols) if name not in self._protocols]
        if unknown:
            raise ServerSetupError(f"there is no protocol {', '.join(unknown)}; there are {', '.join(self._protocols)}")
        own = {name: port for name, port in self.options.ports.items() if not self._protocols[name].serve}
        metrics = {} if self.options.metrics_port is None else {"metrics": self.options.metrics_port}
        return {"http": self.options.port, **metrics, **own}

    def _server(self, app: Any) -> HttpServer:
        return HttpServer(
            app,
            idle_s=IDLE_S,
            worded=lambda message: ErrorAnswer(status=400, code=CODES[400], message=message).body,
            ws=ClientProtocol,
            ws_max_size=self.options.limits.max_message_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=self.options.ping_s,
            ws_ping_timeout=self.options.ping_s,
        )


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens.

    Args:
        option: chooses the port, in the message.

    Raises:
        ServerSetupError: it cannot be listened on.
    """
    try:
        return listening(host, port, BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # with the address, once more
        raise ServerSetupError(
            f"the gateway cannot listen on {joined(host, port)}: {reason}. Choose another with {option} or --host."
        ) from error


def _option(name: str) -> str:
    return "--port" if name == "http" else f"--{name.replace('_', '-')}-port"


def collect_again(loop: asyncio.AbstractEventLoop, period_s: float) -> None:
    """Collect all garbage now, and again whenever `period_s` have passed, as long as the loop runs."""
    gc.collect()
    loop.call_later(period_s, collect_again, loop, period_s)


def _at(app: "ASGIApp", path: str) -> "ASGIApp":
    """The application as its protocol at `path` alone sees it, for clients that ask for / and nothing else."""

    async def served(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] in ("http", "websocket") and scope["path"] == "/":
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await app(scope, receive, send)

    return served
