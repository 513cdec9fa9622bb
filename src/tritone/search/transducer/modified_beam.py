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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.search.beam.prefix_tree import HISTORY, PrefixTree, fixed
from tritone.search.transducer.network import Vectors, as_answers
from tritone.search.transducer.predictor import PredictorCache, common_cache

if TYPE_CHECKING:
    from tritone.search.scoring.scorer import Scorer

SPARE_FRAMES = 32  # that a search has room for at least, after room was made


class ModifiedBeam(PrefixTree):
    """The search in one utterance or stream. Not for several threads at once.

    Any cutting of the frames into calls of `advance_modified`, and any neighbours there, give the same hypotheses.
    """

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
        from tritone.search.compiled.addresses import address_of
        from tritone.search.transducer import modified_kernel

        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature must be above 0, got {temperature}")
        network = cache.network
        if scorer is not None and scorer.num_tokens < network.vocab_size:
            raise ValueError(
                f"the scorer was built for {scorer.num_tokens} tokens, but the model has {network.vocab_size}. "
                f"Build it with the spellings of the model that is searched."
            )
        self.cache = cache
        self._context_size = len(network.start)
        self._spare = SPARE_FRAMES * beam  # nodes, and marks
        super().__init__(
            beam=beam,
            scorer=scorer,
            history=history,
            frame_nodes=2 * self._spare,
            state_size=self._context_size,
        )
        self._states[0, 1, : self._context_size] = network.start
        self._address_of = address_of
        self._search = np.zeros(1, dtype=modified_kernel.SEARCH)
        self._search["blank_penalty"], self._search["temperature"] = blank_penalty, temperature
        self._search["scored"], self._search["beam"] = scorer is not None, beam
        if scorer is not None:
            self._search["scorer"] = address_of(scorer.record)
        self._tell_addresses()

    def _tell_addresses(self) -> None:
        search, address_of = self._search, self._address_of
        search["nodes"], search["num_nodes"] = address_of(self._nodes), len(self._nodes)
        search["states"], search["state_size"] = address_of(self._states), self._states.shape[2]
        search["slots"], search["num_slots"] = address_of(self._slots), len(self._slots)
        search["marks"], search["num_marks"] = address_of(self._marks), len(self._marks)
        search["prefixes"], search["counters"] = address_of(self._prefixes), address_of(self._counters)
        self._address = address_of(search)

    def _make_room(self, frame_nodes: int, frame_marks: int) -> None:
        super()._make_room(max(frame_nodes, self._spare), max(frame_marks, self._spare))
        self._tell_addresses()

    def _ready(self, count: int) -> int:
        """Decide if it is time to, make room if there is little, and say how many of `count` frames can be searched."""
        self._decide_if_due(self.beam, self.beam)
        if (frames := self._frames_of_room()) < min(count, SPARE_FRAMES // 2):
            self._make_room(self.beam, self.beam)
            frames = self._frames_of_room()
        return self._until_decision(min(count, frames))

    def _frames_of_room(self) -> int:
        used = max(int(self._counters[self._records.NUM_NODES]), int(self._counters[self._records.NUM_MARKS]))
        return (min(len(self._nodes), len(self._marks)) - used) // self.beam

    def _scores(self, totals: npt.NDArray[np.float64], marks: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        before = self._num_taken + self._num_settled + self._context_size
        return totals / [before + len(self._path(mark)) for mark in marks.tolist()]


def advance_modified(
    beams: Sequence[ModifiedBeam],
    encoder_out: Vectors,
    num_frames: npt.NDArray[np.integer[Any]],
) -> None:
    """Search further frames of several utterances or streams: in each frame one call of the joiner for all of them.

    Args:
        beams: one for each row, all different, all with the same cache.
        encoder_out: (batch, frames, dim) float32; what lies at or beyond `num_frames` is ignored.
        num_frames: (batch,) further frames of each row; 0 or less are none.

    Raises:
        ValueError: there is not one of `beams` for each row, or they have not one cache.
    """
    from tritone.search.transducer import modified_kernel

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
    num_rows = sum(beam.beam for beam in beams)
    contexts, places = np.empty((num_rows, len(network.start)), dtype=np.int64), np.empty(num_rows, dtype=np.int64)
    best = np.empty(max(beam.beam for beam in beams), dtype=modified_kernel.EXTENSION)
    unk_id = -1 if network.unk_id is None else network.unk_id
    left = lengths.tolist()
    frame = 0
    while frame < end:
        # Searches have room for a number of frames; room is made in between.
        stop = min(
            frame + beam._ready(length - frame) for beam, length in zip(beams, left, strict=True) if length > frame
        )
        searches = fixed(np.array([beam._address for beam in beams], dtype=np.int64))
        count = modified_kernel.ask(searches, lengths, max_frames, frame, contexts, places)
        for now in range(frame, stop):
            logits = network.join(np.take(frames, places[:count], axis=0), cache(contexts[:count]))
            count = modified_kernel.step(
                searches,
                lengths,
                max_frames,
                now,
                as_answers(logits, count, network),
                network.blank_id,
                unk_id,
                best,
                contexts,
                places,
            )
        frame = stop
