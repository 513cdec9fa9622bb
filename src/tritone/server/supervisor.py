"""A server that is kept alive until somebody ends it.

    Supervisor(repository, options).run()  ->  exit code

A model whose process ended is loaded again, a server that ended is started again, both with growing pauses where it
happens again and again. A signal drains the server: new requests and streams are refused, those in flight end, and the
exit code is 0. A second signal ends it at once.
"""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Protocol, TextIO

from prometheus_client import Metric

from tritone import keys, preparing
from tritone.errors import ServerSetupError, ServerUnreachableError
from tritone.server.metrics import ServerMetrics
from tritone.server.options import ServerOptions
from tritone.server.process import TritonServer
from tritone.server.remote import Updates
from tritone.server.watch import LOOK_S, Failures, ModelWatch

LOADED = ("READY", "LOADING", "UNLOADING")
ASK_S = 2.0  # between questions whether the server answers
SILENT_S = 30.0  # a server that does not answer for so long is ended
FAREWELL_S = 2.0  # of a server without models, which only waits for connections that nobody uses


class Front(Protocol):
    """What stands between clients and the server, as `tritone.proxy.Proxy` does. `ports`: where keys are shown."""

    @property
    def ports(self) -> tuple[int, ...]: ...
    def start(self) -> None: ...
    def add_metrics(self, source: Callable[[], Iterable[Metric]]) -> None: ...
    def set_ready(self, ready: bool, reason: str = "") -> None: ...
    def lose_streams(self, model: str | None, reason: str) -> None: ...
    def drain(self) -> None: ...
    def wait_idle(self, timeout_s: float) -> bool: ...
    def stop(self) -> None: ...


class Supervisor:
    """Runs a server until a signal comes, or until it cannot be kept alive."""

    def __init__(
        self,
        repository: str | Path,
        options: ServerOptions,
        *,
        server: str | Path | None = None,
        log: TextIO | None = None,
        on_ready: Callable[[TritonServer], None] = lambda server: None,
        front: Front | None = None,
        updates: Updates | None = None,
    ) -> None:
        """Args:
        repository, options, server, log: see `TritonServer`.
        updates: has models loaded that change in the repository.
        on_ready: called when the server is ready for the first time.
        front: started and stopped with the server, and informed of what becomes of it.
        """
        self._repository = repository
        self._options = options
        self._server = server
        self._log = log
        self._on_ready = on_ready
        self._front = front
        self._updates = updates
        self._metrics = ServerMetrics(updates)
        self._signals = 0
        self._running: TritonServer | None = None

    def run(self) -> int:
        """Serve; call it in the main thread.

        Returns:
            0 after a signal; else the exit code of the server, 1 if it has none but 0.

        Raises:
            ServerSetupError: it could not be started for the first time.
            SystemExit: a signal came before it was ready.
        """
        with self._handling_signals(), self._fronted():
            failures = Failures()
            while True:
                try:
                    code = self._serve(failures)
                except ServerSetupError as error:
                    if not failures.count:
                        raise
                    self._notify(str(error))
                    code = 1
                if self._signals:
                    return code
                if not self._options.restart:
                    return code or 1
                failures.add()
                if failures.too_many:
                    self._notify(f"the server ended {failures.count} times in a row; it is not started again")
                    return code or 1
                self._notify(f"the server ended with exit code {code}; it is started again")
                if self._front is not None:
                    self._front.set_ready(False, "the server is started again")
                    self._front.lose_streams(None, "the server ended and is started again")
                if self._pause(failures.pause_s):
                    return 0

    def _serve(self, failures: Failures) -> int:
        running = self._running = TritonServer(self._repository, self._options, server=self._server, log=self._log)
        with running:
            ports = {self._options.http_port, self._options.grpc_port, *(self._front.ports if self._front else ())}
            paths = keys.publish(self._options.key, ports)
            if running.preparing is not None:
                paths += preparing.publish(running.preparing, ports)
            try:
                self._metrics.started(running)
                if self._front is not None:
                    self._front.set_ready(True)
                failures.ready()
                if not failures.count:
                    self._on_ready(running)
                else:
                    self._notify("the server is ready again; streams that were open are lost")
                if self._updates is not None:
                    self._updates.start(running)
                return self._watch(running)
            finally:
                self._metrics.ended()
                if self._updates is not None:
                    self._updates.stop()
                for path in paths:
                    path.unlink(missing_ok=True)

    def _watch(self, running: TritonServer) -> int:
        watch = None
        if self._options.restart and self._options.has_control:
            watch = ModelWatch(running, self._notify, self._lost)
        live_at = asked = time.monotonic()
        while not self._signals:
            with suppress(TimeoutError):
                return running.wait(LOOK_S)
            if watch is None:
                continue
            with suppress(ServerUnreachableError):
                watch.look()
            if time.monotonic() - asked > ASK_S:
                # One that is stopped, or stuck, has its processes all the same.
                live_at = time.monotonic() if running.control.is_live() else live_at
                asked = time.monotonic()
            if watch.hopeless or time.monotonic() - live_at > SILENT_S:
                self._notify(watch.hopeless or f"the server has not answered for {SILENT_S:g} s; it is ended")
                running.kill()
                return running.wait()
        return self._drain(running)

    def _drain(self, running: TritonServer) -> int:
        """End the server after what is in flight, or after `drain_s`; what is new is refused at once.

        Returns:
            0, or the server's exit code where a second signal ended it.
        """
        self._notify("ending: requests and streams in flight go on, new ones are refused")
        idle = False
        if self._front is not None:
            self._front.drain()
            deadline = time.monotonic() + self._options.drain_s
            while self._signals == 1 and time.monotonic() < deadline and not idle:
                idle = self._front.wait_idle(LOOK_S)
        if not self._options.has_control:
            running.terminate()
            return running.wait()
        with suppress(ServerUnreachableError):
            running.refuse_streams()
            running.control.refuse_readiness()
            self._await_models(running, idle=idle)
        running.terminate()
        try:
            code = running.wait(FAREWELL_S)
        except TimeoutError:
            running.kill()
            running.wait()
            code = 0
        return code if self._signals > 1 else 0

    def _await_models(self, running: TritonServer, *, idle: bool) -> None:
        """Unload each model as soon as it has no streams, and wait for all of them.

        Args:
            idle: nothing is in flight. A model counts streams when a chunk comes, so that it would have one that was
                left without END for ever.
        """
        deadline = time.monotonic() + self._options.drain_s
        leaving = {} if idle else running.open_streams()
        while self._signals == 1 and time.monotonic() < deadline:
            left = [each for each in running.control.models() if each.get("state") in LOADED]
            if not left:
                return
            # A stream is counted with its second chunk, so nobody is taken for idle at first sight.
            before, leaving = leaving, {} if idle else running.open_streams()
            for each in left:
                name = each["name"]
                if each["state"] == "READY" and not (before.get(name) or leaving.get(name)):
                    running.control.unload(name)
            time.sleep(LOOK_S)
        self._notify(f"not everything in flight ended within {self._options.drain_s:g} s")

    def _pause(self, seconds: float) -> bool:
        """Wait; returns whether a signal came."""
        end = time.monotonic() + seconds
        while not self._signals and time.monotonic() < end:
            time.sleep(LOOK_S)
        return self._signals > 0

    def _lost(self, model: str) -> None:
        if self._front is not None:
            self._front.lose_streams(model, f"model '{model}' lost its process")

    @contextmanager
    def _fronted(self) -> Iterator[None]:
        if self._front is None:
            yield
            return
        self._front.start()
        self._front.add_metrics(self._metrics.all)
        self._front.set_ready(False, "the server starts")
        try:
            yield
        finally:
            self._front.stop()

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP end the server; a SIGHUP that is ignored, as under `nohup`, stays ignored."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._signals += 1
            if self._running is not None:
                if self._signals > 1:
                    self._running.kill()
                self._running.interrupt(number)

        numbers = [signal.SIGINT, signal.SIGTERM]
        # A closed terminal does not reach the server, which has a session of its own: it would be left behind.
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _notify(self, text: str) -> None:
        if self._log is not None:
            with suppress(OSError, ValueError):
                self._log.write(f"tritone: {text}\n")
                self._log.flush()
