"""What may be written next: tokens that never are, and where times stand.

    logits (vocab,), the tokens written so far  ->  the same logits, with -inf for all that is forbidden

Times come in pairs, the end of a segment and the start of the next, except for the first and perhaps the last; they
never fall, and where all times together are likelier than any one other token, a time is written.
Source: openai/whisper whisper/decoding.py, `SuppressBlank`, `SuppressTokens` and `ApplyTimestampRules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules of one text.

    `eot`, `no_timestamps`, `timestamp_begin`: ids of tokens. `suppress`: ids that are never written. `suppress_first`:
    ids that the text does not begin with. `timestamps`: whether times are written. `max_initial_timestamp`: the
    latest first time, in steps; None has no limit.
    """

    eot: int
    no_timestamps: int
    timestamp_begin: int
    suppress: Sequence[int] = ()
    suppress_first: Sequence[int] = ()
    timestamps: bool = True
    max_initial_timestamp: int | None = None

    def apply(self, logits: Logits, written: Sequence[int]) -> None:
        """Forbid tokens, in place.

        Args:
            logits: (vocab,), also log-probabilities.
            written: the tokens of the text so far, without those of the prompt.
        """
        if not written:
            logits[list(self.suppress_first)] = -np.inf
        logits[list(self.suppress)] = -np.inf
        if not self.timestamps:
            return
        begin = self.timestamp_begin
        logits[self.no_timestamps] = -np.inf
        if not written:
            logits[:begin] = -np.inf
            if self.max_initial_timestamp is not None:
                logits[begin + self.max_initial_timestamp + 1 :] = -np.inf
        else:
            self._pair(logits, written)
        times, others = logits[begin:], logits[:begin]
        highest = times.max()
        # In float32, as upstream: the sum of the probabilities of all times, up to a common factor.
        if highest > -np.inf and highest + np.log(np.exp(times - highest).sum()) > others.max():
            others[:] = -np.inf

    def _pair(self, logits: Logits, written: Sequence[int]) -> None:
        begin = self.timestamp_begin
        after_time = written[-1] >= begin
        pair_open = after_time and not (len(written) < 2 or written[-2] >= begin)
        if pair_open:
            logits[: self.eot] = -np.inf  # another time, or the end
        elif after_time:
            logits[begin:] = -np.inf
        last = next((token for token in reversed(written) if token >= begin), None)
        if last is not None:
            # A segment begins where the last one ended, and none is empty.
            logits[begin : last if pair_open else last + 1] = -np.inf
