"""How far an exported graph may be from its network: a few times as far as the precision itself is from exact numbers.

    network, trials of speech  ->  its outputs in float64         exact
    network in a precision     ->  its distance from that          noise
    graph in that precision    ->  its distance from that          must be noise, too

What rounding loses depends on the network: where activations are huge, as in Whisper's encoder, float32 is off by a
thousandth of what is typical in single places, and by millionths as a whole. So nothing is compared with a constant. A
distance is the root mean square of the differences of an output, as a share of that of the output: damage (a weight of
another layer, a scale, a mask or a bias that is missing) moves all that follows it, noise single numbers.

Numbers are widened operator by operator, so that no more than one layer's weights are in memory twice.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tritone.bundle.manifest import Precision
from tritone.errors import ExportError
from tritone.families.export.exportable import Arrays, ExportableGraph, graph_outputs, network_outputs, valid_rows
from tritone.runtime import Graph

NARROW = (torch.float32, torch.float16, torch.bfloat16)
# Kernels sum in another order than torch, which rounds otherwise. In float32 that may double the noise or triple it, in
# narrow precisions the rounding of weights and results, which is the same, is most of it.
SHARES: Mapping[Precision, float] = {"fp32": 8.0, "fp16": 3.0, "bf16": 3.0}
# Where a network loses nothing, such as one of two sums, its graph may still round once or twice.
LEAST: Mapping[Precision, float] = {"fp32": 2**-21, "fp16": 2**-9, "bf16": 2**-6}
TINY = 1e-9  # stands for the size of nothing but zeros


class InFloat64(TorchFunctionMode):
    """Within it torch computes in float64 whatever the type of tensors, and whatever type is asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            found = func(*args, **(kwargs or {}))
            return torch.float64 if found in NARROW else found
        if name in ("float", "half", "bfloat16"):
            return args[0].double()
        kept = 1 if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) else 0
        return func(*args[:kept], *_wide(args[kept:]), **_wide(kwargs or {}))


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.dtype in NARROW else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value in NARROW else value
    if isinstance(value, tuple | list):
        return type(value)(map(_wide, value))
    if isinstance(value, dict):
        return {name: _wide(each) for name, each in value.items()}
    return value


@dataclass(frozen=True)
class Distance:
    """How far something is from a network in exact numbers.

    `shares`: by output, the root mean square of the difference over that of the output. `largest`: the largest single
    difference of all outputs, in their units, or in the size of a row if the graph is `relative`. Not a number if it
    gives something that is none.
    """

    shares: Mapping[str, float]
    largest: float


class Reference:
    """A network's answers to its trials in exact numbers, and how far from them others are."""

    def __init__(self, graph: ExportableGraph) -> None:
        self.graph = graph
        self._runs = list(graph.trials())
        with InFloat64():
            self._exact = [list(network_outputs(graph, run)) for run in self._runs]
        self._noise: dict[Precision, Distance] = {}

    def noise(self, precision: Precision, network: ExportableGraph) -> Distance:
        """How far the network is when it computes in a precision; it is asked once for each."""
        if precision not in self._noise:
            answers = (network_outputs(network, run) for run in self._runs)
            self._noise[precision] = self._distance(zip(self._exact, answers, strict=True), precision)
        return self._noise[precision]

    def distance(self, opened: Graph, name: str) -> Distance:
        """How far an opened graph is; `name` is for errors. Runs of several rows are left out where it takes one.

        Raises:
            ExportError: it counts other frames than the network.
        """
        fitting = [
            (exact, graph_outputs(opened, self.graph, run))
            for run, exact in zip(self._runs, self._exact, strict=True)
            if not any(opened.inputs[each].shape[0] == 1 < len(value) for each, value in run.steps[0].items())
        ]
        return self._distance(fitting, name)

    def _distance(self, answers: Iterable[tuple[Sequence[Arrays], Iterator[Arrays]]], name: str) -> Distance:
        graph = self.graph
        sums = {output: np.zeros(2) for output in graph.compared}  # of squares: of differences, of what they are of
        largest = 0.0
        for exact, found in ((e, f) for steps, others in answers for e, f in zip(steps, others, strict=True)):
            if graph.counted and not np.array_equal(found[graph.counted], exact[graph.counted]):
                counts = found[graph.counted].tolist(), exact[graph.counted].tolist()
                raise ExportError(f"{name} counts {counts[0]} frames, the torch network {counts[1]}")
            for output in graph.compared:
                ours, theirs = (valid_rows(each, output, graph.counted) for each in (exact, found))
                for row, other in zip(ours, theirs, strict=True):
                    change = np.abs(np.subtract(other, row, dtype=np.float64))
                    squares = float(np.sum(np.square(row, dtype=np.float64)))
                    sums[output] += float(np.sum(np.square(change))), squares
                    size = math.sqrt(squares / row.size) if graph.relative and row.size else 1.0
                    # numpy's maximum keeps NaN, which the built-in would lose; a graph that gives one must not pass.
                    largest = float(np.maximum(largest, change.max(initial=0.0) / max(size, TINY)))
        shares = {
            output: math.sqrt(change) / max(math.sqrt(squares), TINY) if math.isfinite(change) else math.nan
            for output, (change, squares) in sums.items()
        }
        return Distance(shares, largest)


def require_noise(name: str, found: Distance, noise: Distance, precision: Precision, packages: str) -> None:
    """Make sure that a graph is no farther from the network than its precision explains.

    Args:
        name: of its file.
        found, noise: of the graph, and of the network in this precision.
        packages: that may be at fault.

    Raises:
        ExportError: it is farther; says in which output, and by how much.
    """
    for output, share in found.shares.items():
        limit = SHARES[precision] * max(noise.shares[output], LEAST[precision])
        if not share <= limit:
            raise ExportError(
                f"{name} does not reproduce the torch network: {output} is off by {share:.2g} of its size on speech, "
                f"and rounding to {precision} explains {noise.shares[output]:.2g}; the limit is {limit:.2g}. Please "
                f"report this with the versions of {packages}."
            )
