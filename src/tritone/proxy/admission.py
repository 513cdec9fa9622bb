"""Admission by seconds of audio in flight: what a model cannot take soon is refused at once, with numbers.

Requests cost what their audio costs, so a limit on requests would be too low for short ones or too high for long ones.
"""

import time
from dataclasses import dataclass, field

from tritone.net.limits import Limits
from tritone.net.refusal import BUSY, RefusedError
from tritone.proxy.checks import ModelFacts

HINT_S = (0.1, 30.0)  # shortest and longest advice to wait
FORGET = 0.8  # of the old estimate of speed, with each window
WINDOW_S = 1.0


@dataclass
class Load:
    """Audio of one model: in flight now, and how much of it is answered in a second."""

    in_flight_s: float = 0.0
    speed: float = 0.0
    _done_s: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    def done(self, audio_s: float) -> None:
        self.in_flight_s = max(0.0, self.in_flight_s - audio_s)
        self._done_s += audio_s
        elapsed = time.monotonic() - self._since
        if elapsed >= WINDOW_S:
            now = self._done_s / elapsed
            self.speed = FORGET * self.speed + (1 - FORGET) * now if self.speed else now
            self._done_s, self._since = 0.0, time.monotonic()


class Admission:
    """Audio in flight of every model, and of requests as such."""

    def __init__(self, limits: Limits, retry_after_s: float) -> None:
        self._limits = limits
        self._retry_after_s = retry_after_s
        self.requests = 0
        self.loads: dict[str, Load] = {}

    def enter(self, facts: ModelFacts, audio_s: float, *, always: bool) -> None:
        """Count a request in. `always`: a chunk of an open stream, which must go on.

        Raises:
            RefusedError: too much is in flight. Audio that is alone is admitted, however long: the model decides.
        """
        if self.requests >= self._limits.max_requests and not always:
            raise RefusedError(
                BUSY,
                f"{self.requests} requests are in flight, the most that are taken. Try again.",
                self._retry_after_s,
            )
        if audio_s or facts.name in self.loads:
            load = self.loads.setdefault(facts.name, Load())
            most = facts.max_queued_s or self._limits.max_queued_s
            over = load.in_flight_s + audio_s - most
            if over > 0 and load.in_flight_s > 0 and not always:
                hint = over / load.speed if load.speed else self._retry_after_s
                hint = min(max(hint, HINT_S[0]), HINT_S[1])
                raise RefusedError(
                    BUSY,
                    f"model '{facts.name}' has {load.in_flight_s:.1f} s of audio in flight and takes {most:g} s; "
                    f"this one has {audio_s:.1f} s. Try again in {hint:.1f} s.",
                    hint,
                )
            load.in_flight_s += audio_s
        self.requests += 1

    def leave(self, facts: ModelFacts, audio_s: float) -> None:
        """Count out what `enter` counted in."""
        self.requests -= 1
        if facts.name in self.loads:
            self.loads[facts.name].done(audio_s)
