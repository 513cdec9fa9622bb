"""Fast beam search: the best path through a graph, at most one token a frame.

    encoder_out (batch, frames, dim), one FastBeam for each row  ->  hypotheses with scores and token times

A state of the search is what the predictor sees of the past, its last tokens, and the state of a scorer (language
model, hotwords) if there is one. Token sequences that lead to the same state go on alike, so only the best one is
followed: what counts is the best alignment, and nothing is added up. After each frame those states are kept whose best
way is within `beam` of the best of all, `max_states` of them at most, in `max_contexts` contexts at most. Alternatives
are the best token sequences, each by its best alignment, of all paths through the states that were kept. Scores are
float64.

**Graphs.** Without a scorer any token may follow any other. With a language model the graph is that of its words, made
as far as the search gets; `restrict` leaves out whatever is no word of it.

**The end.** In k2 a path must end by an arc to the graph's final state, which costs what a blank does, in the very last
frame. So upstream never says anything in the last frame, does not count what that frame is worth, and finds nothing if
the beam has no such arc left; and final states take places of others in every frame. Here any state may be the last
one, which loses no words; `final_arc` gives upstream's results.

Logits that are not finite are ruled out, and a frame that rules out everything is passed over.

Source: `RnntDecodingStreams` of k2 (k2/csrc/rnnt_decode.cu) and `fast_beam_search_one_best` of icefall
(egs/librispeech/ASR/pruned_transducer_stateless2/beam_search.py).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.search.beam.prefix_tree import HISTORY, fixed, grown, room_for, tokens_of
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.transducer.network import Vectors, as_answers
from tritone.search.transducer.predictor import PredictorCache, common_cache

if TYPE_CHECKING:
    from tritone.search.scoring.scorer import Scorer

SPARE_FRAMES = 16  # that a search has room for at least, after room was made
MAX_ENTRIES = 1024  # token sequences in all states together


class FastBeam:
    """The search in one utterance or stream. Not for several threads at once.

    Any cutting of the frames into calls of `advance_fast`, and any neighbours there, give the same hypotheses. What no
    state needs is dropped from time to time, so the memory depends on how much the states differ and not on the length
    of the stream. Only tokens that all of them share stay, in 16 bytes each, until `take_settled` hands them over.
    """

    def __init__(
        self,
        cache: PredictorCache,
        *,
        beam: float = 20.0,
        max_states: int = 64,
        max_contexts: int = 8,
        nbest: int = 1,
        blank_penalty: float = 0.0,
        temperature: float = 1.0,
        scorer: "Scorer | None" = None,
        restrict: bool = False,
        start: Sequence[int] | None = None,
        final_arc: bool = False,
        history: int | None = HISTORY,
    ) -> None:
        """Start with the empty hypothesis.

        Args:
            cache: of the predictor of the network that is searched with.
            beam: how far below the best one a state may be, in natural-log units; above 0.
            max_states, max_contexts: the most states, and contexts, that are kept after a frame.
            nbest: how many token sequences to follow in each state, at least 1; fewer where there are so many states
                that it would be more than `MAX_ENTRIES` together.
            blank_penalty: is subtracted from the blank's logit.
            temperature: divides the logits, above 0.
            scorer: adds to the log-probability of paths; searches may share it.
            restrict: whether only words of the scorer's language model can be said.
            start: the context before the first token; None takes blanks, as k2 does, whatever `network.start` is.
            final_arc: whether paths end as upstream's do, see above; without a scorer only.
            history: for how many frames, at least 1, alternatives may go on differing, see `PrefixTree`. None is for
                ever.

        Raises:
            ValueError: an argument is not as it should be; says which.
        """
        from tritone.search.beam.pruning import read_marks
        from tritone.search.compiled.addresses import address_of
        from tritone.search.transducer import fast_pruning as fast_room
        from tritone.search.transducer import fast_records

        network = cache.network
        for name, value in (("max_states", max_states), ("max_contexts", max_contexts), ("nbest", nbest)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, number in (("beam", beam), ("temperature", temperature)):
            if not (number > 0 and math.isfinite(number)):
                raise ValueError(f"{name} must be a number above 0, got {number}")
        if history is not None and history < 1:
            raise ValueError(f"history must be at least 1 frame, got {history}")
        if scorer is not None and scorer.num_tokens < network.vocab_size:
            raise ValueError(
                f"the scorer was built for {scorer.num_tokens} tokens, but the model has {network.vocab_size}. "
                f"Build it with the spellings of the model that is searched."
            )
        if restrict and (scorer is None or not scorer.arrays.has_lm):
            raise ValueError("to be restricted to the words of a language model, a search needs a scorer with one")
        if final_arc and scorer is not None:
            raise ValueError("final_arc is for searches without a scorer: a scorer has no final states")
        start = (network.blank_id,) * cache.context_size if start is None else tuple(start)
        if len(start) != cache.context_size:
            raise ValueError(f"start must have {cache.context_size} tokens, as many as the predictor sees; got {start}")
        self.cache = cache
        self.scorer = scorer
        self.history = history
        self._room, self._read_marks, self._address_of = fast_room, read_marks, address_of
        # A context is a state, unless there is something beside it.
        room = min(max_states, max_contexts) if scorer is None and not final_arc else max_states
        nbest = max(1, min(nbest, MAX_ENTRIES // room))
        self._states = np.zeros((2, room), dtype=fast_records.STATE)
        self._entries = np.zeros((2, room * nbest), dtype=fast_records.ENTRY)
        self._contexts = np.zeros((2, min(room, max_contexts), len(start)), dtype=np.int64)
        words = (0, 0) if scorer is None else (room, scorer.state_size)
        self._words = np.zeros((2, words[0], 2, words[1]), dtype=np.int32)
        self._frame_marks = room * nbest
        self._marks = np.empty(room_for(2 * SPARE_FRAMES * self._frame_marks), dtype=fast_records.MARK)
        self._settled = np.empty(0, dtype=fast_records.MARK)
        self._num_settled = 0

        self._states[0, 0] = (0.0, 0.0, math.nan, 0, 1, 0)
        self._entries[0, 0] = (0.0, 0.0, 0, -1)
        self._contexts[0, 0] = start
        self._heads = np.zeros(1, dtype=fast_records.HEAD)
        self._head: Any = self._heads[0]
        head = self._head
        head["num_states"] = head["num_contexts"] = 1
        head["max_states"], head["max_contexts"], head["nbest"], head["room"] = max_states, max_contexts, nbest, room
        head["beam"], head["blank_penalty"], head["temperature"] = beam, blank_penalty, temperature
        head["final_arc"], head["restrict"], head["scored"] = final_arc, restrict, scorer is not None
        if scorer is not None:
            self._words[0, 0, 0] = scorer.start
            head["most_gain"], head["ceiling"] = scorer.max_gain, scorer.ceiling
            head["scorer"] = address_of(scorer.record)
        head["states"], head["entries"] = address_of(self._states), address_of(self._entries)
        head["contexts"], head["words"] = address_of(self._contexts), address_of(self._words)
        self._address = address_of(self._heads)
        self._tell_marks()

    @property
    def num_frames(self) -> int:
        """Frames searched so far."""
        return int(self._head["num_frames"])

    @property
    def num_bytes(self) -> int:
        """Memory of the search, without token objects that `hypotheses` made."""
        arrays = (self._states, self._entries, self._contexts, self._words, self._marks, self._settled, self._heads)
        return sum(array.nbytes for array in arrays)

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        """Tell the best token sequences after the frames so far; the search can go on.

        Args:
            count: the most to tell, at least 1. As many as are followed in each state are sure to be the best ones.
            final: score them as if nothing followed: the scorer adds what the last word and the end of the sentence are
                worth, a restricted search leaves out those that end within a word, if any does not, and with
                `final_arc` only those are told that end by one, without what the last frame is worth.

        Returns:
            Hypotheses, best first, all different and at least one. `score` is `log_prob + bonus`, of the best alignment
            alone. A token's `start_frame` is when it is said there, `end_frame` the next frame, and its confidence is
            its probability there. If no path ends by a final arc, the only one is empty with a score of -inf.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        head, side = self._head, int(self._head["side"])
        num_states = int(head["num_states"])
        places = np.arange(num_states)
        by_arc = final and bool(head["final_arc"]) and self.num_frames > 0
        if by_arc:
            places = num_states + np.arange(int(head["num_finals"]))
            if not len(places):
                return [Hypothesis([], log_prob=-math.inf, score=-math.inf)]
        states = self._states[side][places]
        ends = np.zeros(len(states))
        if final and self.scorer is not None:
            complete = np.ones(len(states), dtype=np.bool_)
            self._room.finish_all(self.scorer.record[0], self._words[side, :num_states], ends, complete)
            if head["restrict"] and complete.any():
                states, ends = states[complete], ends[complete]
        numbers = np.concatenate([np.arange(state["first"], state["first"] + state["count"]) for state in states])
        entries = self._entries[side][numbers]
        log_probs = entries["score"] - np.repeat((states["total"] - states["before"]) * by_arc, states["count"])
        bonuses = entries["bonus"] + np.repeat(ends, states["count"])
        order = np.argsort(-(log_probs + bonuses), kind="stable")[:count]
        settled = tokens_of(self._settled[: self._num_settled])
        scratch = np.empty(int(head["num_marks"]), dtype=np.int32)
        made: dict[int, Token] = {}  # by mark: the n best have most of their tokens in common
        found = []
        for log_prob, bonus, mark in zip(
            log_probs[order].tolist(), bonuses[order].tolist(), entries["mark"][order].tolist(), strict=True
        ):
            length = self._read_marks(self._marks, mark, scratch)
            path = scratch[len(scratch) - length :].tolist()
            new = [each for each in path if each not in made]
            made.update(zip(new, tokens_of(self._marks[new]), strict=True))
            tokens = settled + [made[each] for each in path]
            found.append(Hypothesis(tokens, log_prob=log_prob, bonus=bonus, score=log_prob + bonus))
        return found

    def take_settled(self) -> list[Token]:
        """Hand over the tokens at the beginning that all states share; `hypotheses` begin after them then.

        Who calls it after every `advance_fast` has hypotheses that are short however long the stream is.
        """
        self._make_room()
        tokens = tokens_of(self._settled[: self._num_settled])
        self._num_settled = 0
        return tokens

    def _ready(self, count: int) -> int:
        """Decide if it is time to, make room if there is little, and say how many of `count` frames can be searched."""
        if self.history is not None and self.num_frames and self.num_frames % self.history == 0:
            self._decide(self.num_frames - self.history)
        if self._frames_of_room() < min(count, SPARE_FRAMES // 2):
            self._make_room()
        count = min(count, self._frames_of_room())
        return count if self.history is None else min(count, self.history - self.num_frames % self.history)

    def _frames_of_room(self) -> int:
        return int((len(self._marks) - self._head["num_marks"]) // self._frame_marks)

    def _alive(self) -> npt.NDArray[Any]:
        """The states alive and those behind final arcs."""
        head = self._head
        return self._states[int(head["side"]), : int(head["num_states"] + head["num_finals"])]

    def _decide(self, before: int) -> None:
        """Make final what the best hypothesis says before a frame, and drop what differs there."""
        states, side, num_states = self._alive(), int(self._head["side"]), int(self._head["num_states"])
        entries = self._entries[side]
        self._room.decide(self._marks, states, entries, before)
        first = entries[states["first"]]
        totals = first["score"] + first["bonus"]
        states["before"] += totals - states["total"]
        states["total"] = totals
        left = np.flatnonzero(states["count"] > 0)
        alive, finals = left[left < num_states], left[left >= num_states]
        alive = alive[np.argsort(-totals[alive], kind="stable")]
        if self.scorer is not None:
            self._words[side, : len(alive)] = self._words[side][alive]
        states[: len(left)] = states[np.concatenate((alive, finals))]
        self._head["num_states"], self._head["num_finals"] = len(alive), len(finals)
        self._make_room()

    def _make_room(self) -> None:
        head = self._head
        settled = np.empty(int(head["num_marks"]), dtype=self._marks.dtype)
        entries = self._entries[int(head["side"])]
        num_marks, num_settled = self._room.make_room(
            self._marks, self._alive(), entries, int(head["num_marks"]), settled
        )
        head["num_marks"] = num_marks
        end = self._num_settled + num_settled
        self._settled = grown(self._settled, end)
        self._settled[self._num_settled : end] = settled[:num_settled]
        self._num_settled = end
        # Half of the room stays free for the frames to come: so each mark is moved about once in its life.
        self._marks = grown(self._marks, 2 * (num_marks + SPARE_FRAMES * self._frame_marks))
        self._tell_marks()

    def _tell_marks(self) -> None:
        self._head["marks"], self._head["marks_room"] = self._address_of(self._marks), len(self._marks)


def advance_fast(beams: Sequence[FastBeam], encoder_out: Vectors, num_frames: npt.NDArray[np.integer[Any]]) -> None:
    """Search further frames of several utterances or streams: in each frame one call of the joiner for all of them.

    Args:
        beams: one for each row, all different, all with the same cache.
        encoder_out: (batch, frames, dim) float32; what lies at or beyond `num_frames` is ignored.
        num_frames: (batch,) further frames of each row; 0 or less are none.

    Raises:
        ValueError: there is not one of `beams` for each row, or they have not one cache.
    """
    from tritone.search.transducer import fast_kernel

    encoder_out = np.ascontiguousarray(encoder_out, dtype=np.float32)
    if not len(beams) and not len(encoder_out):
        return
    cache = common_cache(beams, len(encoder_out), num_frames)
    network = cache.network
    lengths = fixed(np.clip(np.asarray(num_frames, dtype=np.int64), 0, encoder_out.shape[1]))
    end, max_frames = int(lengths.max(initial=0)), encoder_out.shape[1]
    if not end:
        return
    frames = encoder_out.reshape(-1, encoder_out.shape[2])
    num_rows = sum(beam._contexts.shape[1] for beam in beams)
    contexts, places = np.empty((num_rows, cache.context_size), dtype=np.int64), np.empty(num_rows, dtype=np.int64)
    unk_id = -1 if network.unk_id is None else network.unk_id
    left = lengths.tolist()
    heads = fixed(np.array([beam._address for beam in beams], dtype=np.int64))
    frame = 0
    while frame < end:
        # Searches have room for a number of frames; room is made in between.
        stop = frame + min(
            beam._ready(length - frame) for beam, length in zip(beams, left, strict=True) if length > frame
        )
        count = fast_kernel.ask(heads, lengths, max_frames, frame, contexts, places)
        for now in range(frame, stop):
            logits = network.join(np.take(frames, places[:count], axis=0), cache(contexts[:count]))
            count = fast_kernel.step(
                heads,
                lengths,
                max_frames,
                now,
                as_answers(logits, count, network),
                network.blank_id,
                unk_id,
                contexts,
                places,
            )
        frame = stop
