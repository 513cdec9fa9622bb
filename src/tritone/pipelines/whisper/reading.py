"""What the host reads of texts that are written on a device: their tokens, probabilities and attention.

outputs of steps  ->  History  ->  Written of each text that has ended
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.bundle.attending import AttendingPart as Decoder
from tritone.pipelines.whisper.course import Align, Aligned
from tritone.pipelines.whisper.driving import RecordingUnderWay
from tritone.pipelines.whisper.windows import FRAMES_PER_STEP
from tritone.runtime.graph import Array
from tritone.search.whisper.alignment import starts_in
from tritone.search.whisper.decoding import Attention, Beam, Job, Written, likeliest

PLAIN_OUTPUTS, OUTPUTS = 5, 11  # of a step and row; the further ones are of beams


class Late(Protocol):
    """What is on its way from the device, see `runtime.cuda.steps.Late`."""

    @property
    def is_there(self) -> bool: ...

    def array(self) -> Array: ...


class Attending(Protocol):
    """The part of the device's side that is used here, see `device.OnDevice`."""

    rows: int
    context: int
    ahead: int

    def attention(self, rows: Sequence[int], positions: int) -> Late: ...


@dataclass(eq=False)
class TextUnderWay:
    """A text under way or waiting: what is to be written, its rows, and the first step that they are in."""

    recording: RecordingUnderWay
    job: Job
    answer: Callable[[Written], object]
    rows: range = range(0)
    first: int = 0
    left: int = 0  # rows that have not ended
    ends: dict[int, int] = field(default_factory=dict)  # rows to their last steps
    beam: Beam | None = None


class History:
    """The outputs of the last steps, as many as a text can take."""

    def __init__(self, device: Attending, special: Decoder) -> None:
        """Take the device, for what its texts attended to, and the ids of the model."""
        self._device, self._special = device, special
        self._kept = np.zeros((device.context + 4 * device.ahead, OUTPUTS, device.rows), np.float32)

    def keep(self, number: int, found: Array) -> None:
        """Keep the outputs of a step, (outputs, rows)."""
        self._kept[number % len(self._kept), : len(found), : found.shape[1]] = found

    def follow(self, text: TextUnderWay, number: int, found: Array) -> Written | None:
        """Take the likeliest continuations of a beam of a step; returns the best text once it is over."""
        beam, rows = text.beam, text.rows
        if beam is None or found[0, rows.start] < 0:
            return None  # its prompt is being read
        best = found[PLAIN_OUTPUTS:, rows.start : rows.stop].reshape(2, 3, len(rows)).transpose(2, 0, 1).reshape(-1, 3)
        beam.take((int(source), int(token), float(total)) for token, source, total in best.tolist())
        if not beam.is_over:
            return None
        written, steps = beam.written(self._silence(text, rows.start, number)), beam.best.steps
        totals = [0.0, *(total for _, total in steps)]
        sources = [rows.start + source for source, _ in steps]
        return self._with_attention(text, written, sources, np.diff(totals))

    def samples(self, text: TextUnderWay) -> Written:
        """The likeliest of a text's rows."""
        found: list[tuple[Written, int, int]] = []
        for row, last in text.ends.items():
            lines = self._lines(text, last)
            ids = self._kept[lines, 0, row]
            chosen = lines[ids >= 0]
            tokens = [int(token) for token in ids[ids >= 0].tolist()]
            if tokens and tokens[-1] == self._special.eot:
                tokens.pop()
            log_prob = float(self._kept[chosen, 1, row].sum(dtype=np.float64))
            silence = self._silence(text, row, last)
            found.append((Written(tokens=tuple(tokens), log_prob=log_prob, no_speech_prob=silence), row, last))
        best = likeliest([written for written, _, _ in found])
        row, last = next((row, last) for written, row, last in found if written is best)
        lines = self._lines(text, last)
        plain = self._kept[lines[self._kept[lines, 0, row] >= 0], 4, row]
        return self._with_attention(text, best, [row] * (len(best.tokens) + 1), plain)

    def _lines(self, text: TextUnderWay, last: int) -> npt.NDArray[np.int64]:
        """Where the history of a text's steps is."""
        return np.arange(text.first, last + 1) % len(self._kept)

    def _silence(self, text: TextUnderWay, row: int, last: int) -> float:
        """The probability of silence, which one of the steps has returned."""
        if text.job.no_speech is None:
            return 0.0
        return float(self._kept[self._lines(text, last), 2, row].sum())

    def _with_attention(
        self, text: TextUnderWay, written: Written, rows: Sequence[int], log_probs: npt.NDArray[Any]
    ) -> Written:
        """The same with what was kept; `rows`: in which each token, and perhaps the end, was written."""
        job, window, count = text.job, text.recording.window, len(written.tokens)
        if not job.keeps_attention or window is None or not count:
            return written
        rows = [*rows, rows[-1]][: count + 1]
        before = len(job.prompt) - job.sot - 1  # tokens from the start token on that are read and write nothing
        late = self._device.attention([text.rows.start] * before + rows, len(window) // FRAMES_PER_STEP)
        # A time is no plain token: what is returned for it is no log-probability.
        probabilities = np.exp(np.minimum(log_probs[:count], 0.0)).astype(np.float32)
        return replace(written, attention=Attention(lambda: late.array()[before:], probabilities))


def aligned(ask: Align) -> Aligned:
    """Where tokens begin, of the attention that was kept of them."""
    kept = ask.written.attention
    assert kept is not None
    places = [*ask.places, ask.places[-1] + 1]
    starts = ask.first + starts_in(kept.matrix()[places, ask.first : ask.positions])
    return Aligned(starts, kept.probabilities[list(ask.places)])
