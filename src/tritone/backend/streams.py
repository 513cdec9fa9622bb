"""Who holds which stream slot: stream ids of the wire ↔ slots of a pipeline, with expiry of the idle.

Triton does not tell a model that a client went away without END, so the clock here is our own.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, ParamSpec, TypeVar

from tritone.errors import ServerBusyError, StreamError

Slot = TypeVar("Slot")
How = ParamSpec("How")
StreamId = int | str


class StreamTable(Generic[How, Slot]):
    """Open streams by their id, at most `capacity`, each closed by `expire` after `idle_timeout_s` without a touch."""

    def __init__(
        self,
        open_slot: Callable[How, Slot],
        close_slot: Callable[[Slot], None],
        *,
        capacity: int,
        idle_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_slot = open_slot
        self._close_slot = close_slot
        self._capacity = capacity
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        # In order of last use, so the idle ones come first.
        self._streams: OrderedDict[StreamId, tuple[Slot, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, stream: StreamId) -> Slot | None:
        """The slot of `stream`; None if it is not open."""
        held = self._streams.get(stream)
        return None if held is None else held[0]

    def start(self, stream: StreamId, *args: How.args, **how: How.kwargs) -> Slot:
        """Open `stream` with these arguments.

        Raises:
            StreamError: it is open; it goes on as it was.
            ServerBusyError: every slot is taken.
        """
        if stream in self._streams:
            raise StreamError(
                f"stream {stream} is in use: a stream with this id is open, and goes on. Take another id, a random "
                "number of 63 bits is never taken twice; if the stream is your own, end it with a chunk that carries "
                f"END first, or wait until it has sent nothing for {self._idle_timeout_s:g} s."
            )
        if len(self._streams) >= self._capacity:
            raise ServerBusyError(
                f"stream {stream}: all {self._capacity} streams of this model instance are taken. Try again when one "
                f"has ended (idle ones end after {self._idle_timeout_s:g} s), or build the model with a larger "
                "--max-streams."
            )
        slot = self._open_slot(*args, **how)
        self._streams[stream] = (slot, self._clock())
        return slot

    def touch(self, stream: StreamId) -> Slot:
        """Return the slot of an open stream, and count it as used now.

        Raises:
            StreamError: the stream is not open.
        """
        if (held := self._streams.get(stream)) is None:
            raise StreamError(
                f"stream {stream} is not open: it was never started, has ended, or sent nothing for "
                f"{self._idle_timeout_s:g} s. Start it again with a chunk that carries START."
            )
        self._streams[stream] = (held[0], self._clock())
        self._streams.move_to_end(stream)
        return held[0]

    def close(self, stream: StreamId) -> None:
        """Free the slot of `stream`; no matter if it is not open."""
        held = self._streams.pop(stream, None)
        if held is not None:
            self._close_slot(held[0])

    def forget(self, stream: StreamId) -> None:
        """Drop `stream` without closing its slot: the pipeline has freed it with the final step."""
        self._streams.pop(stream, None)

    @property
    def has_idle(self) -> bool:
        """Whether any stream has been idle too long."""
        for _, used in self._streams.values():
            return used <= self._clock() - self._idle_timeout_s
        return False

    def expire(self, keep: Collection[StreamId] = ()) -> list[StreamId]:
        """Close the streams that have been idle too long, apart from those in `keep`, and name them."""
        limit = self._clock() - self._idle_timeout_s
        expired = []
        for stream, (_, used) in self._streams.items():
            if used > limit:
                break
            if stream not in keep:
                expired.append(stream)
        for stream in expired:
            self.close(stream)
        return expired
