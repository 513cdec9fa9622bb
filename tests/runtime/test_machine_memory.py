"""How much memory there is: the machine's, or that of a container or a service."""

from pathlib import Path

import pytest

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
    (tmp_path / "meminfo").write_text(INFO)
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert machine_bytes(tmp_path / "groups", tmp_path / "own", tmp_path / "meminfo") == expected


def test_a_system_that_does_not_tell_has_no_number(tmp_path: Path) -> None:
    assert machine_bytes(tmp_path, tmp_path / "own", tmp_path / "meminfo") is None
