"""Memory, shared memory and descriptors of a deployment over time.

Deployment  ->  Gauges (a thread that looks every second)  ->  [Sample, ...]
"""

import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.endurance.deployment import Deployment

MIB = 2**20
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look. Memory in MiB.

    `own`: by role of the process, what it has that is no file and not shared (RssAnon), so that a region of shared
    memory, which `shared` counts, is counted once. `resident`: of all of them, shared pages in each.
    """

    at_s: float
    own: dict[str, float]
    shared: float
    resident: float
    descriptors: dict[str, int]
    note: str = ""

    @property
    def total(self) -> float:
        """Own memory of all processes and shared memory."""
        return sum(self.own.values()) + self.shared


@dataclass
class Gauges:
    """Looks at a deployment every `every_s` while inside `with`, and whenever `look` is called."""

    deployment: Deployment
    every_s: float = 1.0
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)

    def __enter__(self) -> "Gauges":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self.every_s):
            self.samples.append(self.look())

    def look(self, note: str = "") -> Sample:
        """One look now; it is not kept."""
        own: dict[str, float] = {}
        descriptors: dict[str, int] = {}
        resident = 0.0
        for role, process in self.deployment.processes().items():
            with suppress(psutil.Error, OSError):
                own[role] = anonymous_bytes(process.pid) / MIB
                descriptors[role] = process.num_fds()
                resident += process.memory_info().rss / MIB
        return Sample(
            at_s=round(time.monotonic() - self._start, 2),
            own={role: round(value, 1) for role, value in own.items()},
            shared=round(shared_bytes(self.deployment.pid) / MIB, 1),
            resident=round(resident, 1),
            descriptors=descriptors,
            note=note,
        )

    def mark(self, note: str, settle_s: float = 0.0) -> Sample:
        """Look after `settle_s` of rest and keep it with a note."""
        time.sleep(settle_s)
        sample = self.look(note)
        self.samples.append(sample)
        return sample

    def to_list(self, most: int = 600) -> list[dict[str, Any]]:
        """At most about `most` of the samples, those with a note among them, ready for JSON."""
        step = max(1, len(self.samples) // most)
        return [asdict(each) for index, each in enumerate(self.samples) if index % step == 0 or each.note]


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is neither a file's nor shared."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def shared_bytes(pid: int, folder: Path = SHARED_MEMORY) -> int:
    """What the regions that a `tritone serve` named take up of memory, in bytes; a hole in a region takes none."""
    total = 0
    for region in folder.glob(f"tritone_{pid}_*"):
        with suppress(OSError):
            total += region.stat().st_blocks * 512
    return total
