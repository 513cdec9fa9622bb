"""gRPC calls that have sent no whole message yet: how many there may be, and for how long.

A call costs its sender nothing, so those that wait do not count as requests. Where there are too many, one of the
connection that has the most is given up, which is that of nobody who sends what it begins.
"""

import asyncio
import time
from collections import defaultdict

from tritone.net.connections import Connections, Peer
from tritone.net.limits import Limits
from tritone.net.refusal import BUSY, TOO_SLOW, RefusedError


class Wait:
    """One call's wait. `over`: done when it is given up. `patient`: a stream, which may begin when its client likes."""

    def __init__(self, peer: Peer, received: int, patient: bool) -> None:
        self.peer = peer
        self.patient = patient
        self.started = time.monotonic()
        self.received = received  # bytes of its connection when it began
        self.over: asyncio.Future[RefusedError] = asyncio.get_running_loop().create_future()

    def give_up(self, refusal: RefusedError) -> None:
        if not self.over.done():
            self.over.set_result(refusal)


class Waits:
    """All calls that wait for their first message."""

    def __init__(self, limits: Limits, connections: Connections, retry_after_s: float) -> None:
        self._limits = limits
        self._connections = connections
        self._retry_after_s = retry_after_s
        self._of: defaultdict[Peer, dict[Wait, None]] = defaultdict(dict)  # the oldest first
        self.count = 0

    def enter(self, peer: Peer, *, patient: bool = False) -> Wait:
        """Begin to wait; `leave` must follow."""
        if self.count >= self._limits.max_waiting:
            most = max(self._of.values(), key=len)
            oldest = next(iter(most))
            oldest.give_up(
                RefusedError(
                    BUSY,
                    f"{self.count} calls wait for their message, the most that may. Send it with the call.",
                    self._retry_after_s,
                )
            )
            self.leave(oldest)
        wait = Wait(peer, self._connections.received.get(peer, 0), patient)
        self._of[peer][wait] = None
        self.count += 1
        self._connections.receive(peer)
        return wait

    def leave(self, wait: Wait) -> None:
        """The message has come, or the call is over; a second call does nothing."""
        waits = self._of.get(wait.peer, {})
        if wait not in waits:
            return
        del waits[wait]
        if not waits:
            del self._of[wait.peer]
        self.count -= 1
        self._connections.receive_end(wait.peer)

    def expire(self) -> None:
        """Give up calls whose connection sends more slowly than bodies may come."""
        now, limits = time.monotonic(), self._limits
        for waits in list(self._of.values()):
            for wait in list(waits):
                came = self._connections.received.get(wait.peer, wait.received) - wait.received
                allowed_s = min(limits.body_rate.allowed_s(came), limits.request_s)
                if now - wait.started > allowed_s and not wait.patient:
                    message = limits.body_rate.broken("the message", came, now - wait.started)
                    wait.give_up(RefusedError(TOO_SLOW, message))
                    self.leave(wait)
