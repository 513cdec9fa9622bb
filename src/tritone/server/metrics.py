"""What an operator must know of a running server that Triton does not report.

metrics = ServerMetrics()
metrics.all()  ->  starts of the server, models that are ready, memory, shared memory, the repository in storage
"""

import shutil
from contextlib import suppress
from importlib.metadata import version

import psutil
from prometheus_client import Metric

from tritone import preparing
from tritone.errors import TritoneError
from tritone.net.prometheus import Labelled, family
from tritone.preparing import READY
from tritone.runtime.memory import machine_bytes
from tritone.server.checks import SHARED_MEMORY
from tritone.server.control import UNREADY
from tritone.server.process import TritonServer
from tritone.server.remote import Updates

TIMEOUT_S = 2.0  # of Triton, which may stand still while somebody asks for metrics


class ServerMetrics:
    """Counts of one `tritone serve`. `all` may be called from any thread, at any time.

    Args:
        updates: what looks at the repository for models that changed, if anything does.
    """

    def __init__(self, updates: Updates | None = None) -> None:
        self._updates = updates
        self._starts = 0
        self._running: TritonServer | None = None

    def started(self, running: TritonServer) -> None:
        """Count a start of the server that is ready now."""
        self._starts += 1
        self._running = running

    def ended(self) -> None:
        """Forget the server: it has ended, or is about to."""
        self._running = None

    def all(self) -> list[Metric]:
        """All metrics now; what cannot be known at this moment is left out."""
        found = [
            _gauge("build_info", "The version.", [({"tritone": version("tritone")}, 1)]),
            _gauge("memory_bytes", "Memory of this process and all below it.", _own_bytes()),
        ]
        if self._starts:  # a counter that begins at 0 would grow with the first start, as if it were another one
            found.append(family("counter", "tritone_server_starts_total", "Starts of Triton.", self._starts))
        if (machine := machine_bytes()) is not None:
            found.append(_gauge("memory_limit_bytes", "Memory of the machine, or of its container.", machine))
        with suppress(OSError):
            shared = shutil.disk_usage(SHARED_MEMORY)
            found.append(_gauge("shared_memory_bytes", "Shared memory, all of it.", shared.total))
            found.append(_gauge("shared_memory_free_bytes", "Shared memory that is free.", shared.free))
        running = self._running
        if running is not None and running.options.has_control:
            with suppress(TritoneError):
                listed = [each for each in running.control.models(TIMEOUT_S) if each["name"] != UNREADY]
                states = [(each["name"], each.get("state") == "READY") for each in listed]
                ready = {name: max(state for each, state in states if each == name) for name, _ in states}
                values = [({"model": name}, state) for name, state in ready.items()]
                found.append(_gauge("model_ready", "Whether a model is ready.", values))
            progress = {} if running.preparing is None else preparing.states(running.preparing)
            values = [({"model": name, "version": each}, state != READY) for (name, each), state in progress.items()]
            found.append(_gauge("model_preparing", "Whether a model still prepares its full speed.", values))
        if self._updates is not None:
            rejected = [({"model": name}, 1) for name in sorted(self._updates.rejected)]
            found.append(_gauge("repository_reachable", "Whether storage answers.", self._updates.reachable))
            found.append(_gauge("repository_version_rejected", "Models whose new version is unfit.", rejected))
        return found


def _gauge(name: str, about: str, values: float | Labelled) -> Metric:
    return family("gauge", f"tritone_{name}", about, values)


def _own_bytes() -> int:
    """Memory of this process and all below it, without what they share, such as files and `/dev/shm`."""
    found = 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended just now
            info = process.memory_info()
            found += info.rss - info.shared
    return found
