"""A beam search whose hypotheses are on a device: here are their tokens with their times, as far as they differ.

    back-pointers of further frames (frames, beam), scores of the hypotheses after them  ->  hypotheses, best first

What `ModifiedBeam` is for a search on the host. The hypotheses are known by their ranks in the device's beam.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.later import later
from tritone.search.beam.beam import Beam, grown
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import HISTORY, SearchOptions

if TYPE_CHECKING:
    from tritone.search.transducer import traced
else:
    traced = later("traced")

MAX_DEVICE_BEAM = 16  # wider ones are searched on the CPU
LISTS = np.dtype([(name, np.int64) for name in ("marks", "marks_room", "num_marks", "num_frames")], align=True)


class DeviceState:
    """A greedy search whose predictor has a state, as `StatefulState` where the state stays on the device.

    `row`: of the device's `StateRows`, which has the state; 0 before the first frames, and always in whole utterances.
    """

    def __init__(self, options: SearchOptions) -> None:
        """Start before the first token; of the options a penalty and a number of symbols are used."""
        assert options.max_symbols is not None
        self.blank_penalty, self.max_symbols = options.blank_penalty, options.max_symbols
        self.num_frames = self.ahead = self.symbols = self.row = 0


class DeviceBeam(Beam):
    """A modified beam search of one utterance or stream on the device, with a predictor that has a state.

    `row`: of the device's memory, which has its hypotheses; 0 before the first frames. `share`: of the tables of what
    hotwords add, if it has any. `kept`: bits of the hypotheses that are not dropped.
    """

    def __init__(self, options: SearchOptions, *, share: Any = None, history: int | None = HISTORY) -> None:
        """Start with the empty hypothesis.

        Args:
            options: the beam, a penalty and a temperature are used.
            history: as of `Beam`.
        """
        beam = options.beam
        super().__init__(LISTS, num_marks=8 * beam, history=history)
        self._point_at(marks=self._marks)
        self._traced = traced
        self.beam, self.blank_penalty, self.temperature = beam, options.blank_penalty, options.temperature
        self.share, self.row, self.kept = share, 0, -1
        self._lasts = np.full(beam, -1, np.int32)  # marks of the last tokens
        self._scores = np.array([[0.0] + [-np.inf] * (beam - 1), [0.0] * beam, [0.0] * beam])
        self._hashes = np.zeros(beam, np.int64)

    @property
    def entry(self) -> int:
        """The row of the device's tables that it begins with; -1 when it has begun."""
        if self.num_frames:
            return -1
        return 0 if self.share is None else int(self.share.start)

    def ready(self, count: int) -> int:
        """Decide if it is time to, and return how many of `count` frames can follow; without any nothing is decided."""
        if count:  # else it would depend on the company whether the last frames were followed by a decision
            self._decide_if_due()
        return self._until_decision(count)

    def follow(
        self,
        scores: npt.NDArray[np.float64],
        hashes: npt.NDArray[np.int64],
        found: npt.NDArray[np.int32],
        num_frames: int,
    ) -> None:
        """Take what the device found in further frames.

        Args:
            scores, hashes, found: of `StatefulBeamLoop.finish`, of this row.
            num_frames: how many of the frames are this row's.
        """
        needed, used = num_frames * self.beam, int(self._record["num_marks"])
        if used + needed > len(self._marks):
            self._make_room()
            used = int(self._record["num_marks"])
            self._point_at(marks=grown(self._marks, used + needed))
        self._record["num_marks"] = self._traced.follow(
            self._marks, used, self._lasts, found, self.num_frames, num_frames
        )
        self._record["num_frames"] += num_frames
        self._scores, self._hashes, self.kept = scores, hashes, -1

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        ranks = self._alive()
        log_probs, bonuses, endings = self._scores[:, ranks]
        if final:
            bonuses = bonuses + endings
        # Of those with the same tokens, which differ in the frame that they go on with, the best has the times.
        order = np.argsort(-log_probs, kind="stable")
        _, first, group = np.unique(self._hashes[ranks[order]], return_index=True, return_inverse=True)
        sums = np.full(len(first), -np.inf)
        np.logaddexp.at(sums, group, log_probs[order])
        best = order[first]
        bonuses, marks = bonuses[best], self._lasts[ranks[best]]
        return self._ranked(sums, bonuses, self._ranks_by(sums + bonuses, marks), marks, count)

    def _alive(self) -> npt.NDArray[np.int64]:
        """The ranks of the hypotheses that there are."""
        bits = np.array([self.kept]) >> np.arange(self.beam) & 1
        return np.flatnonzero((self._scores[0] > -np.inf) & (bits > 0))

    def _ranks_by(self, totals: npt.NDArray[np.float64], marks: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Totals over lengths, which count the token that all texts start with."""
        before = self._num_taken + self._num_settled + 1
        scores: npt.NDArray[np.float64] = totals / (before + np.diff(self._ends(marks), prepend=0))
        return scores

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self._lasts, self._scores, self._hashes

    def _decide(self, before: int) -> None:
        ranks = self._alive()
        totals = self._scores[0, ranks] + self._scores[1, ranks]
        best = int(ranks[np.argmax(self._ranks_by(totals, self._lasts[ranks]))])
        keeps = self._traced.decide(self._marks, self._lasts, ranks, best, before)
        self.kept = sum(1 << int(rank) for rank in ranks[keeps])

    def _drop(self, settled: npt.NDArray[Any]) -> int:
        ranks = self._alive()
        lists = np.ascontiguousarray(self._lasts[ranks])
        num_marks, num_settled = self._traced.drop(self._marks, int(self._record["num_marks"]), lists, settled)
        self._record["num_marks"], self._lasts[ranks] = num_marks, lists
        return int(num_settled)

    def _grow(self) -> None:
        num_marks = int(self._record["num_marks"])
        self._point_at(marks=grown(self._marks, 2 * (num_marks + self.beam)))
