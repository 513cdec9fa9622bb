"""Splitting a pile of utterances into graph calls.

    lengths in samples  ->  batches of similar length, padded to a few standard lengths

Padding costs time, large calls cost memory, and new shapes cost set-up; the plan trades them. It depends on the lengths
alone, and since a graph's rows do not depend on each other, it never changes a result.

A graph that was compiled for some sizes is fastest at these: then calls are padded to them, in rows too.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tritone.pipelines.graphs.cuts import cheapest_cuts
from tritone.runtime.graph import Bucket

CALL_COST_S = 32.0  # of any call beside its samples, in seconds of audio: launches, and few rows leave a GPU idle
FULL_CALL_S = 8.0  # of audio: beyond some ten seconds a call on a CPU gains nothing
AS_IT_IS = 1.6  # what a call that is not compiled takes, compared with one that is; with recording it, more than that
LARGE_BYTES = 512 * 2**20  # of a network
SLACK = 1.1  # lengths are rounded up, and utterances are not cut, so some calls get more than their share
EVERY_LENGTH = 2**30  # steps per octave that round no length


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """What one graph call may take. An utterance beyond the limits goes alone.

    `max_padded_s` bounds batch * length in seconds; `max_square_s2` bounds batch * length², as the memory of
    self-attention does; `max_waste` is the part of a call's samples that may be padding; lengths are padded to
    `steps_per_octave` (a power of two) standard ones between each length and its double.
    """

    max_batch: int = 64
    max_padded_s: float = 640.0
    max_square_s2: float = 300.0**2
    max_waste: float = 0.25
    steps_per_octave: int = 16

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {self.max_batch}")
        if not 0 <= self.max_waste < 1:
            raise ValueError(f"max_waste is a fraction below 1, got {self.max_waste}")
        if self.steps_per_octave < 1 or self.steps_per_octave & (self.steps_per_octave - 1):
            raise ValueError(f"steps_per_octave must be a power of two, got {self.steps_per_octave}")

    @classmethod
    def for_device(cls, device: str, network_bytes: int = 0, *, like_even: bool = False) -> "BatchLimits":
        """Limits that were found to serve a device well, for a network whose files have so many bytes.

        A GPU wants large calls and few shapes. A CPU gains nothing beyond some ten seconds a call, loses cache beyond a
        minute, and takes any shape, so there its calls are small and its padding is next to nothing. A large network is
        never in its caches, so there a call had better make much of the weights that it reads, and whatever a new shape
        costs is nothing beside it.

        Where graphs `like_even` batches, because these need no masks, a CPU pads nothing beyond the longest of a call;
        and a call is a little larger, so that 16 utterances of two seconds fit.
        """
        if device != "cpu":
            return cls()
        if like_even:
            longest = 160.0 if network_bytes >= LARGE_BYTES else 36.0
            return cls(max_padded_s=longest, max_waste=0.1, steps_per_octave=EVERY_LENGTH)
        if network_bytes >= LARGE_BYTES:
            return cls(max_padded_s=160.0, max_waste=0.1, steps_per_octave=1024)
        return cls(max_padded_s=32.0, max_waste=0.1, steps_per_octave=64)

    def shared(self, padded_s: float, calls: int) -> "BatchLimits":
        """Limits by which calls that are made `calls` at once on a CPU get about as much each of so many seconds.

        Then no thread waits for the last of them. The calls are no smaller than it takes to be fast.
        """
        count = -(-max(1, math.ceil(padded_s / self.max_padded_s)) // calls) * calls
        return replace(self, max_padded_s=min(self.max_padded_s, max(FULL_CALL_S, SLACK * padded_s / count)))


@dataclass(frozen=True)
class Batch:
    """One graph call: which utterances, the length all of them are padded to, in samples, and the rows of the call.

    Rows beyond the utterances are silence; 0 rows are as many as there are utterances.
    """

    indices: tuple[int, ...]
    num_samples: int
    rows: int = 0

    @property
    def num_rows(self) -> int:
        """The rows of the call."""
        return self.rows or len(self.indices)


def bucket_length(num_samples: int, steps_per_octave: int) -> int:
    """Round a length up to the next standard one: `steps_per_octave` evenly spaced ones between powers of two."""
    if num_samples <= 2 * steps_per_octave:
        return num_samples
    # Counted from num_samples - 1, so that a power of two belongs to the octave that it ends.
    step = (1 << ((num_samples - 1).bit_length() - 1)) // steps_per_octave
    return -(-num_samples // step) * step


def plan_batches(
    lengths: Sequence[int],
    limits: BatchLimits,
    *,
    sample_rate: int,
    min_samples: int = 1,
    max_samples: int | None = None,
    equal: bool = False,
    has_room: Callable[[int, int], bool] = lambda rows, num_samples: True,
) -> list[Batch]:
    """Group utterances for graph calls, longest first.

    Args:
        lengths: samples of each utterance.
        limits: what one call may take.
        sample_rate: in Hz.
        min_samples: the shortest length the graph accepts.
        max_samples: the longest; no utterance may be longer. None where there is no limit.
        has_room: whether there is memory for a call of so many rows of so many samples; one row is made in any case.
        equal: only utterances of one length share a call, and none is padded beyond `min_samples`.

    Returns:
        Batches that together hold every index once.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[Batch] = []
    members: list[int] = []
    padded = used = 0
    for index in order:
        count = len(members) + 1
        fits = (
            count <= limits.max_batch
            and count * padded <= limits.max_padded_s * sample_rate
            and count * padded**2 <= limits.max_square_s2 * sample_rate**2
            and used + lengths[index] >= (1 - limits.max_waste) * count * padded
            and has_room(count, padded)
            and (not equal or max(lengths[index], min_samples) == padded)
        )
        if members and not fits:
            batches.append(Batch(tuple(members), padded))
            members, used = [], 0
        if not members:
            padded = max(lengths[index], min_samples)
            if not equal:
                padded = min(bucket_length(padded, limits.steps_per_octave), max_samples or sys.maxsize)
        members.append(index)
        used += lengths[index]
    if members:
        batches.append(Batch(tuple(members), padded))
    return batches


class Sizes:
    """The sizes that a graph is compiled for, by the lengths that they take. Made once for many plans."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        equal: bool = False,
        has_room: Callable[[int, int], bool] = lambda rows, num_samples: True,
    ) -> None:
        """Take the sizes; nothing is made of those that no length asks for.

        Args:
            equal: only utterances of the length of a size share a call of it.
            has_room: as of `plan_batches`; what it says of a size does not change.
        """
        self.buckets = buckets
        self.equal = equal
        self.has_room = has_room
        self._ends = sorted({each.samples for each in buckets})
        self._rows = {each.rows for each in buckets}  # in whose order plans that cost the same are chosen
        self._found: dict[int, list[Bucket]] = {}

    def fitting(self, length: int) -> list[Bucket]:
        """Of each number of rows the shortest bucket that takes the length; of equal lengths only that length."""
        key = bisect_left(self._ends, length)
        if key == len(self._ends) or (self.equal and self._ends[key] != length):
            return []
        if key not in self._found:
            least, most = self._ends[key], length if self.equal else sys.maxsize
            found: dict[int, Bucket] = {}
            for each in self.buckets:
                shortest = found.get(each.rows)
                fits = least <= each.samples <= most and (shortest is None or each.samples < shortest.samples)
                if fits and self.has_room(each.rows, each.samples):
                    found[each.rows] = each
            self._found[key] = [found[rows] for rows in self._rows if rows in found]
        return self._found[key]


def plan_buckets(
    lengths: Sequence[int],
    limits: BatchLimits,
    sizes: Sizes,
    *,
    sample_rate: int,
    min_samples: int = 1,
    max_samples: int | None = None,
) -> list[Batch]:
    """Group utterances for calls of a graph that is compiled for some sizes, longest first, so that all cost least.

    What is longer than all sizes, or alone cheaper as it is, is not padded to one. Longest first is no loss: of calls
    in the order of their lengths each may as well take the longest utterances that are left, as many as it has rows.

    Args:
        lengths, limits, sample_rate, min_samples, max_samples: as of `plan_batches`; the limits are those of calls that
            are not compiled.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    call_cost = CALL_COST_S * sample_rate

    @cache  # often all are alike
    def of_length(length: int) -> tuple[float, list[tuple[float, Bucket]]]:
        alone = (
            length if sizes.equal else min(bucket_length(length, limits.steps_per_octave), max_samples or sys.maxsize)
        )
        costs = [(each.rows * each.samples + call_cost, each) for each in sizes.fitting(length)]
        return AS_IT_IS * (alone + call_cost), costs

    def options(place: int) -> Iterator[tuple[float, int, Bucket | None]]:
        length = max(lengths[order[place]], min_samples)
        alone, costs = of_length(length)
        yield alone, place + 1, None
        for cost, bucket in costs:
            end = min(len(order), place + bucket.rows)
            if sizes.equal:
                while lengths[order[end - 1]] < length and max(lengths[order[end - 1]], min_samples) < length:
                    end -= 1
            yield cost, end, bucket

    batches: list[Batch] = []
    rest: list[int] = []
    for first, end, chosen in cheapest_cuts(len(order), options):
        indices = tuple(order[first:end])
        if chosen is None:
            rest += indices
        else:
            batches.append(Batch(indices, chosen.samples, chosen.rows))
    if rest:
        others = plan_batches(
            [lengths[index] for index in rest],
            limits,
            sample_rate=sample_rate,
            min_samples=min_samples,
            max_samples=max_samples,
            equal=sizes.equal,
            has_room=sizes.has_room,
        )
        batches = [Batch(tuple(rest[index] for index in each.indices), each.num_samples) for each in others] + batches
    return sorted(batches, key=lambda each: -each.num_samples)
