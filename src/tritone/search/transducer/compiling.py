"""Compiling what searches in transducers need, or loading it from the cache, so that no request waits for it."""

from typing import Any

import numpy as np

from tritone.search.options import SearchMode, SearchOptions
from tritone.search.transducer.network import Contexts, Vectors
from tritone.search.transducer.predictor import PredictorCache

FRAMES, HISTORY = 6, 2  # more than are kept, so that what settles and makes room is compiled, too
SPELLINGS = ("", "a", " ")


class _EvenNetwork:
    """Holds all tokens for equally likely."""

    vocab_size = len(SPELLINGS)
    blank_id = 0
    unk_id: int | None = None
    start: tuple[int, ...] = (-1, 0)

    def predict(self, contexts: Contexts) -> Vectors:
        return np.zeros((len(contexts), 1), dtype=np.float32)

    def join(self, encoder_out: Vectors, predictor_out: Vectors) -> Vectors:
        return np.zeros((len(encoder_out), self.vocab_size), dtype=np.float32)


def compile_search(mode: SearchMode) -> None:
    """Compile what a transducer needs to be searched in this way, with and without a scorer."""
    cache = PredictorCache(_EvenNetwork())
    frames, counts = np.zeros((1, FRAMES, 1), dtype=np.float32), np.array([FRAMES])
    if mode == "greedy":
        from tritone.search.transducer.greedy import GreedyState, advance_greedy

        advance_greedy([GreedyState(cache, blank_penalty=1.0)], frames, counts)
        return
    from tritone.search.scoring.scorer import Scorer
    from tritone.search.transducer.batch import TransducerBeam, advance_beams
    from tritone.search.transducer.fast_beam import FastBeam
    from tritone.search.transducer.modified_beam import ModifiedBeam

    scorer = Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=(("a", 1.0),))
    for each in (None, scorer):
        beam: TransducerBeam
        if mode == "modified-beam":
            beam = ModifiedBeam(cache, beam=2, scorer=each, history=HISTORY)
        else:
            beam = FastBeam(cache, max_states=4, max_contexts=2, nbest=2, scorer=each, history=HISTORY)
        advance_beams([beam], frames, counts)
        beam.take_settled()
        beam.hypotheses(2, final=True)
    if mode == "modified-beam":
        _compile_device_beam(scorer)


def _compile_device_beam(scorer: Any) -> None:
    """Compile what a beam on a device needs on the host."""
    from tritone.search.scoring.expanded import expanded
    from tritone.search.transducer.device_beam import DeviceBeam

    expanded(scorer, (_EvenNetwork.blank_id,))
    beam = DeviceBeam(SearchOptions(mode="modified-beam", beam=2), history=HISTORY)
    for _ in range(FRAMES):
        beam.ready(1)
        beam.follow(np.zeros((3, 2)), np.arange(2), np.zeros((3, 1, 2), dtype=np.int32), 1)
    beam.take_settled()
    beam.hypotheses(2, final=True)
