"""The probabilities of a CTC model's tokens in every frame, to look at."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class FrameScores:
    """Log-probabilities of one utterance, frame by frame.

    `log_probs`: (frames, vocab) float32, natural logarithms; each row sums to 1 as probabilities. The silence that
    serving puts behind every utterance has frames too. `frame_s`: from the start of a frame to that of the next one, in
    seconds. `tokens`: how each column is written; `blank` is the column of no token.
    """

    log_probs: npt.NDArray[np.float32]
    frame_s: float
    tokens: tuple[str, ...]
    blank: int

    @property
    def start_s(self) -> npt.NDArray[np.float64]:
        """(frames,) where each frame begins, in seconds: the scale that transcripts give times on."""
        return self.frame_s * np.arange(len(self.log_probs))

    @property
    def best(self) -> list[str]:
        """The most probable token of each frame, as it is written."""
        return [self.tokens[token] for token in self.log_probs.argmax(axis=1)]
