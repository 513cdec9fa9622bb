"""Connections of clients, counted and bounded by the file descriptors that this process may have.

gRPC has no limit on connections, so both ports are watched from outside: every second, the sockets of this process
are looked through, and those that are idle, or too many, are shut down, the longest idle first. Who connects next, like
a health check, is thus answered also while somebody holds on to all connections that there are.
"""

import os
import resource
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from tritone.net.limits import Limits

RESERVE = 128  # descriptors for files, upstream connections of gRPC, and what else the process opens
LEAST = 8
MOST = 8192
LAST_RECEIVED = slice(52, 56)  # of Linux's `struct tcp_info`: tcpi_last_data_recv, milliseconds
BYTES_RECEIVED = slice(128, 136)  # tcpi_bytes_received
AROUND_MESSAGE = 1024  # bytes of frames and headers that may come with a gRPC message
DESCRIPTORS = Path("/proc/self/fd")

Peer = tuple[str, int]


class Descriptor(NamedTuple):
    """The file descriptor of a connection; `inode` is of its socket, since numbers are used again.

    `idle_s`: since anything was received, or since it was made, in seconds. `received`: bytes, in all.
    """

    number: int
    inode: int
    idle_s: float = 0.0
    received: int = 0


def connections_allowed(ports: int) -> int:
    """How many connections each port may have: an equal share of the free descriptors, and one share for upstream."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = soft - len(os.listdir(DESCRIPTORS)) - min(RESERVE, soft // 4)
    return min(MOST, max(LEAST, free // (ports + 1)))


class Connections:
    """Connections to this process on some ports."""

    def __init__(self, limits: Limits, ports: tuple[int, ...], *, only_ipv4: bool) -> None:
        self.limit = limits.max_connections or connections_allowed(len(ports))
        self._idle_s = limits.idle_s
        self._ports = ports
        self._only_ipv4 = only_ipv4  # gRPC binds 0.0.0.0 as [::]
        self._busy: Counter[Peer] = Counter()
        self._active: dict[Peer, float] = {}  # when it was busy last, or seen first
        self._leaving: set[int] = set()  # inodes of sockets that were shut down, until their owner closes them
        self.open = 0
        self.closed = 0  # by us, in all
        self._sweep_at = self.limit
        self._most_held = limits.max_buffered_bytes
        self._receiving: Counter[Peer] = Counter()  # gRPC calls that have not got all of a message
        self._base: dict[Peer, int] = {}  # bytes that such a connection had received before, and messages since
        self.received: dict[Peer, int] = {}  # bytes, at the last sweep
        self.held_bytes = 0  # of gRPC messages that are not whole, at the last sweep

    def is_foreign(self, peer: Peer) -> bool:
        """Whether a client came by IPv6 to a server that listens on IPv4 alone."""
        return self._only_ipv4 and ":" in peer[0]

    def begin(self, peer: Peer) -> None:
        """A request of a connection begins."""
        self._busy[peer] += 1

    def end(self, peer: Peer) -> None:
        self._busy[peer] -= 1
        if not self._busy[peer]:
            del self._busy[peer]
        self._active[peer] = time.monotonic()

    def receive(self, peer: Peer) -> None:
        """A gRPC call of a connection begins to receive. gRPC keeps what has come until a message is whole."""
        self._receiving[peer] += 1

    def received_message(self, peer: Peer, num_bytes: int) -> None:
        """One message is whole."""
        if peer in self._base:
            self._base[peer] += num_bytes + AROUND_MESSAGE

    def receive_end(self, peer: Peer) -> None:
        self._receiving[peer] -= 1
        if not self._receiving[peer]:
            del self._receiving[peer]

    @property
    def is_receiving(self) -> bool:
        """Whether any gRPC call has not got all of a message."""
        return bool(self._receiving)

    def opened(self, peer: Peer, connection: Any) -> None:
        """A connection was accepted. So that a burst of them cannot take all descriptors before the next sweep.

        Args:
            connection: its socket. A busy loop accepts late: by its own clock alone the first of those that waited
                would be newer than the last, of which the kernel is asked.
        """
        self._active[peer] = time.monotonic() - _idle_s(connection)
        self.open += 1
        if self.open > self._sweep_at:
            self.sweep()

    def is_open(self, peer: Peer) -> bool:
        """Whether it was at the last sweep, or has been active since."""
        return peer in self._active or peer in self._busy

    def sweep(self) -> None:
        """Look through the connections, and shut down what is idle or too many."""
        now = time.monotonic()
        present = self._sockets()
        # Those would be taken for the newest connections, in whose place others are shut down.
        self._leaving &= {each.inode for peers in present.values() for each in peers.values()}
        found = {
            port: {peer: each for peer, each in peers.items() if each.inode not in self._leaving}
            for port, peers in present.items()
        }
        # A peer may be connected to both ports under one address, so it may be gone from here when it comes again.
        # gRPC does not say when it accepts one; of those that nobody has mentioned yet the kernel knows the age.
        live = {
            peer: self._active.get(peer, now - each.idle_s) for peers in found.values() for peer, each in peers.items()
        }
        for peers in found.values():
            idle = sorted((peer for peer in peers if peer not in self._busy), key=lambda peer: live.get(peer, now))
            # Room for some more, so that not every connection from now on costs a sweep.
            excess = len(peers) - self.limit
            excess += max(1, self.limit // 10) if excess > 0 else 0
            for index, peer in enumerate(idle):
                if index < excess or self.is_foreign(peer) or now - live.get(peer, now) > self._idle_s:
                    self._shut(peers[peer], peer)
                    live.pop(peer, None)
        self._hold({peer: each for peers in found.values() for peer, each in peers.items() if peer in live})
        self._active = live
        self.open = len(live)
        self._sweep_at = self.open + max(LEAST, self.limit // 10)

    def _hold(self, connections: dict[Peer, Descriptor]) -> None:
        """Count what gRPC holds of messages that are not whole, and shut the connections that make it too much."""
        self._base = {
            peer: min(self._base.get(peer, self.received.get(peer, 0)), each.received)
            for peer, each in connections.items()
            if peer in self._receiving
        }
        self.received = {peer: each.received for peer, each in connections.items()}
        held = {peer: self.received[peer] - base for peer, base in self._base.items()}
        self.held_bytes = sum(held.values())
        for peer in sorted(held, key=lambda peer: held[peer], reverse=True):
            # one connection may not take all that there is for everybody
            if held[peer] <= self._most_held // 2 and self.held_bytes <= self._most_held:
                break
            self._shut(connections[peer], peer)
            self.held_bytes -= held[peer]

    def _shut(self, descriptor: Descriptor, peer: Peer) -> None:
        self.closed += 1
        self._leaving.add(descriptor.inode)
        with suppress(OSError), _borrowed(descriptor.number) as each:
            if as_peer(each.getpeername()) == peer:  # the number may be another connection's by now
                each.shutdown(socket.SHUT_RDWR)

    def _sockets(self) -> dict[int, dict[Peer, Descriptor]]:
        """Descriptors of the connections to each port, by who is connected."""
        try:
            numbers: Iterable[int] = map(int, os.listdir(DESCRIPTORS))
        except OSError:  # no descriptor is left for the list itself
            numbers = range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        found: dict[int, dict[Peer, Descriptor]] = {port: {} for port in self._ports}
        for number in numbers:
            with suppress(OSError):  # closed, listening, or no socket of the internet
                status = os.fstat(number)
                if stat.S_ISSOCK(status.st_mode):
                    with _borrowed(number) as each:
                        if each.family in (socket.AF_INET, socket.AF_INET6):
                            port = each.getsockname()[1]
                            if port in found:
                                found[port][as_peer(each.getpeername())] = Descriptor(
                                    number, status.st_ino, _idle_s(each), _received(each)
                                )
        return found


@contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """A descriptor of somebody else as a socket, which stays open. It is no copy: there may be none left for it."""
    each = socket.socket(fileno=number)
    try:
        yield each
    finally:
        each.detach()


def _idle_s(each: Any) -> float:
    """Seconds since a connection received anything, or was made; 0 where the system does not say it."""
    try:
        info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_RECEIVED.stop)
        return int.from_bytes(info[LAST_RECEIVED], sys.byteorder) / 1000
    except (OSError, AttributeError):
        return 0.0


def _received(each: Any) -> int:
    """Bytes that a connection received in all; 0 where the system does not say it."""
    try:
        info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED.stop)
        return int.from_bytes(info[BYTES_RECEIVED], sys.byteorder)
    except (OSError, AttributeError):
        return 0


def as_peer(address: tuple[object, ...]) -> Peer:
    """Host and port of a socket's address; IPv4 in IPv6's clothes as IPv4."""
    return str(address[0]).removeprefix("::ffff:"), int(str(address[1]))


def peer_of(context: Any) -> Peer:
    """Host and port of a gRPC call's client; `context`: what the call's handler is given."""
    return _of_text(context.peer())


@lru_cache(maxsize=4096)
def _of_text(text: str) -> Peer:
    # ipv4:127.0.0.1:50051, ipv6:%5B::1%5D:50051
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return as_peer((host.strip("[]"), port if port.isdigit() else 0))
