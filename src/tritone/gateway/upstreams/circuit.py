"""A circuit breaker: whether a server that failed again and again is asked now.

closed --failures--> open --rest_s--> half-open --success--> closed, or --failure--> open
"""

import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half-open"]
STATES: tuple[State, ...] = ("closed", "open", "half-open")


class Circuit:
    """The circuit of one server, whose failures in a row are counted.

    Args:
        failures: so many in a row open it.
        rest_s: seconds for which it stays open. Then one request is let through, and its end decides.
        on_state: called with each new state.
    """

    def __init__(
        self,
        failures: int,
        rest_s: float,
        *,
        on_state: Callable[[State], None] = lambda state: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state: State = "closed"
        self._most = failures
        self._rest_s = rest_s
        self._on_state = on_state
        self._clock = clock
        self._failures = 0
        self._until = 0.0
        self._trying = False  # while it is half-open, whether the one request is under way

    @property
    def wait_s(self) -> float:
        """Seconds until a request may be sent; 0 if one may now."""
        if self.state == "closed" or (self.state == "half-open" and not self._trying):
            return 0.0
        return self._rest_s if self._trying else max(0.0, self._until - self._clock())

    def enter(self) -> float:
        """Ask to send a request; returns 0, or the seconds to wait if it must not be sent.

        After 0, one of `succeeded`, `failed` and `left` must follow.
        """
        if (wait_s := self.wait_s) > 0:
            return wait_s
        if self.state != "closed":
            self._trying = True
            self._become("half-open")
        return 0.0

    def succeeded(self) -> None:
        """The server answered, whatever it said."""
        self._failures, self._trying = 0, False
        self._become("closed")

    def failed(self) -> None:
        """The server did not answer, not in time, or not as it must."""
        self._failures += 1
        if self._trying or self._failures >= self._most:
            self._until, self._trying = self._clock() + self._rest_s, False
            self._become("open")

    def left(self) -> None:
        """Nobody waited for the answer."""
        self._trying = False

    def _become(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._on_state(state)
