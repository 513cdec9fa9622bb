"""The sizes that a graph is compiled for: buckets of rows and samples, chosen so that padding to them costs little.

    lengths of recordings  ->  choose_buckets  ->  Bucket(rows, samples), ...
    "64x10,32x16.7"        ->  read_sizes      ->  the same

A call is padded to the samples of its bucket, and to some number of rows up to those of its bucket. A GPU is at its
best from some minutes of audio a call on, so buckets of short audio have more rows; and for what comes alone there are
some of a single row.
"""

import math
import random
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tritone.runtime.graph import ROW_STEPS, Bucket, largest

SIZE = re.compile(r"(\d{1,5})x(\d{1,6}(?:\.\d{1,6})?)s?")
LEAST_ROWS, MOST_ROWS = 8, 128
CALL_S = 640.0  # seconds of audio in a call of many rows
STEP_ROWS = 256  # of a step of streams
LENGTHS = 12  # different ones
CANDIDATES = 200  # lengths between which the best are chosen
GRANULE_S = 0.08  # lengths are rounded up to this: encoder frames of 40 ms or 80 ms then fit evenly
USUAL_MEAN_S, USUAL_SIGMA, USUAL_COUNT = 8.0, 0.6, 2000  # speech read or dictated: lognormal


@dataclass(frozen=True)
class Choice:
    """Buckets, and the share of padding in what is computed for each of their lengths, where that is known.

    It counts padding of utterances to the length of a bucket. Rows that stay empty come to it: few, as there are calls
    of many numbers of rows.
    """

    buckets: tuple[Bucket, ...]
    padding: Mapping[int, float] = field(default_factory=dict)


def choose_buckets(
    lengths_s: Sequence[float], sample_rate: int, *, count: int = LENGTHS, tail: int = 0, min_samples: int = 1
) -> Choice:
    """Choose buckets for audio of these lengths.

    Args:
        lengths_s: of recordings like those to come, in seconds.
        count: different lengths of buckets; every second one has one of a single row, too.
        tail, min_samples: the silence that every utterance gets, and the least that the graph takes, in samples.

    Raises:
        ValueError: there are no lengths, or `count` is below 1.
    """
    if not lengths_s or count < 1:
        raise ValueError(f"buckets are chosen for at least one length and count 1, got {len(lengths_s)} and {count}")
    granule = max(1, round(GRANULE_S * sample_rate))
    samples = sorted(max(min_samples, round(each * sample_rate) + tail) for each in lengths_s)
    ends = least_padding([-(-each // granule) * granule for each in samples], count)
    held = {end: list(group) for end, group in groupby(samples, lambda each: ends[bisect_left(ends, each)])}
    buckets = {Bucket(rows_for(end / sample_rate), end) for end in ends} | {Bucket(1, end) for end in ends[::-2]}
    return Choice(tuple(sorted(buckets)), {end: 1 - sum(each) / (end * len(each)) for end, each in held.items()})


def least_padding(lengths: Sequence[int], count: int) -> list[int]:
    """Up to `count` lengths, ascending, so that padding each of some to the next of them costs least; exact.

    Args:
        lengths: in ascending order. If there are more than `CANDIDATES`, only as many of them are considered.
    """
    places = range(len(lengths) - 1, -1, -max(1, len(lengths) // CANDIDATES))
    candidates = sorted({lengths[place] for place in places})
    at_most = [bisect_left(lengths, each + 1) for each in candidates]  # lengths that fit into each
    # cost[i]: all that fits into candidate i padded, with the lengths chosen so far of which it is the last.
    cost = [end * held for end, held in zip(candidates, at_most, strict=True)]
    choices = []
    for _ in range(1, min(count, len(candidates))):
        best, before = list(cost), [-1] * len(candidates)
        for last, end in enumerate(candidates):
            for first in range(last):
                cost_here = cost[first] + end * (at_most[last] - at_most[first])
                if cost_here < best[last]:
                    best[last], before[last] = cost_here, first
        cost = best
        choices.append(before)
    chosen, place = [], len(candidates) - 1
    for before in reversed(choices):
        if before[place] >= 0:  # else one length less costs the same
            chosen.append(candidates[place])
            place = before[place]
    return sorted([*chosen, candidates[place]])


def rows_for(seconds: float) -> int:
    """Rows of the calls that make full use of a GPU."""
    return min(
        (step for step in ROW_STEPS if LEAST_ROWS <= step <= MOST_ROWS), key=lambda step: abs(step - CALL_S / seconds)
    )


def usual_lengths(longest_s: float) -> list[float]:
    """Lengths in seconds as those of speech usually are, none above `longest_s`; the same each time."""
    source = random.Random(7)
    middle = math.log(USUAL_MEAN_S) - USUAL_SIGMA**2 / 2
    return [min(source.lognormvariate(middle, USUAL_SIGMA), longest_s) for _ in range(USUAL_COUNT)]


def read_sizes(text: str, sample_rate: int, *, tail: int = 0, min_samples: int = 1) -> tuple[Bucket, ...]:
    """Read "64x10,32x16.7": rows, at most, and seconds of audio, separated by commas; of one length the most rows.

    Raises:
        ValueError: it is nothing like that.
    """
    found = set()
    for part in text.replace(" ", "").split(","):
        match = SIZE.fullmatch(part)
        if match is None or int(match[1]) < 1 or float(match[2]) <= 0:
            raise ValueError(f"a size is rows x seconds, like 64x10 or 1x16.7, several with commas; got {part!r}")
        found.add(Bucket(int(match[1]), max(min_samples, math.ceil(float(match[2]) * sample_rate) + tail)))
    return tuple(largest(found))
