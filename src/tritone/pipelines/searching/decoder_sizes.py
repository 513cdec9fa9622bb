"""The sizes of calls of an attention decoder on a GPU: few, so that calls are recorded, or compiled beforehand.

    parts of utterances to be scored, compiled sizes  ->  plan_calls  ->  how many of the parts, and size, of each call
    rows and frames of the encoder's calls            ->  usual_sizes  ->  what to compile

A decoder is called with rows (utterances) of frames, and with hypotheses of places: a place for each token, and one for
the end. Each of these is padded.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, islice

from tritone.pipelines.graphs.cuts import cheapest_cuts

STEP = 16  # places, at least; tensor cores want multiples of 8
STEPS_PER_OCTAVE = 4
AS_IT_IS = 1.6  # what a call that is not compiled takes, compared with one that is
CALL_COST = 2000  # of any call beside its places, in places
MOST_ROWS = 32  # of compiled calls: a GPU is busy with them, and a batch leaves few rows empty
LEAST_ROWS = 8  # calls of fewer utterances are recorded, but not compiled
TOKENS_PER_S = 4.0, 9.5  # of speech in word pieces or characters of Chinese; what has more is not compiled
RATIO = 1.3  # between the numbers of places that are compiled

Shape = tuple[int, ...]


@dataclass(frozen=True, order=True)
class DecoderSize:
    """Rows, frames of each, hypotheses of each, and places of these: tokens and the end."""

    rows: int
    frames: int
    hypotheses: int
    places: int

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> "DecoderSize":
        """The size of a call whose inputs have these shapes."""
        rows, hypotheses, tokens = shapes["hypotheses"]
        return cls(rows, shapes["encoder_out"][1], hypotheses, tokens + 1)

    def shapes(self, output_dim: int) -> dict[str, Shape]:
        """The shapes of the decoder's inputs; `output_dim`: of the encoder."""
        return {
            "encoder_out": (self.rows, self.frames, output_dim),
            "num_frames": (self.rows,),
            "hypotheses": (self.rows, self.hypotheses, self.places - 1),
            "num_tokens": (self.rows, self.hypotheses),
        }

    @cached_property
    def cost(self) -> int:
        """About what a call of this size costs when it is compiled, in places."""
        return CALL_COST + self.rows * self.hypotheses * self.places

    def holds(self, frames: int, hypotheses: int, places: int, *, held: bool) -> bool:
        """Whether rows can be padded to the size's own; frames that are `held` on the device cannot."""
        wide = self.frames == frames if held else self.frames >= frames
        return wide and self.hypotheses >= hypotheses and self.places >= places


def rounded(number: int) -> int:
    """The next of few numbers: multiples of `STEP`, with `STEPS_PER_OCTAVE` between a power of two and its double."""
    step = max(STEP, (1 << max(0, number - 1).bit_length()) // (2 * STEPS_PER_OCTAVE))
    return max(1, -(-number // step)) * step


def plan_calls(
    parts: Sequence[tuple[int, int, int]],
    compiled: Sequence[DecoderSize],
    fits: Callable[[DecoderSize], bool],
    *,
    held: bool,
) -> list[tuple[int, DecoderSize]]:
    """Choose the calls that cost least together: how many of the parts, in their order, each takes, and its size.

    Args:
        parts: frames, hypotheses and places of each; those with most frames first, then with most places.
        compiled: the sizes that the decoder is compiled for.
        fits: whether a size that is not compiled is within the limits of a call; one row always goes.
        held: whether frames are on the device already, in rows of the same length.
    """
    able: dict[int, list[DecoderSize]] = {}  # by rows, the cheapest first
    for each in sorted(compiled, key=lambda size: size.cost):
        able.setdefault(each.rows, []).append(each)
    steps = sorted({*able, *(1 << power for power in range((len(parts) - 1).bit_length() + 1))})
    hypotheses = max((part[1] for part in parts), default=0)
    longest = [*accumulate((part[2] for part in reversed(parts)), max)][::-1]  # of each part and those behind it

    @cache  # many are alike
    def of_part(frames: int, places: int) -> list[tuple[float, DecoderSize]]:
        found: list[tuple[float, DecoderSize]] = []
        for rows in steps:
            fitting = (each for each in able.get(rows, ()) if each.holds(frames, hypotheses, places, held=held))
            found += [(size.cost, size) for size in islice(fitting, 1)]
            size = DecoderSize(rows, frames if held else rounded(frames), hypotheses, places)
            if rows.bit_count() == 1 and (rows == 1 or fits(size)):
                found.append((AS_IT_IS * size.cost, size))
        return found

    def options(first: int) -> Iterator[tuple[float, int, DecoderSize]]:
        for cost, size in of_part(parts[first][0], rounded(longest[first])):
            yield cost, min(first + size.rows, len(parts)), size

    return [(end - first, size) for first, end, size in cheapest_cuts(len(parts), options)]


def usual_sizes(rows: int, frames: int, seconds: float, hypotheses: int) -> list[DecoderSize]:
    """The sizes to compile for batches of so many utterances of so many frames and seconds; none for small batches."""
    if rows < LEAST_ROWS:
        return []
    least, most = (max(1.0, rate * seconds) for rate in TOKENS_PER_S)
    count = math.floor(math.log(most / least, RATIO)) + 1
    places = {rounded(math.ceil(least * RATIO**step)) for step in range(count)} | {rounded(math.ceil(most))}
    rows = min(MOST_ROWS, 1 << (rows.bit_length() - 1))
    return [DecoderSize(rows, frames, hypotheses, each) for each in sorted(places)]
