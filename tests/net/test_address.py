"""Hosts and ports, of both families."""

import errno
import socket
from typing import Any

import pytest

from tritone.net.address import joined, listening, numeric

HAS_IPV6 = socket.has_dualstack_ipv6()


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("localhost", "localhost:80"),
        ("::1", "[::1]:80"),
        ("fe80::1%lo", "[fe80::1%lo]:80"),
    ],
)
def test_an_address_of_ipv6_stands_in_brackets(host: str, written: str) -> None:
    assert joined(host, 80) == written


def test_a_name_of_both_families_stands_for_its_address_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert numeric("localhost") == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
    assert (numeric("localhost"), numeric("::1")) == ("::1", "::1")


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
@pytest.mark.parametrize(
    ("host", "reached"),
    [("::1", {"::1"}), ("127.0.0.1", {"127.0.0.1"}), ("0.0.0.0", {"127.0.0.1"}), ("::", {"::1", "127.0.0.1"})],
)
def test_a_socket_listens_on_its_family_and_on_all_addresses_for_both(host: str, reached: set[str]) -> None:
    with listening(host, 0) as server:
        port = server.getsockname()[1]
        answered = set()
        for each in ("::1", "127.0.0.1"):
            try:
                socket.create_connection((each, port), timeout=5).close()
                answered.add(each)
            except ConnectionRefusedError:
                pass
        assert answered == reached


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_ipv6_says_so(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def without(*_: Any, **__: Any) -> None:
        raise OSError(code, "whatever the system says")

    monkeypatch.setattr(socket, "create_server", without)
    with pytest.raises(OSError, match=r"this machine has no address ::1 of IPv6; 127\.0\.0\.1 and 0\.0\.0\.0"):
        listening("::1", 0)
    with pytest.raises(OSError, match="whatever the system says"):
        listening("192.0.2.1", 0)
