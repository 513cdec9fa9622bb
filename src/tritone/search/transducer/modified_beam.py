"""Modified beam search: at most one token a frame, and alignments of the same tokens are added up.

    encoder_out (batch, frames, dim), one ModifiedBeam for each row  ->  hypotheses with scores and token times

After each frame the `beam` best of all hypotheses with one token or a blank more are kept; those that then say the same
are one, with the sum of their probabilities and the times of the better one. What a scorer (language model, hotwords)
adds to a token counts from the next frame on. Scores are float64.

Logits that are not finite are ruled out, and a frame that rules out everything is passed over.

Source: `modified_beam_search` of icefall (egs/librispeech/ASR/pruned_transducer_stateless2/beam_search.py), whose
n-best, scores and times it gives. The best hypothesis is the one whose log-probability divided by its length is
largest; the length counts the tokens of the start context.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tritone.search.beam.beam import HISTORY
from tritone.search.beam.prefix_tree import PrefixTree
from tritone.search.transducer.batch import TransducerBeam, check_scorer
from tritone.search.transducer.predictor import PredictorCache

if TYPE_CHECKING:
    from tritone.search.scoring.scorer import Scorer


class ModifiedBeam(PrefixTree, TransducerBeam):
    """A modified beam search in one utterance or stream."""

    spare_frames = 32

    def __init__(
        self,
        cache: PredictorCache,
        *,
        beam: int,
        blank_penalty: float = 0.0,
        temperature: float = 1.0,
        scorer: "Scorer | None" = None,
        history: int | None = HISTORY,
    ) -> None:
        """Start with the empty hypothesis.

        Args:
            cache: of the predictor of the network that is searched with.
            beam: hypotheses kept after each frame, at least 1.
            blank_penalty: is subtracted from the blank's logit.
            temperature: divides the logits, above 0.
            scorer, history: see `PrefixTree`.
        """
        from tritone.search.transducer import modified_kernel

        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature must be above 0, got {temperature}")
        check_scorer(scorer, cache.network)
        size = cache.context_size
        spare = self.spare_frames * beam
        super().__init__(beam=beam, scorer=scorer, history=history, num_nodes=2 * spare, state_size=size)
        self.cache, self.kernel, self.max_rows = cache, modified_kernel, beam
        self._frame_nodes = self._frame_marks = spare
        self._states[0, 1, :size] = cache.network.start
        self._record["blank_penalty"], self._record["temperature"] = blank_penalty, temperature

    def _frames_of_room(self) -> int:
        used = max(int(self._record["num_nodes"]), int(self._record["num_marks"]))
        return (min(len(self._nodes), len(self._marks)) - used) // self.beam

    def _scores(self, totals: npt.NDArray[np.float64], marks: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        before = self._num_taken + self._num_settled + self.cache.context_size
        scores: npt.NDArray[np.float64] = totals / (before + np.diff(self._ends(marks), prepend=0))
        return scores
