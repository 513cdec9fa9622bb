"""Hosts and ports: as they are written, and sockets that listen on them."""

import errno
import socket

ANY_IPV6 = "::"


def joined(host: str, port: int) -> str:
    """host:port as URLs and clients take it, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def numeric(host: str) -> str:
    """The address that a name stands for, of IPv4 if it has both; an address is its own. Raises OSError for no name."""
    if ":" in host:
        return host
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


def listening(host: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens; on `::` for clients of IPv4, too.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    address = numeric(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    both = address == ANY_IPV6 and socket.has_dualstack_ipv6()
    try:
        # Triton sets the option for addresses in use, too, so a port in TIME_WAIT counts as free.
        return socket.create_server((address, port), family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        if family == socket.AF_INET6 and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            reason = f"this machine has no address {address} of IPv6; 127.0.0.1 and 0.0.0.0 are those of IPv4"
            raise OSError(error.errno, reason) from error
        raise
