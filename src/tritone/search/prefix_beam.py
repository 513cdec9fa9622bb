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

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.sharing import num_cores, share

if TYPE_CHECKING:
    from tritone.search.scorer import Scorer

Ids = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]

MIN_ROOM = 256  # nodes and marks that a search has room for at first; a power of two
MIN_SHARE = 250_000  # log-probabilities that are worth a thread: about 0.1 ms
HISTORY = 1500  # frames, a minute at 40 ms


def top_tokens(log_probs: npt.NDArray[Any], k: int, *, threads: int | None = None) -> tuple[Ids, LogProbs]:
    """Find the best tokens of each frame.

    Args:
        log_probs: (..., vocab); float32 in one block of memory is read without copying.
        k: how many tokens, at least 1; no more are given than the vocabulary has.
        threads: the most to share the frames among; None takes all cores. Few frames stay in one.

    Returns:
        Ids (..., k) int32 and their log-probabilities (..., k) float32, descending. Of equal ones the lower id comes
        first; NaN come last.

    Raises:
        ValueError: k is less than 1, or the vocabulary is empty.
    """
    from tritone.search.top_kernel import top_rows

    rows = np.ascontiguousarray(log_probs, dtype=np.float32)
    if k < 1 or rows.shape[-1] < 1:
        raise ValueError(f"k must be at least 1 and the vocabulary too, got k={k} and log-probabilities {rows.shape}")
    shape = (*rows.shape[:-1], min(k, rows.shape[-1]))
    bits = _fixed(rows.reshape(-1, rows.shape[-1]).view(np.int32))
    ids = np.empty((len(bits), shape[-1]), dtype=np.int32)
    values = np.empty_like(ids)
    parts = min(threads or num_cores(), max(1, bits.size // MIN_SHARE))
    cuts = [slice(len(bits) * part // parts, len(bits) * (part + 1) // parts) for part in range(parts)]
    share(lambda cut: top_rows(bits[cut], ids[cut], values[cut]), cuts, parts)
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
    scorers = list(scorer) if isinstance(scorer, Sequence) else [scorer] * len(log_probs)
    if len(scorers) != len(log_probs):
        raise ValueError(f"{len(log_probs)} rows need as many scorers, got {len(scorers)}")

    def search(row: int) -> list[Hypothesis]:
        prefixes = PrefixBeam(beam=beam, blank_id=blank_id, scorer=scorers[row], history=None)
        prefixes.advance(*top_tokens(log_probs[row, : max(0, int(num_frames[row]))], beam, threads=1))
        return prefixes.hypotheses(nbest, final=True)

    by_length = sorted(range(len(log_probs)), key=lambda row: -int(num_frames[row]))  # no thread ends with a long one
    found = dict(zip(by_length, share(search, by_length, threads or num_cores()), strict=True))
    return [found[row] for row in range(len(log_probs))]


class PrefixBeam:
    """The search in one utterance or stream. Not for several threads at once.

    Any cutting of the frames into calls of `advance` gives the same hypotheses. What no live prefix needs is dropped
    from time to time, so the memory depends on how much prefixes differ and not on the length of the stream. Only
    tokens that all of them share stay, in 16 bytes each, until `take_settled` hands them over.
    """

    def __init__(
        self, *, beam: int, blank_id: int, scorer: "Scorer | None" = None, history: int | None = HISTORY
    ) -> None:
        """Start with the empty prefix.

        Args:
            beam: prefixes kept after each frame, at least 1.
            blank_id: the CTC blank.
            scorer: adds to the log-probability of prefixes; searches may share it.
            history: for how many frames, at least 1, prefixes may go on differing: whenever so many have passed, what
                the best one said more than `history` frames ago is final, and those that differ there are dropped. Two
                equally good words would else keep two copies of all that follows, for ever. What follows tells next to
                nothing of so old a choice, so the best hypothesis stays the same, but the n best differ in recent words
                alone. None never decides.
        """
        from tritone.search import beam_kernel, beam_room
        from tritone.search import beam_records as records

        if beam < 1:
            raise ValueError(f"beam must be at least 1, got {beam}")
        if history is not None and history < 1:
            raise ValueError(f"history must be at least 1 frame, got {history}")
        self.beam = beam
        self.history = history
        self.blank_id = blank_id
        self.scorer = scorer
        self._kernel, self._records, self._room = beam_kernel, records, beam_room
        self._arrays = _no_arrays() if scorer is None else scorer.arrays
        self._ceiling = 0.0 if scorer is None else scorer.ceiling
        self._counters = np.zeros(records.NUM_COUNTERS, dtype=np.int64)
        self._prefixes = np.zeros((2, beam), dtype=records.PREFIX)
        self._prefixes[0, 0] = (0.0, -math.inf, 0.0, 0.0, 0.0, -math.inf, 0, -1, -1)
        self._marks = np.empty(_room(8 * beam), dtype=records.MARK)
        # A scorer's extensions are kept while there is room: of a prefix that stays, the same come up in every frame.
        self._nodes = np.empty(_room(8 * beam if scorer is None else 128 * beam), dtype=records.NODE)
        self._nodes[0] = (-1, -1, 0, 0.0)
        self._states = np.zeros((len(self._nodes), 2, 0 if scorer is None else scorer.state_size), dtype=np.int32)
        self._closings = np.full((len(self._nodes), 0 if scorer is None else 1), math.nan)
        if scorer is not None:
            self._states[0, 0] = scorer.start
        self._slots = np.full(4 * len(self._nodes), -1, dtype=np.int32)
        self._counters[records.NUM_NODES] = self._counters[records.NUM_PREFIXES] = 1
        self._settled = np.empty(0, dtype=records.MARK)
        self._num_settled = 0

    @property
    def num_frames(self) -> int:
        """Frames searched so far."""
        return int(self._counters[self._records.NUM_FRAMES])

    @property
    def num_bytes(self) -> int:
        """Memory of the search, without token objects that `hypotheses` made."""
        arrays = (
            self._prefixes,
            self._marks,
            self._nodes,
            self._states,
            self._closings,
            self._slots,
            self._settled,
        )
        return sum(array.nbytes for array in arrays)

    def advance(self, ids: Ids, log_probs: LogProbs) -> None:
        """Search further frames.

        Args:
            ids, log_probs: (frames, k) from `top_tokens`, with k at least 1. To look at as many tokens as prefixes,
                as `prefix_beam_search` does, let k be the beam (or the vocabulary, if that is smaller).

        Raises:
            ValueError: the shapes differ or are not (frames, k), or an id is no token of the scorer's.
        """
        ids = _fixed(np.ascontiguousarray(ids, dtype=np.int32))
        log_probs = _fixed(np.ascontiguousarray(log_probs, dtype=np.float32))
        if ids.ndim != 2 or ids.shape != log_probs.shape or not ids.shape[1]:
            raise ValueError(
                f"ids and log_probs must be (frames, k), both the same; got {ids.shape}, {log_probs.shape}"
            )
        if self.scorer is not None and ids.size and (highest := int(ids.max())) >= self.scorer.num_tokens:
            raise ValueError(
                f"token ids must be below {self.scorer.num_tokens}, the tokens that the scorer was built for; "
                f"got {highest}. Build it with the spellings of the model that is searched."
            )
        first, count = 0, len(ids)
        while first < count:
            left = count - first if self.history is None else self.history - self.num_frames % self.history
            end = min(count, first + left)
            first = self._kernel.advance(
                ids,
                log_probs,
                first,
                end,
                self.blank_id,
                self._nodes,
                self._states,
                self._closings,
                self._slots,
                self._marks,
                self._prefixes,
                self._counters,
                self.scorer is not None,
                self._ceiling,
                self._arrays,
            )
            if first < end:
                self._make_room(ids.shape[1])
            elif self.history is not None and self.num_frames % self.history == 0:
                old = self.num_frames - self.history
                self._room.decide(self._nodes, self._marks, self._prefixes, self._counters, old)
                self._make_room(ids.shape[1])

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        """Tell the best prefixes after the frames so far; the search can go on.

        Args:
            count: the most to tell, at least 1.
            final: score them as if nothing followed: the scorer adds what the last word and the end of the sentence
                are worth, and they are ranked anew.

        Returns:
            Hypotheses, best first. `score` is `ctc_score + bonus`. A token's `start_frame` is its time in the best
            alignment, `end_frame` the next frame, and its confidence is its probability there.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        records, counters = self._records, self._counters
        alive = self._prefixes[counters[records.SIDE], : counters[records.NUM_PREFIXES]]
        bonuses = self._nodes["bonus"][alive["node"]]
        if final and self.scorer is not None:
            ends = np.zeros(len(alive))
            self._kernel.finish_all(self._prefixes, counters, self._states, self._arrays, ends)
            bonuses = bonuses + ends
        order = np.argsort(-(alive["score"] + bonuses), kind="stable")[:count]
        marks = np.where(alive["best_blank"] > alive["best_token"], alive["blank_mark"], alive["token_mark"])
        settled = _tokens(self._settled[: self._num_settled])
        scratch = np.empty(int(counters[records.NUM_MARKS]), dtype=np.int32)
        made: dict[int, Token] = {}  # by mark: the n best have most of their tokens in common
        found = []
        for score, bonus, mark in zip(
            alive["score"][order].tolist(), bonuses[order].tolist(), marks[order].tolist(), strict=True
        ):
            length = self._room.read_marks(self._marks, mark, scratch)
            path = scratch[len(scratch) - length :].tolist()
            new = [each for each in path if each not in made]
            made.update(zip(new, _tokens(self._marks[new]), strict=True))
            tokens = settled + [made[each] for each in path]
            found.append(Hypothesis(tokens, ctc_score=score, bonus=bonus, score=score + bonus))
        return found

    def take_settled(self) -> list[Token]:
        """Hand over the tokens at the beginning that all prefixes share; `hypotheses` begin after them then.

        Who calls it after every `advance` has hypotheses that are short however long the stream is.
        """
        self._make_room(self.beam)
        tokens = _tokens(self._settled[: self._num_settled])
        self._num_settled = 0
        return tokens

    def _make_room(self, width: int) -> None:
        records, counters = self._records, self._counters
        settled = np.empty(len(self._marks), dtype=records.MARK)
        num_settled = self._room.make_room(
            self._nodes, self._states, self._closings, self._marks, self._prefixes, counters, settled
        )
        self._settle(settled[:num_settled])
        # Half of the room stays free for the frames to come: so each node and mark is moved about once in its life.
        self._marks = _grown(self._marks, 2 * (int(counters[records.NUM_MARKS]) + self.beam))
        frame = self.beam if self.scorer is None else self.beam * width
        num_nodes = int(counters[records.NUM_NODES])
        self._nodes = _grown(self._nodes, 2 * (num_nodes + frame))
        self._states = _grown(self._states, len(self._nodes))
        self._closings = _grown(self._closings, len(self._nodes))
        if len(self._slots) < 4 * len(self._nodes):
            self._slots = np.empty(4 * len(self._nodes), dtype=np.int32)
        self._room.index_nodes(self._nodes, num_nodes, self._slots)

    def _settle(self, marks: npt.NDArray[Any]) -> None:
        end = self._num_settled + len(marks)
        if end > len(self._settled):
            self._settled = _grown(self._settled, end)
        self._settled[self._num_settled : end] = marks
        self._num_settled = end


def compile_search() -> None:
    """Compile all that searches need, or load it from the cache, so that the first request need not wait for it."""
    from tritone.search.scorer import Scorer

    log_probs = np.log(np.full((1, 4, 3), 1 / 3, dtype=np.float32))
    scorer = Scorer.build(("", "a", " "), lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=(("a", 1.0),))
    for each in (None, scorer):
        prefix_beam_search(log_probs, np.array([4]), blank_id=0, beam=2, nbest=2, scorer=each, threads=1)
    stream = PrefixBeam(beam=2, blank_id=0, history=2)
    stream.advance(*top_tokens(log_probs[0], 2))


@cache
def _no_arrays() -> Any:
    """Arrays of the type that all scorers have, for searches without one: the compiled code is the same."""
    from tritone.search.scorer import Scorer

    scorer = Scorer.build(("", "a"), lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=(("a", 1.0),))
    assert scorer is not None
    return scorer.arrays


def _fixed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view that cannot be written: compiled functions tell such arrays apart, and callers have both kinds."""
    view = array.view()
    view.flags.writeable = False
    return view


def _room(wanted: int) -> int:
    return max(MIN_ROOM, 1 << (wanted - 1).bit_length())


def _grown(array: npt.NDArray[Any], wanted: int) -> npt.NDArray[Any]:
    """The array, or a copy with room for `wanted` and a power of two rows if it is shorter."""
    if wanted <= len(array):
        return array
    larger = np.empty((_room(wanted), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _tokens(marks: npt.NDArray[Any]) -> list[Token]:
    return [
        Token(id, frame, frame + 1, min(math.exp(log_prob), 1.0))
        for id, frame, log_prob in zip(
            marks["token"].tolist(), marks["frame"].tolist(), marks["log_prob"].tolist(), strict=True
        )
    ]
