"""The sizes of calls of an attention decoder on a GPU: few, so that calls are recorded, or compiled beforehand.

    parts of utterances to be scored, compiled sizes  ->  next_call  ->  how many of the parts, and the size of the call
    rows and frames of the encoder's calls            ->  usual_sizes  ->  what to compile

A decoder is called with rows (utterances) of frames, and with hypotheses of places: a place for each token, and one for
the end. Each of these is padded.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STEP = 16  # places, at least; tensor cores want multiples of 8
STEPS_PER_OCTAVE = 4
AS_IT_IS = 1.6  # what a call that is not compiled takes, compared with one that is
CALL_COST = 2000  # of any call beside its places, in places
CUT_ROWS = 16  # calls of fewer rows are padded; of those with more, a quarter that is empty goes into a smaller call
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

    @property
    def cost(self) -> int:
        """About what a call of this size costs when it is compiled, in places."""
        return CALL_COST + self.rows * self.hypotheses * self.places

    def holds(self, other: "DecoderSize", *, held: bool) -> bool:
        """Whether a call of another size can be padded to this one; frames that are `held` on the device cannot."""
        frames = self.frames == other.frames if held else self.frames >= other.frames
        wide = self.hypotheses >= other.hypotheses and self.places >= other.places
        return frames and wide and self.rows >= other.rows


def rounded(number: int) -> int:
    """The next of few numbers: multiples of `STEP`, with `STEPS_PER_OCTAVE` between a power of two and its double."""
    step = max(STEP, (1 << max(0, number - 1).bit_length()) // (2 * STEPS_PER_OCTAVE))
    return max(1, -(-number // step)) * step


def next_call(
    parts: Sequence[tuple[int, int, int]],
    compiled: Sequence[DecoderSize],
    fits: Callable[[DecoderSize], bool],
    *,
    held: bool,
) -> tuple[int, DecoderSize]:
    """Choose the next call: the one that costs least for each part that it takes.

    Args:
        parts: frames, hypotheses and places of each that is left; the call takes the first ones.
        compiled: the sizes that the decoder is compiled for.
        fits: whether a size that is not compiled is within the limits of a call; one row always goes.
        held: whether frames are on the device already, in rows of the same length.
    """

    def of(rows: int) -> DecoderSize:
        frames, hypotheses, places = (max(column) for column in zip(*parts[:rows], strict=True))
        return DecoderSize(rows, frames if held else rounded(frames), hypotheses, rounded(places))

    fit = (
        place
        for place, part in enumerate(parts)
        if any(each.holds(DecoderSize(1, *part), held=held) for each in compiled)
    )
    if outside := next(fit, 0):  # only those in front are beyond all compiled sizes
        parts = parts[:outside]
    rows = 1 << (len(parts) - 1).bit_length()
    while rows > 1 and not fits(of(rows)):
        rows //= 2
    if rows >= CUT_ROWS and len(parts) <= rows * 3 // 4:
        rows //= 2
    count, size = min(rows, len(parts)), of(rows)
    best = AS_IT_IS * size.cost / count, count, size
    for each in compiled:
        taken = min(each.rows, len(parts))
        frames, hypotheses, places = (max(column) for column in zip(*parts[:taken], strict=True))
        if each.holds(DecoderSize(taken, frames, hypotheses, places), held=held):
            best = min(best, (each.cost / taken, taken, each))
    return best[1:]


def usual_sizes(rows: int, frames: int, seconds: float, hypotheses: int) -> list[DecoderSize]:
    """The sizes to compile for batches of so many utterances of so many frames and seconds; none for small batches."""
    if rows < LEAST_ROWS:
        return []
    least, most = (max(1.0, rate * seconds) for rate in TOKENS_PER_S)
    count = math.floor(math.log(most / least, RATIO)) + 1
    places = {rounded(math.ceil(least * RATIO**step)) for step in range(count)} | {rounded(math.ceil(most))}
    rows = min(MOST_ROWS, 1 << (rows.bit_length() - 1))
    return [DecoderSize(rows, frames, hypotheses, each) for each in sorted(places)]
