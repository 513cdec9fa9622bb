"""TCP ports: which are free, and who holds the others."""

import errno
import ipaddress
from itertools import islice
from pathlib import Path
from random import SystemRandom

import psutil

from tritone.net.address import listening

LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # of IPv6, too
LEAST, MOST = 10_000, 65_535  # the usual ports of services are below


def is_free(host: str, port: int) -> bool:
    """Whether `port` of `host` is free right now. Port 0 always is: it means "any".

    Raises:
        OSError: no service could listen there: an address that is not this machine's, or a port kept for root.
    """
    try:
        listening(host, port, backlog=1).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def holder(port: int) -> str:
    """Name who listens on `port`: "pid 123 (tritonserver)", or "another process" where the system does not show it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return "another process"
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        if listens and connection.pid:
            try:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return "another process"


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Find `count` different free ports on `host` that no connection is given by chance.

    They are free when found, and nothing keeps them so. But a system takes a port of its own range for every outgoing
    connection, one that a server is about to listen on, too; these are none of that range.

    Raises:
        OSError: there are not so many.
    """
    first, last = _given_by_chance()
    # A system may give all of them.
    ports = [*range(LEAST, first), *range(last + 1, MOST + 1)] or range(LEAST, MOST + 1)
    # Not of the generator that tests seed: processes with the same seed would find the same ports.
    order = SystemRandom().sample(ports, len(ports))
    found = list(islice((port for port in order if is_free(host, port)), count))
    if len(found) < count:
        raise OSError(f"needed {count} free ports on {host}, found {len(found)}")
    return found


def _given_by_chance() -> tuple[int, int]:
    """The first and the last port that the system gives to those who ask for any."""
    try:
        first, last = map(int, LOCAL_PORTS.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # another system than Linux: those of RFC 6335
        return 49152, 65535
    return first, last
