"""Activity of speakers, frame by frame, to turns, which may overlap.

    activity (frames, speakers) in 0..1  ->  [Turn(recording, start_s, end_s, speaker), ...]

A turn begins where a probability rises above `onset` and ends where it falls below `offset`; then it is padded, pauses
are closed and short turns dropped, as by pyannote.audio (`Binarize`, utils/signal.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritone.diarization.online import LABEL
from tritone.formats.rttm import Turn


@dataclass(frozen=True, kw_only=True)
class TurnRules:
    """How probabilities become turns. Times are in seconds.

    `pad_onset_s`, `pad_offset_s`: a turn begins so much earlier and ends so much later. `min_pause_s`: a shorter pause
    is part of the turn. `min_turn_s`: a shorter turn is dropped.
    """

    onset: float = 0.5
    offset: float = 0.5
    pad_onset_s: float = 0.0
    pad_offset_s: float = 0.0
    min_pause_s: float = 0.0
    min_turn_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.offset <= self.onset:
            raise ValueError(f"offset ({self.offset:g}) must not be above onset ({self.onset:g})")


class ActivityTurns:
    """The turns of one recording or stream. What comes out does not depend on how the frames are divided."""

    def __init__(
        self,
        speakers: Sequence[str],
        frame_s: float,
        *,
        rules: TurnRules | None = None,
        start_s: float = 0.0,
        recording: str = "",
    ) -> None:
        """Begin without frames.

        Args:
            speakers: the label of each column.
            frame_s: from one frame to the next, in seconds.
            start_s: where the first frame begins.
            recording: name of the recording in the turns.
        """
        self._speakers, self._frame_s, self._start_s, self._recording = tuple(speakers), frame_s, start_s, recording
        self._rules = rules or TurnRules()
        self._frames = 0
        self._talks = [False] * len(self._speakers)
        # Start and end of the last turn of each speaker, which may still go on; the end is None while it does.
        self._last: list[tuple[float, float | None] | None] = [None] * len(self._speakers)

    @property
    def speakers(self) -> int:
        """How many there are."""
        return len(self._speakers)

    @property
    def now_s(self) -> float:
        """Where the frames so far end, in seconds."""
        return self._start_s + self._frames * self._frame_s

    @property
    def under_way(self) -> list[Turn]:
        """The turns that are not over yet, up to `now_s`; of a pause that may end, up to where it began."""
        return [
            Turn(self._recording, last[0], self.now_s if last[1] is None else last[1], speaker)
            for speaker, last in zip(self._speakers, self._last, strict=True)
            if last is not None
        ]

    def accept(self, activity: npt.ArrayLike) -> list[Turn]:
        """Take the next frames and return the turns that they end, by their starts.

        Args:
            activity: (frames, speakers), the probability that each one talks.

        Raises:
            ValueError: another number of speakers.
        """
        scores = np.asarray(activity)
        if scores.ndim != 2 or scores.shape[1] != len(self._speakers):
            raise ValueError(f"activity must be (frames, {len(self._speakers)}), got {scores.shape}")
        begin = self._frames
        self._frames += len(scores)
        ended: list[Turn] = []
        for column in range(len(self._speakers)):
            for edge in self._edges(scores[:, column], column):
                ended += self._turned(column, self._start_s + (begin + edge) * self._frame_s)
            last = self._last[column]
            if last is not None and last[1] is not None and self._apart(last[1], self.now_s):
                ended += self._over(column)
        return sorted(ended, key=lambda each: each.start_s)

    def finish(self) -> list[Turn]:
        """End the stream and return the turns under way, by their starts."""
        ended: list[Turn] = []
        for column, last in enumerate(self._last):
            if last is not None:
                self._last[column] = (last[0], self.now_s if last[1] is None else last[1])
                ended += self._over(column)
        return sorted(ended, key=lambda each: each.start_s)

    def _edges(self, scores: npt.NDArray[np.floating], column: int) -> list[int]:
        """Frames in which a speaker begins or ends, in turn."""
        # The last frame above the onset or below the offset decides.
        decides = (scores > self._rules.onset) | (scores < self._rules.offset)
        last = np.maximum.accumulate(np.where(decides, np.arange(len(scores)), -1)) if len(scores) else decides
        talks = np.where(last >= 0, scores[last] > self._rules.onset, self._talks[column])
        before, self._talks[column] = self._talks[column], bool(talks[-1]) if len(talks) else self._talks[column]
        return [int(edge) for edge in np.flatnonzero(np.diff(talks.astype(np.int8), prepend=np.int8(before)))]

    def _turned(self, column: int, at_s: float) -> list[Turn]:
        """A speaker begins or ends; returns the turn before, if it is over with that."""
        last = self._last[column]
        if last is not None and last[1] is None:
            self._last[column] = (last[0], at_s + self._rules.pad_offset_s)
            return []
        ended = self._over(column) if last is not None and last[1] is not None and self._apart(last[1], at_s) else []
        kept = self._last[column]
        self._last[column] = (max(0.0, at_s - self._rules.pad_onset_s) if kept is None else kept[0], None)
        return ended

    def _apart(self, end_s: float, next_s: float) -> bool:
        """Whether a turn that begins at `next_s` or later is another one than that which ended."""
        pause_s = next_s - self._rules.pad_onset_s - end_s
        return pause_s > 0 and pause_s >= self._rules.min_pause_s

    def _over(self, column: int) -> list[Turn]:
        last, self._last[column] = self._last[column], None
        assert last is not None
        start_s, end_s = last
        assert end_s is not None
        if end_s - start_s < self._rules.min_turn_s:
            return []
        return [Turn(self._recording, start_s, end_s, self._speakers[column])]


def turns_of_activity(
    activity: npt.ArrayLike,
    frame_s: float,
    *,
    speakers: Sequence[str] | None = None,
    rules: TurnRules | None = None,
    start_s: float = 0.0,
    recording: str = "",
) -> list[Turn]:
    """The turns of a whole recording, by their starts; turns of different speakers may overlap.

    Args:
        activity: (frames, speakers), the probability that each one talks.
        speakers: the label of each column; speaker1, speaker2 and so on if not given.
        frame_s, rules, start_s, recording: as of `ActivityTurns`.
    """
    scores = np.asarray(activity)
    labels = [LABEL.format(column + 1) for column in range(scores.shape[-1])] if speakers is None else speakers
    turns = ActivityTurns(labels, frame_s, rules=rules, start_s=start_s, recording=recording)
    return sorted([*turns.accept(scores), *turns.finish()], key=lambda each: each.start_s)
