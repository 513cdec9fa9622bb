"""CTC prefix beam search: frame log-probabilities to the n best token sequences.

    log_probs (batch, frames, vocab) float32  ->  hypotheses with scores and token times, best first
    top tokens (frames, k), chunk by chunk    ->  the same for a stream

Of each frame the `beam` best tokens are looked at, and after it the `beam` best prefixes are kept, by the sum over all
alignments and what a scorer (language model, hotwords) adds. Nothing is cut off by probability: what is left out of the
computation is only what provably cannot reach the beam. Scores are float64.

Tokens whose log-probability is not finite are ruled out, and a frame that rules out everything is passed over.

Source: `ctc_prefix_beam_search` of WeNet (wenet/models/transformer/search.py), whose n-best, scores and times it gives.
A token's time is the last frame in which the best alignment says it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.container import usable_cpus
from tritone.later import later
from tritone.search.beam.beam import fixed
from tritone.search.beam.prefix_tree import PrefixTree
from tritone.search.compiled.threads import share
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import HISTORY

if TYPE_CHECKING:
    from tritone.search.ctc import prefix_kernel
    from tritone.search.ctc import top_tokens as top
    from tritone.search.scoring import scorer as scoring
    from tritone.search.scoring.scorer import Scorer
else:
    prefix_kernel, top, scoring = later("prefix_kernel"), later("top_tokens"), later("scorer")

Ids = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]

AT_ONCE = 1280  # prefixes of all rows that are searched at once, which bounds their memory
MIN_SHARE = 250_000  # log-probabilities that are worth a thread: about 0.1 ms


def top_tokens(log_probs: npt.NDArray[Any], k: int, *, threads: int | None = None) -> tuple[Ids, LogProbs]:
    """Find the best tokens of each frame.

    Args:
        log_probs: (..., vocab); float32 in one block of memory is read without copying.
        k: how many tokens, at least 1; all of the vocabulary if it has fewer.
        threads: the most to share the frames among; None takes all cores. Few frames stay in one.

    Returns:
        Ids (..., k) int32 and their log-probabilities (..., k) float32, descending. Of equal ones the lower id comes
        first; NaN come last.

    Raises:
        ValueError: k is less than 1, or the vocabulary is empty.
    """
    rows = np.ascontiguousarray(log_probs, dtype=np.float32)
    if k < 1 or rows.shape[-1] < 1:
        raise ValueError(f"k must be at least 1 and the vocabulary too, got k={k} and log-probabilities {rows.shape}")
    shape = (*rows.shape[:-1], min(k, rows.shape[-1]))
    bits = fixed(rows.reshape(-1, rows.shape[-1]).view(np.int32))
    ids = np.empty((len(bits), shape[-1]), dtype=np.int32)
    values = np.empty_like(ids)
    parts = min(threads or usable_cpus(), max(1, bits.size // MIN_SHARE))
    cuts = [slice(len(bits) * part // parts, len(bits) * (part + 1) // parts) for part in range(parts)]
    share(lambda cut: top.top_rows(bits[cut], ids[cut], values[cut]), cuts, parts)
    return ids.reshape(shape), values.view(np.float32).reshape(shape)


def prefix_beam_search(
    log_probs: npt.NDArray[Any],
    num_frames: npt.NDArray[np.integer[Any]],
    *,
    blank_id: int,
    beam: int,
    nbest: int,
    scorer: "Scorer | Sequence[Scorer | None] | None" = None,
    threads: int | None = None,
) -> list[list[Hypothesis]]:
    """Search a batch of whole utterances.

    Args:
        log_probs: (batch, frames, vocab) natural logarithms; what lies at or beyond `num_frames` is ignored.
        num_frames: (batch,) valid frames of each row.
        blank_id: the CTC blank.
        beam: tokens looked at in each frame, and prefixes kept after it.
        nbest: the most hypotheses of a row.
        scorer: for all rows, or one (or None) for each.
        threads: the most to share the rows among; None takes all cores.

    Returns:
        The hypotheses of each row, best first: at least one, and as many as there are up to `nbest`.

    Raises:
        ValueError: a number is less than 1, or there is not one scorer for each row.
    """
    return search_tops(
        lambda row: top_tokens(log_probs[row, : max(0, int(num_frames[row]))], beam, threads=1),
        num_frames,
        blank_id=blank_id,
        beam=beam,
        nbest=nbest,
        scorer=scorer,
        threads=threads,
    )


def search_tops(
    tops: Callable[[int], tuple[Ids, LogProbs]],
    num_frames: npt.NDArray[np.integer[Any]],
    *,
    blank_id: int,
    beam: int,
    nbest: int,
    scorer: "Scorer | Sequence[Scorer | None] | None" = None,
    threads: int | None = None,
) -> list[list[Hypothesis]]:
    """Search a batch of whole utterances, as `prefix_beam_search`, whose best tokens are known.

    Args:
        tops: what `top_tokens` returns for the valid frames of a row, with the beam for `k`; called in many threads.
    """
    batch = len(num_frames)
    scorers = list(scorer) if isinstance(scorer, Sequence) else [scorer] * batch
    if len(scorers) != batch:
        raise ValueError(f"{batch} rows need as many scorers, got {len(scorers)}")

    def search(rows: Sequence[int]) -> list[list[Hypothesis]]:
        # What Python does is done here: threads would only take the interpreter's lock from each other.
        beams = {row: PrefixBeam(beam=beam, blank_id=blank_id, scorer=scorers[row], history=None) for row in rows}
        share(lambda row: beams[row].advance(*tops(row)), rows, workers)
        return [each.hypotheses(nbest, final=True) for each in beams.values()]

    workers = threads or usable_cpus()
    by_length = sorted(range(batch), key=lambda row: -int(num_frames[row]))  # no thread ends with a long one
    size = max(workers, AT_ONCE // beam)
    groups = [by_length[first : first + size] for first in range(0, batch, size)]
    found = dict(zip(by_length, (each for rows in groups for each in search(rows)), strict=True))
    return [found[row] for row in range(batch)]


class PrefixBeam(PrefixTree):
    """The search in one utterance or stream. Not for several threads at once.

    Any cutting of the frames into calls of `advance` gives the same hypotheses.
    """

    def __init__(
        self, *, beam: int, blank_id: int, scorer: "Scorer | None" = None, history: int | None = HISTORY
    ) -> None:
        """Start with the empty prefix; arguments as those of `PrefixTree`.

        Args:
            blank_id: the CTC blank.
        """
        # A scorer's extensions are kept while there is room: of a prefix that stays, the same come up in every frame.
        # And whole utterances are over before a little more room is used up.
        num_nodes = 8 * beam if scorer is None and history is not None else 128 * beam
        super().__init__(beam=beam, scorer=scorer, history=history, num_nodes=num_nodes)
        self.blank_id = blank_id
        self._kernel = prefix_kernel

    def advance(self, ids: Ids, log_probs: LogProbs) -> None:
        """Search further frames.

        Args:
            ids, log_probs: (frames, k) from `top_tokens`, with k at least 1. To look at as many tokens as prefixes,
                as `prefix_beam_search` does, let k be the beam (or the vocabulary, if that is smaller).

        Raises:
            ValueError: the shapes differ or are not (frames, k), or an id is no token of the scorer's.
        """
        ids = fixed(np.ascontiguousarray(ids, dtype=np.int32))
        log_probs = fixed(np.ascontiguousarray(log_probs, dtype=np.float32))
        if ids.ndim != 2 or ids.shape != log_probs.shape or not ids.shape[1]:
            raise ValueError(
                f"ids and log_probs must be (frames, k), both the same; got {ids.shape}, {log_probs.shape}"
            )
        if self.scorer is not None and ids.size and (highest := int(ids.max())) >= self.scorer.num_tokens:
            raise ValueError(
                f"token ids must be below {self.scorer.num_tokens}, the tokens that the scorer was built for; "
                f"got {highest}. Build it with the spellings of the model that is searched."
            )
        self._frame_nodes = self.beam if self.scorer is None else self.beam * ids.shape[1]
        first = 0
        while first < len(ids):
            end = first + self._until_decision(len(ids) - first)
            first += self._kernel.advance(self.address, ids[first:end], log_probs[first:end], self.blank_id)
            if first < end:
                self._make_room()
            else:
                self._decide_if_due()


def compile_search() -> None:
    """Compile all that searches need, or load it from the cache, so that the first request need not wait for it."""
    log_probs = np.log(np.full((1, 4, 3), 1 / 3, dtype=np.float32))
    scorer = scoring.Scorer.build(("", "a", " "), lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=(("a", 1.0),))
    for each in (None, scorer):
        prefix_beam_search(log_probs, np.array([4]), blank_id=0, beam=2, nbest=2, scorer=each, threads=1)
    stream = PrefixBeam(beam=2, blank_id=0, history=2)
    stream.advance(*top_tokens(log_probs[0], 2))
