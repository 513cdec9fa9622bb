"""Searches of transducers on the GPU that has encoder, predictor and joiner; imports torch.

encoder_out on the device, options of each row  ->  tokens or hypotheses of each row
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.runtime.cuda.loop import DeviceLoops
from tritone.runtime.graph import Array
from tritone.search.device.bonuses import BonusTables
from tritone.search.device.greedy import LOOK_AHEAD, GreedyLoop, look_ahead
from tritone.search.device.kernels_for import kernels_for, stateful_beams_for, stateful_for, whole_for
from tritone.search.device.modified_beam import ModifiedBeamLoop
from tritone.search.device.stateful import FIRST, StatefulLoop, StateRows
from tritone.search.device.stateful_beam import StatefulBeamLoop, beam_rows
from tritone.search.device.stateless import stateless_weights
from tritone.search.hypothesis import Hypothesis, TokenRow
from tritone.search.options import SearchOptions
from tritone.search.transducer.device_beam import DeviceBeam, DeviceState
from tritone.search.transducer.traced import traced

LEAST_FRAMES = 16


class GreedyTokens(NamedTuple):
    """What greedy search finds in some rows: tokens, whose frames count from the row's first, and the last contexts."""

    tokens: list[TokenRow]
    contexts: Array  # (rows, context_size) int64


class DeviceTransducer:
    """Searches with a predictor and a joiner on one device. May be called from several threads."""

    def __init__(self, network: Any, device: str) -> None:
        """Take the `GraphNetwork`, whose graphs are run by torch on `device`."""

        self._network = network
        self._place = device
        self._kernels = stateful_for(device) if network.state_names else kernels_for(device)
        weights = stateless_weights(network.predictor_graph.program, network.joiner_graph.program)
        whole = None if weights is None else whole_for(device)
        self._whole = whole if whole is not None and whole.can_search(weights) else None
        self._weights = weights
        self._loops = DeviceLoops(device)
        self._made: dict[Any, Any] = {}
        self._state_rows: dict[int, Any] = {}  # `StateRows` of greedy searches, 0, and of each beam
        self._tables: Any = None  # `BonusTables`, once there are hotwords
        self._making = threading.Lock()

    def compile(self, rows: int, done: Callable[[Any], None], beam: int = 0) -> None:
        """Compile predictor and joiner for steps of `stateful`, or with a beam of `beams`, with up to so many rows.

        A step of either is some twenty small kernels, and a joiner's product is slow where the number of tokens is no
        multiple of eight: the compiler puts the former together and pads the latter.

        Args:
            done: as of `CompilableGraph.compile`.

        Raises:
            OperatorError: as of `ShapedGraph.compile_shapes`.
        """

        network, most = self._network, _padded((rows, 1))[0]
        for graph, outputs, each in (
            (network.predictor_graph, _stepped(network), most * max(1, beam)),
            (network.joiner_graph, ("logits",), most * (beam or LOOK_AHEAD)),
        ):
            shapes = {name: (each, *spec.shape[1:]) for name, spec in graph.inputs.items()}
            graph.compile_shapes([shapes], outputs, done=done)
        self._loops.between(self._made.clear)  # loops have the functions as they were

    def greedy(
        self,
        encoder_out: Any,
        num_frames: npt.NDArray[np.integer[Any]],
        contexts: npt.NDArray[np.int64],
        penalties: Sequence[float],
        max_symbols: int,
    ) -> GreedyTokens:
        """Search some rows greedily, as `advance_greedy` does.

        Args:
            encoder_out: (rows, frames, dim), held on the device or an array.
            contexts: (rows, context_size) the last tokens before the first frame.
            max_symbols: the most tokens of one frame, of all rows.
        """

        count = len(num_frames)
        shape = _padded(encoder_out.shape)
        penalised = any(penalties)
        small = [
            _filled(np.clip(num_frames, 0, encoder_out.shape[1]), shape[0], np.int64),
            _filled(contexts, shape[0], np.int64),
            _filled(penalties, shape[0], np.float32),
        ]
        ahead = look_ahead(encoder_out.shape[1]) if self._whole is None else LOOK_AHEAD
        name = "greedy", max_symbols, penalised, ahead

        def make() -> Any:
            if self._whole is not None:
                return self._whole.WholeGreedy(self._weights, **self._tokens, max_symbols=max_symbols)
            return GreedyLoop(**self._of_network(), max_symbols=max_symbols, penalised=penalised, look_ahead=ahead)

        loop, steps = self._loop(name, make), None if self._whole is None else 0
        found = self._loops(name, loop, encoder_out, shape, small, steps, block=max(2, ahead))
        counts, fields, log_probs, last = found
        most = int(counts.max(initial=0))
        confidences = np.exp(np.minimum(log_probs[:count, :most], 0))
        rows = [
            TokenRow(fields[0, row, :found], times := fields[1, row, :found], times + 1, confidences[row, :found])
            for row, found in enumerate(counts[:count].tolist())
        ]
        return GreedyTokens(rows, last[:count])

    def stateful(
        self,
        searches: Sequence[DeviceState],
        encoder_out: Any,
        num_frames: npt.NDArray[np.integer[Any]],
        *,
        goes_on: bool = True,
    ) -> list[TokenRow]:
        """Search further frames of some rows greedily with a predictor that has a state, as `advance_stateful` does.

        Args:
            searches: one for each row, all different.
            encoder_out: (rows, frames, dim), held on the device or an array.
            goes_on: whether frames may follow.
        """

        reads = [each.row or FIRST for each in searches]
        state_rows = self._rows_with(searches if goes_on else (), 0)
        shape = _padded(encoder_out.shape)
        lengths = np.clip(num_frames, 0, encoder_out.shape[1]).tolist()
        numbers = [
            (count, each.ahead, each.symbols, each.max_symbols, read, each.row)
            for each, count, read in zip(searches, lengths, reads, strict=True)
        ]
        penalties = [each.blank_penalty for each in searches]
        most, penalised = max(each.max_symbols for each in searches), any(penalties)
        ahead = look_ahead(encoder_out.shape[1])
        name = "stateful", most, penalised, ahead

        def make() -> Any:
            network = self._of_stateful(state_rows)
            return StatefulLoop(**network, max_symbols=most, penalised=penalised, look_ahead=ahead)

        small = [_filled(numbers, shape[0], np.int64), _filled(penalties, shape[0], np.float32)]
        # One block is computed in vain, so in short chunks of streams they are short too.
        loop, steps = self._loop(name, make), max(2, ahead)
        (block,) = self._loops(name, loop, encoder_out, shape, small, None, block=steps)
        heads, longest = block[: len(searches), :3, 0].tolist(), 1 + int(block[: len(searches), 0, 0].max())
        fields = block[: len(searches), :, 1:longest].copy()  # of a block that is mostly room
        fields[:, 1:3] += np.array([each.num_frames for each in searches], np.int32)[:, None, None]
        confidences = np.exp(np.minimum(fields[:, 3].view(np.float32), 0))
        found = []
        for row, (search, count) in enumerate(zip(searches, lengths, strict=True)):
            tokens, search.ahead, search.symbols = heads[row]
            search.num_frames += count
            ids, starts, ends = fields[row, :3, :tokens]
            found.append(TokenRow(ids, starts, ends, confidences[row, :tokens]))
        return found

    @staticmethod
    def takes(scorer: Any) -> bool:
        """Whether beams here can have a scorer, see `BonusTables.takes`."""

        return BonusTables.takes(scorer)

    def share(self, scorer: Any) -> Any:
        """The place of a scorer of hotwords in the tables of beams, as of `BonusTables.share`."""

        with self._making:
            if self._tables is None:
                silent = (self._network.blank_id,)
                self._tables = BonusTables(scorer.num_tokens, silent, self._place, self._loops.between)
        return self._tables.share(scorer)

    def beams(
        self,
        searches: Sequence[DeviceBeam],
        encoder_out: Any,
        num_frames: npt.NDArray[np.integer[Any]],
    ) -> None:
        """Search further frames of some rows by modified beam search with a predictor that has a state.

        Args:
            searches: one for each row, all different and with the same beam.
            encoder_out: (rows, frames, dim), held on the device or an array.
        """

        beam = searches[0].beam
        state_rows = self._rows_with(searches, beam)
        tables = self._tables if any(each.share is not None for each in searches) else None
        shape = _padded(encoder_out.shape)
        penalties = [each.blank_penalty for each in searches]
        penalised = any(penalties)
        name = "stateful-beam", beam, penalised, tables is not None

        def make() -> Any:
            # Tried with the first beam, as most models have none; nothing else is recorded meanwhile.
            self._loops.between(lambda: stateful_beams_for(self._place), False)
            network = self._of_stateful(state_rows) | {"kernels": stateful_beams_for(self._place)}
            return StatefulBeamLoop(**network, tables=tables, beam=beam, penalised=penalised)

        loop, block = self._loop(name, make), max(2, look_ahead(encoder_out.shape[1]))
        weights = [
            _filled(penalties, shape[0], np.float32),
            _filled([each.temperature for each in searches], shape[0], np.float64, 1.0),
        ]
        first, ends = np.zeros(len(searches), np.int64), np.clip(num_frames, 0, encoder_out.shape[1])
        while np.any(first < ends):
            # A stream goes as far as old differences are decided, and then on.
            counts = [each.ready(left) for each, left in zip(searches, (ends - first).tolist(), strict=True)]
            numbers = [
                (at, count, each.row if each.num_frames else FIRST, each.row, each.entry, each.kept)
                for each, at, count in zip(searches, first.tolist(), counts, strict=True)
            ]
            small = [_filled(numbers, shape[0], np.int64), *weights]
            scores, hashes, found = self._loops(name, loop, encoder_out, shape, small, max(counts), block=block)
            for row, (search, count) in enumerate(zip(searches, counts, strict=True)):
                search.follow(scores[row].copy(), hashes[row].copy(), found[row], count)
            first += counts

    def _rows_with(self, searches: Sequence[DeviceState] | Sequence[DeviceBeam], beam: int) -> Any:
        """The states of searches, greedy ones if `beam` is 0; each of these has a row there as long as it is there."""

        with self._making:
            if beam not in self._state_rows:
                vector, states = self._network.first
                if beam:
                    rows = beam_rows(vector, states, beam, self._place)
                else:
                    rows = StateRows([vector, *states], self._place)
                self._loops.between(rows.grow)
                self._state_rows[beam] = rows
            rows = self._state_rows[beam]
            for search in searches:
                if not search.row:
                    if not rows.free:
                        self._loops.between(rows.grow)
                    search.row = rows.free.popleft()
                    weakref.finalize(search, rows.free.append, search.row).atexit = False
            return rows

    def modified_beam(
        self,
        encoder_out: Any,
        num_frames: npt.NDArray[np.integer[Any]],
        options: Sequence[SearchOptions],
    ) -> list[list[Hypothesis]]:
        """Search whole utterances by modified beam search without a scorer.

        Args:
            encoder_out: (rows, frames, dim), held on the device or an array.
            options: of each row; the beam is that of the first.
        """

        shape = _padded(encoder_out.shape)
        lengths = np.clip(num_frames, 0, encoder_out.shape[1]).astype(np.int64)
        beam, penalties = options[0].beam, [each.blank_penalty for each in options]
        penalised = any(penalties)
        small = [
            _filled(lengths, shape[0], np.int64),
            _filled(penalties, shape[0], np.float32),
            _filled([each.temperature for each in options], shape[0], np.float64, 1.0),
        ]
        name = "modified-beam", beam, penalised

        def make() -> Any:
            start = self._network.start
            if self._whole is not None:
                return self._whole.WholeBeam(self._weights, **self._tokens, beam=beam, start=start)
            return ModifiedBeamLoop(**self._of_network(), beam=beam, start=start, penalised=penalised)

        most = int(lengths.max(initial=0)) if self._whole is None else 0
        totals, pointers, log_probs = self._loops(name, self._loop(name, make), encoder_out, shape, small, most)
        counts = [each.num_hypotheses for each in options]
        return traced(totals, pointers, log_probs, lengths, len(self._network.start), counts)

    def _loop(self, name: Any, make: Callable[[], Any]) -> Any:
        if name not in self._made:  # two threads may make it; one of them is kept
            self._made.setdefault(name, make())
        return self._made[name]

    @property
    def _tokens(self) -> dict[str, Any]:
        return {"blank_id": self._network.blank_id, "unk_id": self._network.unk_id}

    def _of_stateful(self, state_rows: Any) -> dict[str, Any]:
        network = self._network
        inputs, states = tuple(network.predictor_graph.inputs), network.state_names
        step = network.predictor_graph.function(_stepped(network))
        join = network.joiner_graph.function(("logits",))

        def predict(tokens: Any, *values: Any) -> Any:
            feed = {"context": tokens, **dict(zip(states, values, strict=True))}
            return step(*(feed[name] for name in inputs))

        return {
            "predict": predict,
            "join": lambda frames, vectors: join(frames, vectors)[0],
            "rows": state_rows,
            "vocab_size": network.vocab_size,
            "blank_id": network.blank_id,
            "durations": network.durations,
            "device": self._place,
            "kernels": self._kernels,
        }

    def _of_network(self) -> dict[str, Any]:
        network = self._network
        predict = network.predictor_graph.function(("predictor_out",))
        join = network.joiner_graph.function(("logits",))
        return {
            "predict": lambda contexts: predict(contexts)[0],
            "join": lambda frames, vectors: join(frames, vectors)[0],
            "vocab_size": network.vocab_size,
            **self._tokens,
            "device": self._place,
            "kernels": self._kernels,
        }


def _stepped(network: Any) -> tuple[str, ...]:
    """The outputs of a predictor that has a state, in the order of `StatefulNetwork.step`."""
    return ("predictor_out", *(f"next_{name}" for name in network.state_names))


def _padded(shape: tuple[int, ...]) -> tuple[int, int]:
    """Few shapes, because each is recorded: powers of two. What is added takes memory and next to no time."""
    rows, frames = shape[:2]
    return 1 << max(0, rows - 1).bit_length(), 1 << (max(LEAST_FRAMES, frames) - 1).bit_length()


def _filled(values: Any, rows: int, dtype: Any, fill: float = 0) -> Array:
    given = np.asarray(values, dtype)
    filled = np.full((rows, *given.shape[1:]), fill, dtype)
    filled[: len(given)] = given
    return filled
