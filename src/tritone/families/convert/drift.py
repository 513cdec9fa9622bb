"""How far the outputs of one graph are from those of another, for the same inputs.

calls, two graphs  ->  OutputDrift for each output
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tritone.errors import ExportError
from tritone.families.convert.calls import Array, Call, cast
from tritone.runtime import TensorSpec
from tritone.runtime.shapes import shown


class Runnable(Protocol):
    """The part of `tritone.runtime.Graph` that comparing needs."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def outputs(self) -> Mapping[str, TensorSpec]: ...

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]: ...


@dataclass(frozen=True, kw_only=True)
class OutputDrift:
    """How far one output is from the same output of another graph.

    `values`: numbers compared. `largest`, `mean`: absolute difference; None for strings. `size`: the root of the mean
    square of the first graph's numbers, to hold differences against. `cosine`: the least of any row; None where there
    are no floats. `agreement`: of floats the share of vectors along the last axis with the same largest number (top-1),
    None if that axis has one number; of all other types the share of equal values.

    Numbers that are not finite in both graphs and equal are left out. If another one is not finite, `largest`, `mean`
    and `cosine` are NaN.
    """

    name: str
    dtype: str
    values: int
    largest: float | None
    mean: float | None
    size: float | None
    cosine: float | None
    agreement: float | None

    @property
    def is_finite(self) -> bool:
        return self.largest is None or math.isfinite(self.largest)


def compare(first: Runnable, second: Runnable, calls: Iterable[Call]) -> tuple[int, list[OutputDrift]]:
    """Run two graphs on the same calls.

    Args:
        first: what is taken for the truth.
        second: must have its outputs, and may have more.
        calls: for the inputs of both, see `merged`.

    Returns:
        The number of calls, and the drift of each output of `first`.

    Raises:
        ExportError: a graph fails, outputs have other shapes or are missing, or there are no calls.
    """
    if lacking := sorted(set(first.outputs) - set(second.outputs)):
        raise ExportError(
            f"the second graph has no output {', '.join(lacking)}; it has {', '.join(second.outputs) or 'none'}"
        )
    names = list(first.outputs)
    sums = {name: _Sums(name) for name in names}
    count = 0
    for call in calls:
        count += 1
        both = (_run(first, call, names, "first"), _run(second, call, names, "second"))
        for name, expected, found in zip(names, *both, strict=True):
            sums[name].add(np.asarray(expected), np.asarray(found))
    if not count:
        raise ExportError("there are no inputs to compare the graphs with")
    return count, [each.result() for each in sums.values()]


def _run(graph: Runnable, call: Call, outputs: list[str], which: str) -> list[Array]:
    try:
        return graph(cast(call, graph.inputs), outputs)
    except Exception as error:  # runtimes' exceptions have no common base
        shapes = ", ".join(f"{name} {shown(array.shape)}" for name, array in list(call.items())[:6])
        raise ExportError(f"the {which} graph fails with {shapes}: {str(error).strip()[:500]}") from error


@dataclass
class _Sums:
    """What is known of one output after some calls."""

    name: str
    dtype: str = ""
    values: int = 0
    largest: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    cosine: float = 1.0
    same: int = 0
    voted: int = 0
    kinds: set[str] = field(default_factory=set)

    def add(self, expected: Array, found: Array) -> None:
        if expected.shape != found.shape:
            raise ExportError(
                f"output {self.name} is {shown(expected.shape)} in one graph and {shown(found.shape)} in the other"
            )
        kind = "f" if expected.dtype.kind in "fc" or expected.dtype.name == "bfloat16" else expected.dtype.kind
        self.kinds.add(kind)
        self.dtype, self.values = str(expected.dtype), self.values + expected.size
        if kind == "f":
            self._add_floats(expected.astype(np.float64), found.astype(np.float64))
            return
        self.same += int((expected == found).sum())
        self.voted += expected.size
        if kind in "iub" and expected.size:
            change = np.abs(expected.astype(np.float64) - found.astype(np.float64))
            self.largest, self.total = max(self.largest, float(change.max())), self.total + float(change.sum())

    def _add_floats(self, expected: Array, found: Array) -> None:
        if not expected.size:
            return
        alike = (expected == found) | (np.isnan(expected) & np.isnan(found))
        known = np.isfinite(expected) | ~alike
        wide = (np.where(known, expected, 0.0), np.where(known, found, 0.0))
        with np.errstate(invalid="ignore"):  # of infinities; the result is NaN, which is what is reported
            change = np.abs(wide[1] - wide[0])
            change = np.where(np.isfinite(change), change, np.nan)
            self.largest = float(np.maximum(self.largest, change.max()))
            self.total += float(change.sum())
            self.squares += float(np.square(wide[0]).sum())
            self.cosine = float(np.minimum(self.cosine, _cosines(*wide).min()))
        if expected.ndim > 1 and expected.shape[-1] > 1:
            best = expected.argmax(axis=-1) == found.argmax(axis=-1)
            self.same, self.voted = self.same + int(best.sum()), self.voted + best.size

    def result(self) -> OutputDrift:
        numbers, floats = bool(self.kinds & set("fiub")), "f" in self.kinds
        count = max(1, self.values)
        return OutputDrift(
            name=self.name,
            dtype=self.dtype,
            values=self.values,
            largest=self.largest if numbers else None,
            mean=self.total / count if numbers else None,
            size=math.sqrt(self.squares / count) if floats else None,
            cosine=self.cosine if floats else None,
            agreement=self.same / self.voted if self.voted else None,
        )


def _cosines(expected: Array, found: Array) -> Array:
    """The cosine of each row, of two rows of zeros 1."""
    rows = len(expected) if expected.ndim > 1 else 1
    a, b = expected.reshape(rows, -1), found.reshape(rows, -1)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    equal = (a == b).all(axis=1)
    cosines = np.divide(products, lengths, out=np.where(equal, 1.0, 0.0), where=lengths != 0)
    return np.where(equal, 1.0, np.minimum(cosines, 1.0))


def as_fields(drift: OutputDrift) -> Mapping[str, Any]:
    """For JSON, which has no NaN: what is not finite is null, and `finite` says so."""
    values = {name: value for name, value in vars(drift).items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    } | {"finite": drift.is_finite}
