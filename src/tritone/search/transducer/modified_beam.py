"""Modified beam search: at most one token a frame, and alignments of the same tokens are added up.

    encoder_out (batch, frames, dim), one ModifiedBeam for each row  ->  hypotheses with scores and token times

After each frame the `beam` best of all hypotheses with one token or a blank more are kept; those that then say the same
are one, with the sum of their probabilities and the times of the better one. What a scorer (language model, hotwords)
adds to a token counts from the next frame on. Scores are float64.

**With durations** (a token-and-duration transducer, TDT) each hypothesis goes on by a token or a blank and one of the
durations, 1 frame at least. So each has its own place in time: those that are ahead of a frame wait, and take part with
what they have when the best are chosen. Only those with the same tokens at the same place become one; in the result all
with the same tokens do.

**With a predictor that has a state** what a scorer adds counts at once, so hotwords raise tokens that the beam would
not have kept, and even a beam of one follows them: greedy search with hotwords. A beam of one without a scorer is
greedy search with one token a frame at most.

Logits that are not finite are ruled out, and a frame that rules out everything is passed over.

Source: `modified_beam_search` of icefall (egs/librispeech/ASR/pruned_transducer_stateless2/beam_search.py), whose
n-best, scores and times it gives for stateless predictors. The best hypothesis is the one whose log-probability divided
by its length is largest; the length counts the tokens of the start context. Durations: "Efficient Sequence Transduction
by Jointly Predicting Tokens and Durations", arXiv 2304.06795; upstream has other beams for these models, so results are
compared with a plain search in Python (tests/search/test_stateful_beam.py), not with upstream's.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.later import later
from tritone.search.beam.prefix_tree import PrefixTree
from tritone.search.options import HISTORY
from tritone.search.transducer.batch import TransducerBeam, check_scorer
from tritone.search.transducer.memory import StatefulPredictor
from tritone.search.transducer.predictor import PredictorCache

if TYPE_CHECKING:
    from tritone.search.scoring.scorer import Scorer
    from tritone.search.transducer import modified_kernel
else:
    modified_kernel = later("modified_kernel")


class ModifiedBeam(PrefixTree, TransducerBeam):
    """A modified beam search in one utterance or stream."""

    spare_frames = 32
    remembered: Sequence[npt.NDArray[Any]] = ()  # of a predictor with a state, see `Memory`

    def __init__(
        self,
        cache: PredictorCache | StatefulPredictor,
        *,
        beam: int,
        blank_penalty: float = 0.0,
        temperature: float = 1.0,
        scorer: "Scorer | None" = None,
        history: int | None = HISTORY,
    ) -> None:
        """Start with the empty hypothesis.

        Args:
            cache: of the predictor of the network that is searched with, or that predictor if it has a state.
            beam: hypotheses kept after each frame, at least 1.
            blank_penalty: is subtracted from the blank's logit.
            temperature: divides the logits, above 0.
            scorer, history: see `PrefixTree`.
        """
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature must be above 0, got {temperature}")
        check_scorer(scorer, cache.network)
        size = cache.context_size
        spare = self.spare_frames * beam
        super().__init__(beam=beam, scorer=scorer, history=history, num_nodes=2 * spare, state_size=size)
        self.cache, self.kernel, self.max_rows = cache, modified_kernel, beam
        self._frame_nodes = self._frame_marks = spare
        if isinstance(cache, StatefulPredictor):
            vector, states = cache.network.first
            self.remembered = [vector, *map(np.asarray, states)]
            self._states[0, 1, 0] = 0
        else:
            self._states[0, 1, :size] = cache.network.start
        self._record["blank_penalty"], self._record["temperature"] = blank_penalty, temperature

    def remember(self, rows: Sequence[npt.NDArray[Any]]) -> None:
        nodes = np.unique(self._alive()["node"])
        numbers = self._states[nodes, 1, 0]
        self.remembered = [each[numbers] for each in rows]
        self._states[: int(self._record["num_nodes"]), 1, 0] = -1
        self._states[nodes, 1, 0] = np.arange(len(nodes))

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return *super()._arrays(), *self.remembered

    def _distinct(self, alive: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], Any]:
        if not self.cache.durations:
            return super()._distinct(alive)
        order = np.argsort(-alive["score"], kind="stable")
        nodes, first, group = np.unique(alive["node"][order], return_index=True, return_inverse=True)
        sums = np.full(len(nodes), -np.inf)
        np.logaddexp.at(sums, group, alive["score"][order])
        return sums, order[first]

    def _frames_of_room(self) -> int:
        used = max(int(self._record["num_nodes"]), int(self._record["num_marks"]))
        return (min(len(self._nodes), len(self._marks)) - used) // self.beam

    def _scores(self, totals: npt.NDArray[np.float64], marks: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        before = self._num_taken + self._num_settled + self.cache.context_size
        scores: npt.NDArray[np.float64] = totals / (before + np.diff(self._ends(marks), prepend=0))
        return scores
