"""States of streams in host memory, for graphs that take and give them as arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tritone.runtime.graph import Array, Bucket, Graph, Slots, TensorSpec


class HostGraph:
    """What graphs on host arrays have in common; see `Graph`."""

    widens = False

    def buckets_for(self, outputs: Sequence[str]) -> Sequence[Bucket]:
        """See `Graph.buckets_for`; nothing is compiled, any size will do."""
        return ()

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """See `Graph.empty`."""
        return np.empty(shape, dtype)

    def slots(self: Graph, states: Mapping[str, TensorSpec], capacity: int) -> Slots:
        """See `Graph.slots`; the rows are kept in host memory."""
        return HostSlots(self, states, capacity)


class HostSlots:
    """States in host memory. Rows are gathered into the inputs of a call, and its outputs are written back."""

    def __init__(self, graph: Graph, states: Mapping[str, TensorSpec], capacity: int) -> None:
        """Take the graph and its states; see `Graph.slots`."""
        self._graph = graph
        self._states: dict[str, _Rows] = {
            name: _FixedRows(spec, capacity) if growing_axis(spec) is None else _GrowingRows(spec)
            for name, spec in states.items()
        }
        self._next = [f"next_{name}" for name in states]

    def clear(self, slot: int) -> None:
        for rows in self._states.values():
            rows.clear(slot)

    def release(self, slot: int) -> None:
        for rows in self._states.values():
            rows.release(slot)

    def reserve(self, count: int) -> None:
        for rows in self._states.values():
            rows.reserve(count)

    def sizes(self, most: int) -> list[int]:
        return [2**power for power in range(most.bit_length())]

    def room(self, count: int, inputs: Mapping[str, TensorSpec]) -> dict[str, Array]:
        return {name: np.empty((count, *state_shape(each)), each.dtype) for name, each in inputs.items()}

    def start(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0, length: int = 0
    ) -> Callable[[], list[Array]]:
        results = self(slots, inputs, outputs, first, length)
        return lambda: results

    def __call__(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0, length: int = 0
    ) -> list[Array]:
        place = slice(first, first + len(slots))
        states = {name: rows.gather(slots, place, length) for name, rows in self._states.items()}
        results = self._graph({**inputs, **states}, [*outputs, *self._next])
        for rows, values in zip(self._states.values(), results[len(outputs) :], strict=True):
            rows.scatter(slots, values)
        return results[: len(outputs)]


class _Rows(Protocol):
    """One state tensor of all streams."""

    def clear(self, slot: int) -> None: ...

    def release(self, slot: int) -> None: ...

    def reserve(self, count: int) -> None: ...

    def gather(self, slots: Sequence[int], place: slice, length: int) -> Array: ...

    def scatter(self, slots: Sequence[int], values: Array) -> None: ...


class _FixedRows:
    """Rows of one size. Grows with the highest slot used, up to the capacity."""

    def __init__(self, spec: TensorSpec, capacity: int) -> None:
        self._capacity = capacity
        self._rows: Array = np.zeros((0, *state_shape(spec)), dtype=spec.dtype)
        self._gathered: Array = self._rows

    def clear(self, slot: int) -> None:
        if slot >= len(self._rows):
            grown = np.zeros(
                (min(self._capacity, max(2 * len(self._rows), slot + 1)), *self._rows.shape[1:]), self._rows.dtype
            )
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[slot] = 0

    def release(self, slot: int) -> None:
        """Nothing to do: the next stream in this slot uses the row again."""

    def reserve(self, count: int) -> None:
        if count > len(self._gathered):
            self._gathered = np.empty((count, *self._rows.shape[1:]), self._rows.dtype)

    def gather(self, slots: Sequence[int], place: slice, length: int) -> Array:
        """The rows of `slots`, copied to their `place` in an array that is used again by the next step."""
        # Any mode but "raise" lets numpy write to `out` directly; slots are always in range.
        return np.take(self._rows, slots, axis=0, out=self._gathered[place], mode="clip")

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        self._rows[list(slots)] = values


class _GrowingRows:
    """Rows of which one axis is as long as the last step left it; each is an array of its own."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._axis = growing_axis(spec) or 0
        self._empty: Array = np.zeros(state_shape(spec, 0), spec.dtype)
        self._rows: dict[int, Array] = {}

    def clear(self, slot: int) -> None:
        self._rows[slot] = self._empty

    def release(self, slot: int) -> None:
        """Give back what the stream took."""
        self._rows.pop(slot, None)

    def reserve(self, count: int) -> None:
        """Nothing to do: a step makes its own room."""

    def gather(self, slots: Sequence[int], place: slice, length: int) -> Array:
        """The rows of `slots`, with zeros in front of those that are shorter than `length`."""
        rows = [self._rows[slot] for slot in slots]
        if len(rows) == 1 and rows[0].shape[self._axis] == length:
            return rows[0][None]
        block = np.empty((len(rows), *state_shape(self._spec, length)), self._spec.dtype)
        along = np.moveaxis(block, self._axis + 1, 1)
        for place_of_row, row in zip(along, rows, strict=True):
            held = min(length, row.shape[self._axis])
            place_of_row[: length - held] = 0
            place_of_row[length - held :] = np.moveaxis(row, self._axis, 0)[row.shape[self._axis] - held :]
        return block

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        for slot, value in zip(slots, values, strict=True):
            held = self._rows[slot]
            if len(slots) == 1:
                self._rows[slot] = value  # the graph has made it for this stream alone
            elif held.shape == value.shape:
                held[:] = value
            else:
                self._rows[slot] = value.copy()  # a view would keep all streams of the call in memory


def growing_axis(spec: TensorSpec) -> int | None:
    """The axis of a state whose length the caller chooses, if there is one.

    Raises:
        ValueError: there are several.
    """
    axes = [place for place, axis in enumerate(spec.shape) if axis is None]
    if len(axes) > 1:
        raise ValueError(f"at most one axis of a state may grow, got {spec.shape}")
    return axes[0] if axes else None


def state_shape(spec: TensorSpec, length: int | None = None) -> tuple[int, ...]:
    """The shape of a state, with `length` for the axis that grows.

    Raises:
        ValueError: an axis grows, and no length was given for it.
    """
    if length is None and None in spec.shape:
        raise ValueError(f"a state of shape {spec.shape} needs a length")
    return tuple(length if axis is None else axis for axis in spec.shape)  # type: ignore[misc]  # checked just now
