"""How long a training run may take, and how far it is."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop: after `minutes` on the clock (counted from `started`) or after `steps`, whichever comes first."""

    started: float
    minutes: float
    steps: int | None = None
    eval_s: float = 90.0
    first: float = 0.0
    last: float = 1.0

    def share(self, step: int) -> float:
        """How much of the schedule is over: `first` at the start, `last` and beyond when the budget is spent."""
        used = (time.monotonic() - self.started) / (60.0 * self.minutes)
        used = max(used, step / self.steps) if self.steps else used
        return self.first + (self.last - self.first) * used
