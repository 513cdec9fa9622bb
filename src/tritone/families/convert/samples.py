"""Inputs made from the shapes of a graph, for trying it where nobody gave real ones.

{input: type and shape}  ->  calls: noise for floats, 0 and 1 for integers, which fit ids, masks and lengths
"""

from collections.abc import Iterator, Mapping

import numpy as np

from tritone.errors import ExportError
from tritone.families.convert.calls import Call
from tritone.families.convert.drift import Runnable
from tritone.runtime import TensorSpec

ROWS = 2
SIZES = (16, 64, 224, 4000, 1)
"""Of axes that vary, tried in order: a network may have a least size, and attention has a largest one."""


def sampled(inputs: Mapping[str, TensorSpec], size: int, seed: int = 0) -> Call:
    """One call: varying axes are `size` long, the first one has two rows."""
    numbers = np.random.default_rng(seed)
    call = {}
    for name, spec in inputs.items():
        shape = [(size if place else ROWS) if axis is None else axis for place, axis in enumerate(spec.shape)]
        if spec.dtype.kind in "iu":
            call[name] = numbers.integers(0, 2, shape).astype(spec.dtype)
        elif spec.dtype.kind == "b":
            call[name] = np.ones(shape, spec.dtype)
        elif spec.dtype.kind == "O":
            call[name] = np.full(shape, "sample", dtype=object)
        else:
            call[name] = numbers.normal(size=shape).astype(spec.dtype)
    return call


def samples(graph: Runnable, inputs: Mapping[str, TensorSpec], count: int = 2) -> list[Call]:
    """Calls that a graph takes.

    Args:
        inputs: those of `graph`, or narrower.

    Raises:
        ExportError: it fails with all sizes that are tried.
    """
    return list(_taken(graph, inputs, count))


def _taken(graph: Runnable, inputs: Mapping[str, TensorSpec], count: int) -> Iterator[Call]:
    reason: Exception | None = None
    for size in SIZES:
        calls = [sampled(inputs, size, seed) for seed in range(count)]
        try:
            graph(calls[0], list(graph.outputs))
        except Exception as error:  # runtimes' exceptions have no common base
            reason = reason or error
            continue
        yield from calls
        return
    raise ExportError(
        f"the graph fails with inputs made from its shapes ({str(reason).strip()[:300]}); give real ones with --inputs"
    ) from reason
