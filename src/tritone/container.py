"""Limits that a container or a service sets for this process: control groups of Linux.

usable_cpus()  ->  how many CPUs this process may use
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
# Of the second version of control groups, and of the first. Inside of a container its own group is at the root.
OWN_GROUPS = Path("/proc/self/cgroup")
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"  # files of the first version, in microseconds
CPU_LIMITS = (("", "", "cpu.max"), ("cpu", "cpu", QUOTA))


def limit_files(limits: Sequence[tuple[str, str, str]], groups: Path, own: Path) -> Iterator[Path]:
    """Files that may hold a limit of this process: of its own group and of the root.

    Args:
        limits: controller, the controller's folder, and the file's name; the first two are empty in version 2.
        groups: where control groups are mounted.
        own: the file that names the groups of this process.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = os.fsdecode(own.read_bytes()).splitlines()
    places = [tuple(line.split(":", 2)[1:]) for line in lines]
    for controller, folder, name in limits:
        own_place = next((place for names, place in places if controller in names.split(",")), "/")
        for place in sorted({"", own_place.strip("/")}):
            yield groups / folder / place / name


def usable_cpus(groups: Path = CONTROL_GROUPS, own: Path = OWN_GROUPS) -> int:
    """CPUs that this process may use, at least 1; libraries count the machine's, also those that a container took away.

    A container's limit of CPU time counts as CPUs, rounded up: threads beyond it would only be throttled together.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(min(cpus, _cpu_limit(groups, own)))


@cache  # calls of a network ask for it; files of the kernel take 50 us
def _cpu_limit(groups: Path, own: Path) -> float:
    limit = math.inf
    for path in limit_files(CPU_LIMITS, groups, own):
        with suppress(OSError, ValueError):  # "max" is no number: there is no limit
            words = path.read_text(encoding="utf-8").split()
            if path.name == QUOTA:
                words.append(path.with_name(PERIOD).read_text(encoding="utf-8"))
            quota, period = map(int, words)
            if quota > 0 and period > 0:  # -1 is no limit in version 1
                limit = min(limit, math.ceil(quota / period))
    return limit
