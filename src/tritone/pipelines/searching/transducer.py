"""The search of transducers: greedy, modified beam and fast beam, with the bundle's predictor and joiner.

encoder_out of some utterances or streams  ->  hypotheses
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import BundleError
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.searching.base import Searching, SearchSettings
from tritone.pipelines.searching.search import BeamSearch, GreedySearch, Search, of_rows
from tritone.runtime.graph import Array
from tritone.search.beam.beam import HISTORY
from tritone.search.options import TRANSDUCER_MODES, SearchOptions
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.fast_beam import FastBeam
from tritone.search.transducer.greedy import CALL_ROWS, GreedyState, advance_greedy
from tritone.search.transducer.modified_beam import ModifiedBeam
from tritone.search.transducer.network import Contexts, Network, Vectors
from tritone.search.transducer.predictor import PredictorCache

OUTPUTS = ("encoder_out", "num_frames")  # of the encoder, however it is searched
WARM_UP_FRAMES = 8
# What a call of the joiner costs on top on a GPU, in rows: launches and copies take some 0.2 ms, a row 1 us.
GPU_CALL_ROWS = 200

if TYPE_CHECKING:
    from typing_extensions import Self

    from tritone.search.scoring.scorer import Scorer


class GraphNetwork:
    """Predictor and joiner of a bundle, run as graphs; a `Network`."""

    def __init__(self, bundle: Bundle, placement: Placement = ON_CPU) -> None:
        """Open the graphs; arguments and errors as of `open_chosen`."""
        settings = bundle.manifest.transducer
        if settings is None:
            raise BundleError(f"{bundle.path} is no transducer: `transducer` in its manifest is empty")
        self.predictor, self._predict = open_chosen(bundle, "predictor", placement)
        self.joiner, self._join = open_chosen(bundle, "joiner", placement)
        vocabulary = bundle.manifest.tokens
        self.vocab_size = vocabulary.size
        self.blank_id = vocabulary.blank_id
        self.unk_id = vocabulary.unk_id
        self.start = settings.start

    def predict(self, contexts: Contexts) -> Vectors:
        (vectors,) = self._predict({"context": contexts}, ("predictor_out",))
        return vectors

    def join(self, encoder_out: Vectors, predictor_out: Vectors) -> Array:
        (logits,) = self._join({"encoder_out": encoder_out, "predictor_out": predictor_out}, ("logits",))
        return logits


class TransducerGreedySearch(GreedySearch):
    """Greedy search of one utterance or stream."""

    def __init__(self, options: SearchOptions, cache: PredictorCache, call_rows: int) -> None:
        """Start a search; `call_rows` as of `advance_greedy`."""
        super().__init__(options)
        self._state = GreedyState(cache, blank_penalty=options.blank_penalty, max_symbols=options.max_symbols)
        self._call_rows = call_rows

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        states, call_rows = [search._state for search in searches], searches[0]._call_rows
        for search, tokens in zip(
            searches, advance_greedy(states, *_frames(outputs, rows), call_rows=call_rows), strict=True
        ):
            search.add(tokens)


class TransducerBeamSearch(BeamSearch):
    """Beam search of one utterance or stream; those of one batch ask predictor and joiner together."""

    _state: ModifiedBeam | FastBeam

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        advance_beams([search._state for search in searches], *_frames(outputs, rows))


class ModifiedBeamSearch(TransducerBeamSearch):
    """Modified beam search of one utterance or stream."""

    def __init__(
        self, options: SearchOptions, cache: PredictorCache, scorer: "Scorer | None", history: int | None
    ) -> None:
        """Start a search; `scorer` and `history` as of the beam."""
        self._state = ModifiedBeam(
            cache,
            beam=options.beam,
            blank_penalty=options.blank_penalty,
            temperature=options.temperature,
            scorer=scorer,
            history=history,
        )
        super().__init__(options, self._state)


class FastBeamSearch(TransducerBeamSearch):
    """Fast beam search of one utterance or stream."""

    def __init__(
        self, options: SearchOptions, cache: PredictorCache, scorer: "Scorer | None", history: int | None
    ) -> None:
        """Start a search; `scorer` and `history` as of the beam."""
        self._state = FastBeam(
            cache,
            beam=options.beam,
            blank_penalty=options.blank_penalty,
            temperature=options.temperature,
            scorer=scorer,
            history=history,
            max_states=options.max_states,
            max_contexts=options.max_contexts,
            nbest=options.nbest,
            # Its graph is that of the language model, where there is one.
            restrict=scorer is not None and scorer.has_lm,
        )
        super().__init__(options, self._state)


def _frames(outputs: Mapping[str, Array], rows: Sequence[int]) -> tuple[Array, Array]:
    encoder_out, num_frames = (of_rows(outputs[name], rows) for name in OUTPUTS)
    return encoder_out, num_frames


class TransducerSearching(Searching):
    """Searches outputs of transducers."""

    modes = TRANSDUCER_MODES

    @classmethod
    def roles(cls, mode: str) -> tuple[Role, ...]:
        return "predictor", "joiner"

    def __init__(
        self,
        bundle: Bundle,
        network: Network,
        settings: SearchSettings | None = None,
        *,
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        """Prepare for a bundle.

        Args:
            network: its predictor and joiner, which run on `device`.
            settings, threads: as of `Searching`, errors too.
        """
        super().__init__(bundle, settings, threads=threads)
        self._call_rows = CALL_ROWS if device == "cpu" else GPU_CALL_ROWS
        self._cache = PredictorCache(network)
        self.options = self.check(self._settings.options)

    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        return OUTPUTS

    def start(self, options: SearchOptions, *, history: int | None = HISTORY) -> Search:
        if options.mode == "greedy":
            return TransducerGreedySearch(options, self._cache, self._call_rows)
        kind = ModifiedBeamSearch if options.mode == "modified-beam" else FastBeamSearch
        return kind(options, self._cache, self._scorer(options), history)

    def warm_up(self) -> None:
        frames = np.zeros((1, WARM_UP_FRAMES, self._bundle.manifest.encoder.output_dim), dtype=np.float32)
        self.search({"encoder_out": frames, "num_frames": np.array([WARM_UP_FRAMES])}, [self.options])
