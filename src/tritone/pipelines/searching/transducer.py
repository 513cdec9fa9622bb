"""The search of transducers: greedy, modified beam, fast beam; predictor and joiner are graphs of the bundle.

encoder_out of some utterances or streams  ->  hypotheses
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.searching.assembly import ReadingBuilder
from tritone.pipelines.searching.base import Searching, SearchSettings
from tritone.pipelines.searching.segment import Segment
from tritone.runtime.graph import Array
from tritone.search.beam.prefix_tree import HISTORY
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.options import SearchOptions
from tritone.search.transducer.fast_beam import FastBeam, advance_fast
from tritone.search.transducer.greedy import CALL_ROWS, GreedyState, advance_greedy
from tritone.search.transducer.modified_beam import ModifiedBeam, advance_modified
from tritone.search.transducer.network import Contexts, Network, Vectors
from tritone.search.transducer.predictor import PredictorCache

OUTPUTS = ("encoder_out", "num_frames")  # of the encoder, however it is searched
WARM_UP_FRAMES = 8
# What a call of the joiner costs on top on a GPU, in rows: launches and copies take some 0.2 ms, a row 1 us.
GPU_CALL_ROWS = 200

Search: TypeAlias = GreedyState | ModifiedBeam | FastBeam


class GraphNetwork:
    """Predictor and joiner of a bundle as graphs; see `Network`."""

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
        """See `Network.predict`."""
        (vectors,) = self._predict({"context": contexts}, ("predictor_out",))
        return vectors

    def join(self, encoder_out: Vectors, predictor_out: Vectors) -> Array:
        """See `Network.join`."""
        (logits,) = self._join({"encoder_out": encoder_out, "predictor_out": predictor_out}, ("logits",))
        return logits


class TransducerSearching(Searching):
    """See `Searching`."""

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
        call_rows = CALL_ROWS if device == "cpu" else GPU_CALL_ROWS
        self._advances: Mapping[type, Callable[..., Any]] = {
            GreedyState: partial(advance_greedy, call_rows=call_rows),
            ModifiedBeam: advance_modified,
            FastBeam: advance_fast,
        }
        self._cache = PredictorCache(network)
        self.options = self.check(self._settings.options)

    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        """See `Searching.outputs`."""
        return OUTPUTS

    def search(self, results: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        """See `Searching.search`."""
        searches = [self._start(each, history=None) for each in options]
        greedy = self._advance(searches, results)
        return [
            [Hypothesis(tokens, 0.0)] if isinstance(search, GreedyState) else search.hypotheses(count, final=True)
            for search, count, tokens in zip(searches, (each.num_hypotheses for each in options), greedy, strict=True)
        ]

    def start_segment(self, builder: ReadingBuilder, options: SearchOptions, first_frame: int = 0) -> Segment:
        """See `Searching.start_segment`."""
        search = self._start(options, history=HISTORY)
        return Segment(builder, options, search, first_frame, is_beam=not isinstance(search, GreedyState))

    def take_step(self, segments: Sequence[Segment], results: Mapping[str, Array]) -> None:
        """See `Searching.take_step`."""
        found = self._advance([segment.search for segment in segments], results)
        for segment, tokens, count in zip(segments, found, results["num_frames"].tolist(), strict=True):
            if isinstance(segment.search, GreedyState):
                segment.add_tokens(tokens, count)
            else:
                segment.read_beam(count)

    def finish(self, segments: Sequence[Segment]) -> list[list[Hypothesis]]:
        """See `Searching.finish`."""
        return [each.hypotheses() for each in segments]

    def warm_up(self) -> None:
        """See `Searching.warm_up`."""
        frames = np.zeros((1, WARM_UP_FRAMES, self._bundle.manifest.encoder.output_dim), dtype=np.float32)
        self.search({"encoder_out": frames, "num_frames": np.array([WARM_UP_FRAMES])}, [self.options])

    def _start(self, options: SearchOptions, history: int | None) -> Search:
        """Begin to search; `history` as of the beams."""
        if options.mode == "greedy":
            return GreedyState(self._cache, blank_penalty=options.blank_penalty, max_symbols=options.max_symbols)
        scorer = self._scorer(options)
        common: dict[str, Any] = {
            "beam": options.beam,
            "blank_penalty": options.blank_penalty,
            "temperature": options.temperature,
            "scorer": scorer,
            "history": history,
        }
        if options.mode == "modified-beam":
            return ModifiedBeam(self._cache, **common)
        return FastBeam(
            self._cache,
            **common,
            max_states=options.max_states,
            max_contexts=options.max_contexts,
            nbest=options.nbest,
            # Its graph is that of the language model, where there is one.
            restrict=scorer is not None and scorer.arrays.has_lm,
        )

    def _advance(self, searches: Sequence[Search], results: Mapping[str, Array]) -> list[list[Token]]:
        """Search the frames of a batch, a search for each row; tells the new tokens of the greedy ones."""
        encoder_out, num_frames = results["encoder_out"], results["num_frames"]
        found: list[list[Token]] = [[] for _ in searches]
        for kind, advance in self._advances.items():
            rows = [row for row, search in enumerate(searches) if isinstance(search, kind)]
            if not rows:
                continue
            everything = len(rows) == len(searches)
            tokens = advance(
                [searches[row] for row in rows],
                encoder_out if everything else encoder_out[rows],
                num_frames if everything else num_frames[rows],
            )
            for row, each in zip(rows, tokens or (), strict=False):
                found[row] = each
        return found
