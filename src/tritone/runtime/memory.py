"""Memory of this process and this machine, in bytes.

machine_bytes()  ->  what may be used here, by the kernel or by the container's limit
trim_heap()          returns what the C library keeps of freed memory
"""

import ctypes
from contextlib import suppress
from pathlib import Path

from tritone.container import CONTROL_GROUPS, OWN_GROUPS, limit_files

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
MEMORY_INFO = Path("/proc/meminfo")
LIMITS = (("", "", "memory.max"), ("memory", "memory", "memory.limit_in_bytes"))  # controller, its folder, the file


def machine_bytes(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS, info: Path = MEMORY_INFO) -> int | None:
    """The memory that processes here may use together: the machine's, or less where a container has less.

    None where neither can be read, as on systems other than Linux.
    """
    found = []
    with suppress(OSError, ValueError, KeyError):
        found.append(_fields(info)["MemTotal"])
    for path in limit_files(LIMITS, groups, own):
        with suppress(OSError, ValueError):  # "max" is no number: there is no limit
            found.append(int(path.read_text(encoding="utf-8")))
    return min(found, default=None)


def resident_bytes() -> int:
    """The memory of this process now."""
    return _fields(STATUS)["VmRSS"]


def peak_bytes() -> int:
    """The most memory of this process since it began, or since `reset_peak`."""
    return _fields(STATUS)["VmHWM"]


def reset_peak() -> None:
    """Have `peak_bytes` count from now on."""
    CLEAR.write_text(RESET_PEAK, encoding="utf-8")


def trim_heap() -> None:
    """Return to the system what the C library keeps of freed memory; does nothing where it is not glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _fields(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[2:] == ["kB"]}
