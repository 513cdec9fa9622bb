"""TCP ports: which are free, and who holds the others."""

import errno
import ipaddress
import socket

import psutil


def is_free(host: str, port: int) -> bool:
    """Whether `port` of `host` is free right now. Port 0 always is: it means "any".

    Raises:
        OSError: no service could listen there: an address that is not this machine's, or a port kept for root.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Triton sets this option too, so a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
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
    """Name who listens on `port`: "pid 123 (tritonserver)", or "another process" where the system will not tell."""
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
    """Find `count` different free ports on `host`. They are free when found; nothing keeps them so."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
