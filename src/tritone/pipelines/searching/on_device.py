"""Searches of transducers on the GPU that has encoder, predictor and joiner.

encoder_out on the device, options of each row  ->  tokens or hypotheses of each row
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis, TokenRow
from tritone.search.options import SearchOptions

MAX_DEVICE_BEAM = 16  # wider ones are searched on the CPU
LEAST_FRAMES = 16


class GreedyTokens(NamedTuple):
    """What greedy search finds in some rows: tokens, whose frames count from the row's first, and the last contexts."""

    tokens: list[TokenRow]
    contexts: Array  # (rows, context_size) int64


class DeviceTransducer:
    """Searches with a predictor and a joiner on one device. May be called from several threads."""

    def __init__(self, network: Any, device: str) -> None:
        """Take the `GraphNetwork`, whose graphs are run by torch on `device`."""
        from tritone.runtime.torch.loop import DeviceLoops
        from tritone.search.device.kernels_for import kernels_for, whole_for
        from tritone.search.device.stateless import stateless_weights

        self._network = network
        self._place = device
        self._kernels = kernels_for(device)
        weights = stateless_weights(network.predictor_graph.program, network.joiner_graph.program)
        whole = None if weights is None else whole_for(device)
        self._whole = whole if whole is not None and whole.can_search(weights) else None
        self._weights = weights
        self._loops = DeviceLoops(device)
        self._made: dict[Any, Any] = {}

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
        from tritone.search.device.greedy import GreedyLoop

        count = len(num_frames)
        shape = _padded(encoder_out.shape)
        penalised = any(penalties)
        small = [
            _filled(np.clip(num_frames, 0, encoder_out.shape[1]), shape[0], np.int64),
            _filled(contexts, shape[0], np.int64),
            _filled(penalties, shape[0], np.float32),
        ]
        name = "greedy", max_symbols, penalised

        def make() -> Any:
            if self._whole is not None:
                return self._whole.WholeGreedy(self._weights, **self._tokens, max_symbols=max_symbols)
            return GreedyLoop(**self._of_network(), max_symbols=max_symbols, penalised=penalised)

        loop, steps = self._loop(name, make), None if self._whole is None else 0
        counts, fields, log_probs, last = self._loops(name, loop, encoder_out, shape, small, steps)
        most = int(counts.max(initial=0))
        confidences = np.exp(np.minimum(log_probs[:count, :most], 0))
        rows = [
            TokenRow(fields[0, row, :found], times := fields[1, row, :found], times + 1, confidences[row, :found])
            for row, found in enumerate(counts[:count].tolist())
        ]
        return GreedyTokens(rows, last[:count])

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
        from tritone.search.device.modified_beam import ModifiedBeamLoop
        from tritone.search.transducer.traced import traced

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


def _padded(shape: tuple[int, ...]) -> tuple[int, int]:
    """Few shapes, because each is recorded: powers of two. What is added takes memory and next to no time."""
    rows, frames = shape[:2]
    return 1 << max(0, rows - 1).bit_length(), 1 << (max(LEAST_FRAMES, frames) - 1).bit_length()


def _filled(values: Any, rows: int, dtype: Any, fill: float = 0) -> Array:
    given = np.asarray(values, dtype)
    filled = np.full((rows, *given.shape[1:]), fill, dtype)
    filled[: len(given)] = given
    return filled
