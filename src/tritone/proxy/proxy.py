"""A proxy in front of a Triton that listens on this machine only.

    proxy = Proxy(ProxyOptions(upstream_http="127.0.0.1:9000", upstream_grpc="127.0.0.1:9001"))
    proxy.start()  ...  proxy.drain()  ...  proxy.wait_idle(10)  ...  proxy.stop()

One thread with one event loop does all of it. Each method may be called from any other thread.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from types import TracebackType
from typing import Any

from prometheus_client import Metric

from tritone.errors import ServerSetupError
from tritone.net.connections import Connections
from tritone.net.loop_thread import LoopThread
from tritone.net.prometheus import family, text
from tritone.net.refusal import RefusedError
from tritone.net.tls import Certificates
from tritone.proxy.gate import Gate
from tritone.proxy.grpc import GrpcSide, GrpcUpstream
from tritone.proxy.http import HttpSide
from tritone.proxy.management import ManagementSide
from tritone.proxy.models import Models
from tritone.proxy.options import ProxyOptions
from tritone.proxy.upstream import HttpUpstream

TICK_S = 1.0
QUICK_TICK_S = 0.25
START_TIMEOUT_S = 10.0
CONNECT_S = 5.0  # to Triton; who takes longer is connected to later
METRICS_TIMEOUT_S = 4.0  # of Triton's; a scrape has 10 s, and the proxy's own metrics tell what is wrong
LOG = logging.getLogger(__name__)


class Proxy:
    """Listens for clients, and passes on to Triton what its rules allow."""

    def __init__(self, options: ProxyOptions) -> None:
        self.options = options
        self._thread: LoopThread | None = None
        self._parts: _Parts | None = None

    def __enter__(self) -> "Proxy":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ports(self) -> tuple[int, ...]:
        """Where clients and operators connect: HTTP, gRPC, and metrics if there are any."""
        options = self.options
        return tuple(port for port in (options.http_port, options.grpc_port, options.metrics_port) if port is not None)

    def start(self) -> None:
        """Return when both ports listen.

        Raises:
            ServerSetupError: a port is taken, or the TLS files are unfit.
        """
        if self._thread is not None:
            raise RuntimeError("this proxy was started already")
        self._thread = LoopThread("tritone-proxy")
        self._thread.loop.set_exception_handler(_quiet)
        try:
            self._parts = self._run(lambda: _Parts.make(self.options), START_TIMEOUT_S)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self.stop()
            raise ServerSetupError(
                f"the proxy cannot listen on {self.options.host}, ports {self.options.http_port} and "
                f"{self.options.grpc_port}: {error}. Choose other ports, or check the TLS files."
            ) from error
        except BaseException:
            self.stop()
            raise

    def add_metrics(self, source: Callable[[], Iterable[Metric]]) -> None:
        """Add what `source` returns to each page of metrics. The proxy must run."""
        assert self._parts is not None
        self._parts.sources.append(source)

    def set_ready(self, ready: bool, reason: str = "") -> None:
        """Say from now on whether the server is ready; requests pass all the same."""
        if ready:  # on both ports: gRPC's channel may still pause after a connection that was refused
            self._run(self._running.connect, START_TIMEOUT_S)
        self._gate.not_ready = None if ready else reason or "the server is not ready"

    def drain(self) -> None:
        """Be not ready, and refuse new requests and streams; what is open goes on."""
        self._gate.state = "draining"

    def lose_streams(self, model: str | None, reason: str) -> None:
        """Forget the open streams of a model, or of all: its process has ended. Their clients get `reason`."""

        async def lose() -> None:
            self._gate.lose(model, reason)

        self._run(lose)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight and no stream is open, here or at Triton; False if `timeout_s` passes."""

        async def wait() -> bool:
            try:
                await asyncio.wait_for(self._running.idle(), timeout_s)
            except TimeoutError:
                return False
            return True

        return self._run(wait, timeout_s + START_TIMEOUT_S)

    @property
    def in_flight(self) -> int:
        """Requests for inference that are not answered yet."""
        return self._gate.in_flight

    @property
    def open_streams(self) -> int:
        return len(self._gate.streams)

    def metrics(self) -> str:
        """The proxy's own metrics, in the text format of Prometheus."""
        return text(self._gate.metrics())

    def stop(self) -> None:
        """End at once; the second call does nothing."""
        thread, self._thread = self._thread, None
        parts, self._parts = self._parts, None
        if thread is not None:
            with suppress(FutureTimeoutError):
                thread.close(_nothing if parts is None else parts.close)

    @property
    def _gate(self) -> Gate:
        return self._running.gate

    @property
    def _running(self) -> "_Parts":
        if self._parts is None:
            raise RuntimeError("the proxy does not run")
        return self._parts

    def _run(self, work: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float | None = None) -> Any:
        assert self._thread is not None
        return self._thread.submit(work).result(timeout_s)


class _Parts:
    """What lives in the event loop."""

    def __init__(self, options: ProxyOptions) -> None:
        key = {options.key_header: options.key} if options.key else {}
        self._options = options
        self._upstream_http = HttpUpstream(options.upstream_http, options.retry_after_s)
        self._upstream_grpc = GrpcUpstream(options)
        ports = [options.http_port, options.grpc_port]
        if options.metrics_port is not None:
            ports.append(options.metrics_port)
        connections = Connections(options.limits, tuple(ports), only_ipv4=options.host == "0.0.0.0")
        self.gate = Gate(options, Models(self._upstream_http, key), connections, self._upstream_grpc.end)
        self._http = HttpSide(self.gate, self._upstream_http, self._upstream_grpc)
        self._grpc = GrpcSide(self.gate, self._upstream_grpc)
        self._management = ManagementSide(self.gate, self._http.ready, self._metrics)
        self._certificates = Certificates(options.tls) if options.tls is not None else None
        self.sources: list[Callable[[], Iterable[Metric]]] = []  # of further metrics
        self._ticking: asyncio.Task[None] | None = None

    @classmethod
    async def make(cls, options: ProxyOptions) -> "_Parts":
        parts = cls(options)
        try:
            await parts._start()
        except BaseException:
            await parts.close()
            raise
        return parts

    async def _start(self) -> None:
        options = self._options
        tls = self._certificates
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._upstream_grpc.connect(), CONNECT_S)
        await self._http.start(options.host, options.http_port, None if tls is None else tls.context)
        await self._grpc.start(options.host, options.grpc_port, None if tls is None else tls.credentials())
        if options.metrics_port is not None:
            await self._management.start(options.host, options.metrics_port)
        self._ticking = asyncio.ensure_future(self._tick())

    async def connect(self) -> None:
        """Return when gRPC gets through to Triton, or after some seconds."""
        await self._upstream_grpc.is_ready(wait=True)

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        await self._management.stop()
        await self._http.stop()
        await self._grpc.stop()
        await self.gate.close()
        for stream in self.gate.streams:
            self.gate.streams.end(stream)
        await self._upstream_grpc.close()
        self._upstream_http.close()

    async def idle(self) -> None:
        """Return when nothing is in flight and no stream is open, here or at Triton."""
        await self.gate.idle()
        await self._upstream_grpc.parted()

    async def _tick(self) -> None:
        while True:
            # what gRPC holds of half messages grows as fast as a network carries
            await asyncio.sleep(QUICK_TICK_S if self.gate.connections.is_receiving else TICK_S)
            try:
                self.gate.tick()
                if self._certificates is not None:
                    self._certificates.look()
            except Exception:  # once more in a second; without it nothing would ever expire again
                LOG.exception("the proxy could not look after its connections")

    async def _metrics(self) -> str:
        metrics = self.gate.metrics()
        if self._certificates is not None:
            name, about = "tritone_proxy_certificate_expires_seconds", "When it ends, in seconds since 1970."
            metrics.append(family("gauge", name, about, self._certificates.expires))
        for source in self.sources:
            metrics += await asyncio.to_thread(source)
        page = text(metrics)
        if self._options.upstream_metrics is not None:
            upstream = HttpUpstream(self._options.upstream_metrics, self._options.retry_after_s)
            with suppress(RefusedError, asyncio.TimeoutError):
                answer = await asyncio.wait_for(upstream.request("GET", "/metrics", {}), METRICS_TIMEOUT_S)
                page += answer.body.decode()
            upstream.close()
        return page


async def _nothing() -> None:
    pass


def _quiet(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep what clients cause out of the log: broken connections, failed handshakes, no descriptor for one more."""
    if not isinstance(context.get("exception"), (OSError, asyncio.CancelledError)):
        loop.default_exception_handler(context)
