"""The search of transducers: greedy, modified beam and fast beam, with the bundle's predictor and joiner.

encoder_out of some utterances or streams  ->  hypotheses
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import BundleError
from tritone.kinds.transducer.part import TransducerPart
from tritone.later import later
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.searching.base import Searching, SearchSettings
from tritone.pipelines.searching.search import BeamSearch, GreedySearch, Search, advance, of_rows
from tritone.runtime.graph import HELD, Array, Bucket
from tritone.search.hypothesis import Hypothesis, Token, moved_by
from tritone.search.options import HISTORY, TRANSDUCER_MODES, SearchOptions
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.device_beam import MAX_DEVICE_BEAM, DeviceBeam, DeviceState
from tritone.search.transducer.fast_beam import FastBeam
from tritone.search.transducer.greedy import CALL_ROWS, GreedyState, advance_greedy
from tritone.search.transducer.memory import StatefulPredictor
from tritone.search.transducer.modified_beam import ModifiedBeam
from tritone.search.transducer.network import Contexts, Network, StatefulNetwork, States, Vectors
from tritone.search.transducer.predictor import PredictorCache
from tritone.search.transducer.stateful import StatefulState, advance_stateful

OUTPUTS = ("encoder_out", "num_frames")  # of the encoder, however it is searched
HELD_OUT = f"{HELD}encoder_out"  # in place of the first where the search is on the device too
WARM_UP_FRAMES = 8
# What a call of the joiner costs on top on a GPU, in rows: launches and copies take some 0.2 ms, a row 1 us.
GPU_CALL_ROWS = 200

if TYPE_CHECKING:
    from typing import Self

    from tritone.pipelines.searching import on_device
    from tritone.search.scoring.scorer import Scorer
else:
    on_device = later("on_device")


class GraphNetwork:
    """Predictor and joiner of a bundle, run as graphs; a `Network`, and where the predictor has states a
    `StatefulNetwork`.
    """

    def __init__(self, bundle: Bundle, placement: Placement = ON_CPU) -> None:
        """Open the graphs; arguments and errors as of `open_chosen`."""
        settings = bundle.manifest.find(TransducerPart)
        if settings is None:
            raise BundleError(f"{bundle.path} is no transducer: `transducer` in its manifest is empty")
        self.predictor, self.predictor_graph = open_chosen(bundle, "predictor", placement)
        self.joiner, self.joiner_graph = open_chosen(bundle, "joiner", placement)
        vocabulary = bundle.manifest.tokens
        self.vocab_size = vocabulary.size
        self.blank_id = vocabulary.blank_id
        self.unk_id = vocabulary.unk_id
        self.start = settings.start
        self.durations = settings.durations
        self._states = settings.states

    def predict(self, contexts: Contexts) -> Vectors:
        (vectors,) = self.predictor_graph({"context": contexts}, ("predictor_out",))
        return vectors

    def join(self, encoder_out: Vectors, predictor_out: Vectors) -> Array:
        (logits,) = self.joiner_graph({"encoder_out": encoder_out, "predictor_out": predictor_out}, ("logits",))
        return logits

    def step(self, tokens: Contexts, states: States) -> tuple[Vectors, States]:
        feed = {"context": tokens, **{each.name: value for each, value in zip(self._states, states, strict=True)}}
        vectors, *found = self.predictor_graph(feed, ("predictor_out", *(f"next_{each.name}" for each in self._states)))
        return vectors, found

    @property
    def state_names(self) -> tuple[str, ...]:
        """Inputs of the predictor that are states, in the order of `step`."""
        return tuple(each.name for each in self._states)

    @cached_property
    def first(self) -> tuple[Vectors, States]:
        return self.step(
            np.array([self.start], np.int64), [np.zeros((1, *each.sizes(0)), each.dtype) for each in self._states]
        )

    @property
    def is_on_gpu(self) -> bool:
        """Whether both are programs of torch on a GPU, so that searches can run there."""
        return all(getattr(graph, "is_on_gpu", False) for graph in (self.predictor_graph, self.joiner_graph))


class TransducerGreedySearch(GreedySearch):
    """Greedy search of one utterance or stream."""

    def __init__(
        self,
        options: SearchOptions,
        cache: PredictorCache,
        call_rows: int,
        device: "on_device.DeviceTransducer | None" = None,
    ) -> None:
        """Start a search, on a device if there is one; `call_rows` as of `advance_greedy`."""
        super().__init__(options)
        assert options.max_symbols is not None
        self._state = GreedyState(cache, blank_penalty=options.blank_penalty, max_symbols=options.max_symbols)
        self._call_rows = call_rows
        self._device = device

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        states, call_rows, device = [search._state for search in searches], searches[0]._call_rows, searches[0]._device
        if device is None or HELD_OUT not in outputs:
            found: Sequence[Sequence[Token]] = advance_greedy(states, *_frames(outputs, rows), call_rows=call_rows)
        else:
            found = advance_on_device(device, states, outputs, rows)
        for search, tokens in zip(searches, found, strict=True):
            search.add(tokens)


class StatefulGreedySearch(GreedySearch):
    """Greedy search of one utterance or stream, with a predictor that has a state."""

    def __init__(self, options: SearchOptions, network: StatefulNetwork) -> None:
        """Start a search."""
        super().__init__(options)
        assert options.max_symbols is not None
        self._state = StatefulState(network, blank_penalty=options.blank_penalty, max_symbols=options.max_symbols)

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        found = advance_stateful([search._state for search in searches], *_frames(outputs, rows))
        for search, tokens in zip(searches, found, strict=True):
            search.add(tokens)


class StatefulDeviceSearch(GreedySearch):
    """The same on a device, which keeps the state of a stream."""

    def __init__(self, options: SearchOptions, device: "on_device.DeviceTransducer") -> None:
        """Start a search."""
        super().__init__(options)
        self._device, self._state = device, DeviceState(options)

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Any], rows: Sequence[int]) -> None:
        states, frames = [search._state for search in searches], outputs[HELD_OUT].rows(rows)
        found = searches[0]._device.stateful(states, frames, of_rows(outputs["num_frames"], rows))
        for search, tokens in zip(searches, found, strict=True):
            if tokens:  # of hundreds of streams few have any in a step
                search.add(tokens)


class TransducerBeamSearch(BeamSearch):
    """Beam search of one utterance or stream; those of one batch ask predictor and joiner together."""

    def __init__(
        self,
        options: SearchOptions,
        cache: PredictorCache | StatefulPredictor,
        scorer: "Scorer | None",
        history: int | None,
    ) -> None:
        """Start a search; `cache`, `scorer` and `history` as of the beam."""
        common: dict[str, Any] = {
            "beam": options.beam,
            "blank_penalty": options.blank_penalty,
            "temperature": options.temperature,
            "scorer": scorer,
            "history": history,
        }
        self._state: ModifiedBeam | FastBeam
        if options.mode == "modified-beam":
            self._state = ModifiedBeam(cache, **common)
        else:
            assert isinstance(cache, PredictorCache)  # see `obstacle`
            self._state = FastBeam(
                cache,
                **common,
                max_states=options.max_states,
                max_contexts=options.max_contexts,
                nbest=options.nbest,
                # Its graph is that of the language model, where there is one.
                restrict=scorer is not None and scorer.has_lm,
            )
        super().__init__(options, self._state)

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        advance_beams([search._state for search in searches], *_frames(outputs, rows))


class DeviceBeamSearch(BeamSearch):
    """Modified beam search on a device with a predictor that has a state; the device keeps what it found."""

    def __init__(
        self, options: SearchOptions, device: "on_device.DeviceTransducer", share: Any, history: int | None
    ) -> None:
        """Start a search; `share` and `history` as of `DeviceBeam`."""
        self._device, self._state = device, DeviceBeam(options, share=share, history=history)
        super().__init__(options, self._state)

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Any], rows: Sequence[int]) -> None:
        for beam in sorted({search._state.beam for search in searches}):
            places = [place for place, search in enumerate(searches) if search._state.beam == beam]
            chosen, asked = [searches[place] for place in places], [rows[place] for place in places]
            states, frames = [search._state for search in chosen], outputs[HELD_OUT].rows(asked)
            chosen[0]._device.beams(states, frames, of_rows(outputs["num_frames"], asked))


class ModifiedBeamSearch(TransducerBeamSearch):
    """Modified beam search of one utterance or stream; of one class, as all that advance together are."""


class FastBeamSearch(TransducerBeamSearch):
    """Fast beam search of one utterance or stream."""


def advance_on_device(
    device: "on_device.DeviceTransducer", states: Sequence[GreedyState], outputs: Mapping[str, Any], rows: Sequence[int]
) -> list[list[Token]]:
    """Search further frames of some rows on the device, as `advance_greedy` does on the CPU."""
    new: list[list[Token]] = [[] for _ in states]
    for most in sorted({state.max_symbols for state in states}):
        places = [place for place, state in enumerate(states) if state.max_symbols == most]
        chosen, asked = [states[place] for place in places], [rows[place] for place in places]
        found = device.greedy(
            outputs[HELD_OUT].rows(asked),
            num_frames := outputs["num_frames"][asked],
            np.stack([state.context for state in chosen]),
            [state.blank_penalty for state in chosen],
            most,
        )
        for place, state, tokens, context, count in zip(places, chosen, *found, num_frames.tolist(), strict=True):
            new[place] = moved_by(tokens, state.num_frames)
            state.context = context
            state.num_tokens += len(tokens)
            state.num_frames += max(0, count)
    return new


def _frames(outputs: Mapping[str, Any], rows: Sequence[int]) -> tuple[Array, Array]:
    encoder_out = outputs["encoder_out"] if "encoder_out" in outputs else outputs[HELD_OUT].numpy()
    return of_rows(encoder_out, rows), of_rows(outputs["num_frames"], rows)


class TransducerSearching(Searching):
    """Searches outputs of transducers."""

    modes = TRANSDUCER_MODES

    @classmethod
    def roles(cls, mode: str) -> tuple[Role, ...]:
        return "predictor", "joiner"

    @classmethod
    def obstacle(cls, bundle: Bundle, mode: str) -> str | None:
        settings = bundle.manifest.find(TransducerPart)
        if mode == "fast-beam" and settings is not None and settings.states:
            named = "a TDT model" if settings.durations else "a transducer"
            return (
                f"this is {named} whose predictor has a state (an LSTM), so no two of its hypotheses go on alike, as "
                f"{mode} needs; take modified-beam, or greedy"
            )
        return super().obstacle(bundle, mode)

    def __init__(
        self,
        bundle: Bundle,
        network: Network,
        settings: SearchSettings | None = None,
        *,
        threads: int | None = None,
        device: str = "cpu",
        graph: Any = None,
    ) -> None:
        """Prepare for a bundle.

        Args:
            network: its predictor and joiner, which run on `device`.
            settings, threads: as of `Searching`, errors too.
            graph: the encoder. If all three are programs of torch on a GPU, greedy search runs there too, and modified
                beam search: of whole utterances without a scorer where the predictor has no state, and where it has
                one of streams too, with hotwords that `BonusTables` has room for, but no language model.
        """
        super().__init__(bundle, settings, threads=threads)
        self._call_rows = CALL_ROWS if device == "cpu" else GPU_CALL_ROWS
        described = bundle.manifest.part(TransducerPart)
        self._max_symbols = described.max_symbols
        self._stateful = cast(StatefulNetwork, network) if described.states else None
        self._cache = PredictorCache(network)
        self._predictor = self._cache if self._stateful is None else StatefulPredictor(self._stateful)
        on_gpu = getattr(graph, "is_on_gpu", False) and getattr(network, "is_on_gpu", False)
        self._device = on_device.DeviceTransducer(network, device) if on_gpu else None
        # Searching takes calls of the joiner, hardly more for a batch than for one utterance. Small networks are called
        # several times at once, and their searches are side by side as they are.
        self.waits_for_all = device == "cpu" and self._device is None and getattr(graph, "concurrency", 1) == 1
        self.options = self.check(self._settings.options)

    def _filled(self, options: SearchOptions) -> SearchOptions:
        filled = super()._filled(options)
        return filled if filled.max_symbols is not None else replace(filled, max_symbols=self._max_symbols)

    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        held = [self._is_on_device(each) for each in options]
        if not any(held):
            return OUTPUTS
        return (HELD_OUT, "num_frames") if all(held) else (HELD_OUT, *OUTPUTS)

    def search(self, outputs: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        held: Any = outputs.get(HELD_OUT)
        if self._device is None or held is None:
            return super().search(outputs, options)
        found: list[list[Hypothesis]] = [[] for _ in options]
        groups: dict[tuple[str, int], list[int]] = {}
        for row, asked in enumerate(options):
            # Beams with a predictor that has a state are started as those of streams are.
            if self._is_on_device(asked) and (self._stateful is None or asked.mode == "greedy"):
                number = asked.max_symbols if asked.mode == "greedy" else asked.beam
                assert number is not None
                groups.setdefault((asked.mode, number), []).append(row)
        for (mode, number), rows in groups.items():
            chosen, num_frames, frames = [options[row] for row in rows], outputs["num_frames"][rows], held.rows(rows)
            if mode == "greedy" and self._stateful is not None:
                states = [DeviceState(each) for each in chosen]
                new = self._device.stateful(states, frames, num_frames, goes_on=False)
                hypotheses = [[Hypothesis(tokens, 0.0)] for tokens in new]
            elif mode == "greedy":
                contexts = np.tile(np.array(self._cache.network.start, np.int64), (len(rows), 1))
                penalties = [each.blank_penalty for each in chosen]
                greedy = self._device.greedy(frames, num_frames, contexts, penalties, number)
                hypotheses = [[Hypothesis(tokens, 0.0)] for tokens in greedy.tokens]
            else:
                hypotheses = self._device.modified_beam(frames, num_frames, chosen)
            for row, each in zip(rows, hypotheses, strict=True):
                found[row] = each
        if others := [row for row, each in enumerate(found) if not each]:
            searches = [self.start(options[row], history=None) for row in others]
            advance(searches, outputs, others)
            for row, each in zip(others, self.finish(searches), strict=True):
                found[row] = each
        return found

    def _is_on_device(self, options: SearchOptions) -> bool:
        """Whether a whole utterance can be searched on the device."""
        if self._device is None or options.mode == "fast-beam":
            return False
        if options.mode == "greedy":
            return True
        scorer = self._scorer(options) if options.beam <= MAX_DEVICE_BEAM else None
        return options.beam <= MAX_DEVICE_BEAM and (
            scorer is None or (self._stateful is not None and self._device.takes(scorer))
        )

    def compile(
        self, buckets: Sequence[Bucket], compute: Callable[[int], Mapping[str, Any]], done: Callable[[Any], None]
    ) -> None:
        self.compile_steps(max(each.rows for each in buckets), done)

    def compile_steps(self, rows: int, done: Callable[[Any], None]) -> None:
        # A predictor without a state is searched by one kernel that has its weights, where there is one.
        if self._device is not None and self._stateful is not None and self._is_on_device(self.options):
            self._device.compile(rows, done, 0 if self.options.mode == "greedy" else self.options.beam)

    def runs_compiled(self, options: SearchOptions, *, in_steps: bool) -> bool:
        # A scorer is made by compiled code, beams of streams advance on the CPU, and tokens of those with a predictor
        # that has a state are kept there.
        on_cpu = options.mode != "greedy" and (in_steps or self._stateful is not None or self._is_scored(options))
        return on_cpu or not self._is_on_device(options)

    def start(self, options: SearchOptions, *, history: int | None = HISTORY) -> Search:
        if options.mode != "greedy":
            if self._device is not None and self._stateful is not None and self._is_on_device(options):
                scorer = self._scorer(options)
                share = None if scorer is None else self._device.share(scorer)
                if scorer is None or share is not None:  # else other requests have all room for hotwords
                    return DeviceBeamSearch(options, self._device, share, history)
            kind = ModifiedBeamSearch if options.mode == "modified-beam" else FastBeamSearch
            return kind(options, self._predictor, self._scorer(options), history)
        if self._stateful is not None and self._device is not None:
            return StatefulDeviceSearch(options, self._device)
        if self._stateful is not None:
            return StatefulGreedySearch(options, self._stateful)
        return TransducerGreedySearch(options, self._cache, self._call_rows, self._device)

    def warm_up(self) -> None:
        if self._is_on_device(self.options):
            return  # it is recorded when the pipeline runs silence through its graphs
        frames = np.zeros((1, WARM_UP_FRAMES, self._bundle.manifest.encoder.output_dim), dtype=np.float32)
        self.search({"encoder_out": frames, "num_frames": np.array([WARM_UP_FRAMES])}, [self.options])
