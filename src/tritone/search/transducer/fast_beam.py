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

from tritone.later import later
from tritone.search.beam.beam import grown
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import HISTORY
from tritone.search.transducer.batch import TransducerBeam, check_scorer
from tritone.search.transducer.fast_records import ENTRY, GRAPH, STATE
from tritone.search.transducer.predictor import PredictorCache

if TYPE_CHECKING:
    from tritone.search.scoring import scorer as scoring
    from tritone.search.scoring.scorer import Scorer
    from tritone.search.transducer import fast_kernel, fast_pruning
else:
    scoring, fast_kernel, fast_pruning = later("scorer"), later("fast_kernel"), later("fast_pruning")

MAX_ENTRIES = 1024  # token sequences in all states together


class FastBeam(TransducerBeam):
    """A fast beam search in one utterance or stream."""

    spare_frames = 16
    _states: npt.NDArray[Any]
    _entries: npt.NDArray[Any]
    _contexts: npt.NDArray[np.int64]
    _words: npt.NDArray[np.int32]

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
            restrict: whether only words of the scorer's language model can be output.
            start: the context before the first token; None takes blanks, as k2 does, whatever `network.start` is.
            final_arc: whether paths end as upstream's do, see above; without a scorer only.
            history: see `Beam`.

        Raises:
            ValueError: an argument does not fit; says which.
        """
        network = cache.network
        for name, value in (("max_states", max_states), ("max_contexts", max_contexts), ("nbest", nbest)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, number in (("beam", beam), ("temperature", temperature)):
            if not (number > 0 and math.isfinite(number)):
                raise ValueError(f"{name} must be a number above 0, got {number}")
        check_scorer(scorer, network)
        if restrict and (scorer is None or not scorer.has_lm):
            raise ValueError("to be restricted to the words of a language model, a search needs a scorer with one")
        if final_arc and scorer is not None:
            raise ValueError("final_arc is for searches without a scorer: a scorer has no final states")
        start = (network.blank_id,) * cache.context_size if start is None else tuple(start)
        if len(start) != cache.context_size:
            raise ValueError(f"start must have {cache.context_size} tokens, as many as the predictor sees; got {start}")
        # A context is a state, unless there is something beside it.
        room = min(max_states, max_contexts) if scorer is None and not final_arc else max_states
        nbest = max(1, min(nbest, MAX_ENTRIES // room))
        self._frame_marks = room * nbest
        super().__init__(GRAPH, num_marks=2 * self.spare_frames * self._frame_marks, history=history)
        self.cache, self.kernel, self.max_rows = cache, fast_kernel, min(room, max_contexts)
        self.scorer = scorer
        self._pruning = fast_pruning
        words = (0, 0) if scorer is None else (room, scorer.state_size)
        self._point_at(
            states=np.zeros((2, room), dtype=STATE),
            entries=np.zeros((2, room * nbest), dtype=ENTRY),
            contexts=np.zeros((2, self.max_rows, len(start)), dtype=np.int64),
            words=np.zeros((2, words[0], 2, words[1]), dtype=np.int32),
            marks=self._marks,
        )
        self._states[0, 0] = (0.0, 0.0, math.nan, 0, 1, 0)
        self._entries[0, 0] = (0.0, 0.0, 0, -1)
        self._contexts[0, 0] = start
        record = self._record
        record["num_states"] = record["num_contexts"] = 1
        record["max_states"], record["max_contexts"], record["nbest"] = max_states, max_contexts, nbest
        record["room"] = room
        record["beam"], record["blank_penalty"], record["temperature"] = beam, blank_penalty, temperature
        record["final_arc"], record["restrict"] = final_arc, restrict
        record["scorer"] = self._address_of(scoring.NO_SCORER) if scorer is None else scorer.address
        if scorer is not None:
            self._words[0, 0, 0] = scorer.start

    def hypotheses(self, count: int, *, final: bool = False) -> list[Hypothesis]:
        """The best token sequences after the frames so far, all different; see `Beam.hypotheses`.

        As many as are followed in each state are sure to be the best ones. `score` is that of the best alignment alone.
        With `final` a restricted search leaves out those that end within a word, if any does not, and with `final_arc`
        only those are returned that end by one, without what the last frame is worth; if there is none, an empty one
        with a score of -inf.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        record, side = self._record, int(self._record["side"])
        num_states = int(record["num_states"])
        states = self._states[side, :num_states]
        by_arc = final and bool(record["final_arc"]) and self.num_frames > 0
        if by_arc:
            states = self._alive()[num_states:]
            if not len(states):
                return [Hypothesis([], log_prob=-math.inf, score=-math.inf)]
        ends = np.zeros(len(states))
        if final and self.scorer is not None:
            complete = np.ones(len(states), dtype=np.bool_)
            self._pruning.finish_all(self.scorer.address, self._words[side, :num_states], ends, complete)
            if record["restrict"] and complete.any():
                states, ends = states[complete], ends[complete]
        numbers = np.concatenate([np.arange(state["first"], state["first"] + state["count"]) for state in states])
        entries = self._entries[side][numbers]
        log_probs = entries["score"] - np.repeat((states["total"] - states["before"]) * by_arc, states["count"])
        bonuses = entries["bonus"] + np.repeat(ends, states["count"])
        return self._ranked(log_probs, bonuses, log_probs + bonuses, entries["mark"], count)

    def _frames_of_room(self) -> int:
        return int((len(self._marks) - self._record["num_marks"]) // self._frame_marks)

    def _alive(self) -> npt.NDArray[Any]:
        """The states alive and those behind final arcs."""
        record = self._record
        return self._states[int(record["side"]), : int(record["num_states"] + record["num_finals"])]

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self._states, self._entries, self._contexts, self._words

    def _decide(self, before: int) -> None:
        states, side, num_states = self._alive(), int(self._record["side"]), int(self._record["num_states"])
        entries = self._entries[side]
        self._pruning.decide(self._marks, states, entries, before)
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
        self._record["num_states"], self._record["num_finals"] = len(alive), len(finals)

    def _drop(self, settled: npt.NDArray[Any]) -> int:
        record = self._record
        entries = self._entries[int(record["side"])]
        record["num_marks"], num_settled = self._pruning.make_room(
            self._marks, self._alive(), entries, int(record["num_marks"]), settled
        )
        return int(num_settled)

    def _grow(self) -> None:
        wanted = 2 * (int(self._record["num_marks"]) + self.spare_frames * self._frame_marks)
        self._point_at(marks=grown(self._marks, wanted))
