"""The memory that the calls of a graph may take, and when it is given back.

rows, samples  ->  bytes  ->  now, later, or never
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tritone.bundle.manifest import Memory
from tritone.errors import InputError

MARGIN = 1.15  # over what was measured: the sizes of an arena's regions are powers of two
MB = 10**6
CALLS_UNTIL_RETURN = 64  # an arena that sees ever new sizes grows slowly; what it keeps is returned now and then


class Budget:
    """Admits calls as long as there is room for them. May be used from several threads.

    What a runtime keeps of finished calls counts as taken: it may be in pieces that fit no later call. So a call is
    admitted if calls as large have been admitted before, or if there is room for it beyond all of that; else it waits
    until no other runs, and what is kept is given back first.
    """

    def __init__(
        self,
        memory: Memory | None,
        sample_rate: int,
        give_back: Callable[[], None],
        *,
        megabytes: float | None = None,
        calls: int = 1,
        usual_s: float = 0.0,
    ) -> None:
        """Start with nothing taken.

        Args:
            memory: what calls take; None where nobody measured it: then all calls are admitted at once.
            sample_rate: in Hz.
            give_back: returns what is kept to the system; called while no call runs.
            megabytes: of the whole process; None for as much as there is.
            calls: that are made at once.
            usual_s: seconds of audio of a usual call; after larger ones memory is given back at once.
        """
        self._memory = memory
        self._sample_rate = sample_rate
        self._give_back = give_back
        self._megabytes = megabytes
        unlimited = memory is None or megabytes is None
        self.room = float("inf") if unlimited else max(0.0, megabytes * MB - memory.process)  # type: ignore[operator, union-attr]
        self._usual = min(calls * self._bytes(1, usual_s), 0.75 * self.room)
        self._turn = threading.Lock()  # a large call that waits is not overtaken by small ones for ever
        self._freed = threading.Condition()
        self._running = self._kept = 0.0
        self._calls = 0

    @property
    def longest_s(self) -> float:
        """The longest audio that can be computed, in seconds; infinite without a budget."""
        return float("inf") if self._memory is None else self._memory.longest(self.room / MARGIN)

    def check(self, num_samples: int) -> None:
        """Make sure that audio of so many samples can be computed, alone if need be.

        Raises:
            InputError: it cannot; the message has the numbers and the ways out.
        """
        if self._memory is None or self._megabytes is None or self.fits(1, num_samples):
            return
        raise InputError(
            f"the audio is {num_samples / self._sample_rate:.3f} s long, for which this model needs "
            f"{(self._memory.process + self._bytes(1, num_samples / self._sample_rate)) / MB:.0f} MB of memory. Its "
            f"budget of {self._megabytes:.0f} MB is enough for {_down(self.longest_s):g} s. Stream it, or cut it; or "
            "give the model more memory (--memory-mb)."
        )

    def fits(self, rows: int, num_samples: int) -> bool:
        """Whether there is ever room for a call of so many rows of so many samples."""
        return self._bytes(rows, num_samples / self._sample_rate) <= self.room

    def call(self, rows: int, num_samples: int) -> AbstractContextManager[None]:
        """Wait until there is room for a call; it is taken as long as the context lasts."""
        return nullcontext() if self._memory is None else self._admitted(rows, num_samples)

    @contextmanager
    def _admitted(self, rows: int, num_samples: int) -> Iterator[None]:
        needed = self._bytes(rows, num_samples / self._sample_rate)
        with self._turn, self._freed:
            self._freed.wait_for(lambda: not self._running or self._has_room(needed))
            if not self._has_room(needed):
                self._return()
            self._running += needed
            self._kept = max(self._kept, self._running)
            self._calls += 1
        try:
            yield
        finally:
            with self._freed:
                self._running -= needed
                if self._running < 1:  # a sum of fractions
                    self._running = 0.0
                self._freed.notify_all()

    def settle(self) -> None:
        """Give back what is kept if it is more than usual calls take, or many calls have left their pieces in it."""
        with self._freed:
            if not self._running and (self._kept > self._usual or self._calls >= CALLS_UNTIL_RETURN):
                self._return()

    def _has_room(self, needed: float) -> bool:
        return self._running + needed <= self._kept or self._kept + needed <= self.room

    def _return(self) -> None:
        if self._memory is not None:
            self._give_back()
        self._kept, self._calls = 0.0, 0

    def _bytes(self, rows: int, seconds: float) -> float:
        return 0.0 if self._memory is None else MARGIN * self._memory.call_bytes(rows, seconds)


def longest_s(memory: Memory, megabytes: float) -> float:
    """The longest audio in seconds, to a tenth, that a process with this memory can compute."""
    return _down(memory.longest((megabytes * MB - memory.process) / MARGIN))


def needed_bytes(memory: Memory, seconds: float, calls: int = 1) -> float:
    """The memory of a process that makes so many calls of so many seconds at once."""
    return memory.process + calls * MARGIN * memory.call_bytes(1, seconds)


def _down(seconds: float) -> float:
    return int(seconds * 10) / 10 if seconds < float("inf") else seconds
