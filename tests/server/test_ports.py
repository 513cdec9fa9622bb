"""Ports that are free, and stay so for a server that starts in a few seconds."""

import random
import socket
from pathlib import Path

import pytest

from tritone.server import free_ports, ports


def test_no_free_port_is_one_that_outgoing_connections_are_given() -> None:
    first, last = map(int, ports.LOCAL_PORTS.read_text(encoding="utf-8").split())
    found = free_ports(200)
    assert len(set(found)) == 200
    assert not [port for port in found if first <= port <= last]


def test_two_processes_with_the_same_seed_find_different_ports() -> None:
    random.seed(0)
    found = free_ports(3)
    random.seed(0)
    assert free_ports(3) != found


@pytest.mark.parametrize("content", ["10000 65535", "nothing", None])
def test_ports_are_found_whatever_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = tmp_path / "ip_local_port_range"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    monkeypatch.setattr(ports, "LOCAL_PORTS", path)
    for port in free_ports(3):
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_is_taken_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ports one is taken."""
    (free, taken) = free_ports(2)
    monkeypatch.setattr(ports.SystemRandom, "sample", lambda *_: [taken, free])
    with socket.create_server(("127.0.0.1", taken)):
        assert free_ports(1) == [free]
        with pytest.raises(OSError, match=r"needed 2 free ports on 127\.0\.0\.1, found 1"):
            free_ports(2)
