"""How much memory and how many CPUs there are: those of the machine, or of a container or a service."""

from pathlib import Path

import pytest

from tritone import container
from tritone.runtime.memory import machine_bytes

INFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nHugePages_Total:       0\n"


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "", 1000 << 10),
        ({"memory.max": "max\n"}, "0::/\n", 1000 << 10),
        ({"memory.max": "4096\n"}, "0::/\n", 4096),
        ({"memory.max": "max\n", "system/tritone/memory.max": "8192\n"}, "0::/system/tritone\n", 8192),
        ({"memory/memory.limit_in_bytes": "2048\n"}, "9:cpu,memory:/docker/1\n0::/\n", 2048),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "", 1000 << 10),
    ],
    ids=["machine", "no limit", "container", "service", "version 1", "version 1 without a limit"],
)
def test_the_lowest_limit_counts(files: dict[str, str], own: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(INFO, encoding="utf-8")
    (tmp_path / "own").write_text(own, encoding="utf-8")
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    assert machine_bytes(tmp_path / "groups", tmp_path / "own", tmp_path / "meminfo") == expected


def test_a_system_that_does_not_tell_has_no_number(tmp_path: Path) -> None:
    assert machine_bytes(tmp_path, tmp_path / "own", tmp_path / "meminfo") is None


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "", 8),
        ({"cpu.max": "max 100000\n"}, "0::/\n", 8),
        ({"cpu.max": "400000 100000\n"}, "0::/\n", 4),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 2),
        ({"cpu.max": "max 100000\n", "pod/cpu.max": "50000 100000\n"}, "0::/pod\n", 1),
        ({"cpu.max": "1600000 100000\n"}, "0::/\n", 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/docker/1\n", 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/docker/1\n", 8),
    ],
    ids=["machine", "no limit", "container", "rounded up", "service", "more", "version 1", "version 1 without a limit"],
)
def test_a_limit_of_cpu_time_counts_as_cpus(
    files: dict[str, str], own: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container.os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "own").write_text(own, encoding="utf-8")
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    assert container.usable_cpus(tmp_path / "groups", tmp_path / "own") == expected
