"""What an operator must know of a running server that Triton does not tell, in the text format of Prometheus.

metrics = ServerMetrics()
metrics.text()  ->  starts of the server, models that are ready, memory, shared memory, the repository in storage
"""

import shutil
from contextlib import suppress
from importlib.metadata import version

import psutil

from tritone.errors import TritoneError
from tritone.runtime.memory import machine_bytes
from tritone.server.checks import SHARED_MEMORY
from tritone.server.control import UNREADY
from tritone.server.process import TritonServer
from tritone.server.remote import Updates

TIMEOUT_S = 2.0  # of Triton, which may stand still while somebody asks for metrics
Samples = list[tuple[dict[str, str], float]]  # labels, value


class ServerMetrics:
    """Counts of one `tritone serve`. `text` may be called from any thread, at any time.

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

    def text(self) -> str:
        """All metrics now; what cannot be known at this moment is left out."""
        lines: list[str] = []
        for name, kind, samples in self._found():
            lines.append(f"# TYPE tritone_{name} {kind}")
            for labels, value in samples:
                told = ",".join(f'{key}="{text}"' for key, text in labels.items())
                lines.append(f"tritone_{name}{{{told}}} {value:.15g}" if told else f"tritone_{name} {value:.15g}")
        return "\n".join(lines) + "\n"

    def _found(self) -> list[tuple[str, str, Samples]]:
        found: list[tuple[str, str, Samples]] = [
            ("build_info", "gauge", [({"tritone": version("tritone")}, 1)]),
            ("memory_bytes", "gauge", [({}, _own_bytes())]),
        ]
        if self._starts:  # a counter that begins at 0 would grow with the first start, as if it were another one
            found.append(("server_starts_total", "counter", [({}, self._starts)]))
        if (machine := machine_bytes()) is not None:
            found.append(("memory_limit_bytes", "gauge", [({}, machine)]))
        with suppress(OSError):
            shared = shutil.disk_usage(SHARED_MEMORY)
            found.append(("shared_memory_bytes", "gauge", [({}, shared.total)]))
            found.append(("shared_memory_free_bytes", "gauge", [({}, shared.free)]))
        running = self._running
        if running is not None and running.options.has_control:
            with suppress(TritoneError):
                listed = [each for each in running.control.models(TIMEOUT_S) if each["name"] != UNREADY]
                states = [(each["name"], each.get("state") == "READY") for each in listed]
                ready = {name: max(state for each, state in states if each == name) for name, _ in states}
                found.append(("model_ready", "gauge", [({"model": name}, state) for name, state in ready.items()]))
        if self._updates is not None:
            rejected: Samples = [({"model": name}, 1) for name in sorted(self._updates.rejected)]
            found.append(("repository_reachable", "gauge", [({}, self._updates.reachable)]))
            found.append(("repository_version_rejected", "gauge", rejected))
        return found


def _own_bytes() -> int:
    """Memory of this process and all below it, without what they share, such as files and `/dev/shm`."""
    found = 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended just now
            info = process.memory_info()
            found += info.rss - info.shared
    return found
