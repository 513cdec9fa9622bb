"""States of streams in host memory, for graphs that take and give them as arrays."""

from collections.abc import Mapping, Sequence

import numpy as np

from tritone.runtime.graph import Array, Graph, TensorSpec


class HostSlots:
    """See `Slots`. Rows are gathered into the inputs of a call, and its outputs are written back."""

    def __init__(self, graph: Graph, states: Mapping[str, TensorSpec], capacity: int) -> None:
        """Take the graph and its states; see `Graph.slots`."""
        self._graph = graph
        self._states = {name: _Rows(spec, capacity) for name, spec in states.items()}
        self._next = [f"next_{name}" for name in states]

    def clear(self, slot: int) -> None:
        for rows in self._states.values():
            rows.clear(slot)

    def reserve(self, count: int) -> None:
        for rows in self._states.values():
            rows.reserve(count)

    def __call__(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0
    ) -> list[Array]:
        place = slice(first, first + len(slots))
        states = {name: rows.gather(slots, place) for name, rows in self._states.items()}
        results = self._graph({**inputs, **states}, [*outputs, *self._next])
        for rows, values in zip(self._states.values(), results[len(outputs) :], strict=True):
            rows.scatter(slots, values)
        return results[: len(outputs)]


class _Rows:
    """One state tensor of all streams. Grows with the highest slot used, up to the capacity."""

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

    def reserve(self, count: int) -> None:
        if count > len(self._gathered):
            self._gathered = np.empty((count, *self._rows.shape[1:]), self._rows.dtype)

    def gather(self, slots: Sequence[int], place: slice) -> Array:
        """The rows of `slots`, copied to their `place` in an array that is used again by the next step."""
        # Any mode but "raise" lets numpy write to `out` directly; slots are always in range.
        return np.take(self._rows, slots, axis=0, out=self._gathered[place], mode="clip")

    def scatter(self, slots: Sequence[int], values: Array) -> None:
        self._rows[list(slots)] = values


def state_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The shape of a state, all of whose axes have a size."""
    shape = tuple(axis for axis in spec.shape if axis is not None)
    if len(shape) < len(spec.shape):
        raise ValueError(f"a state has a fixed shape, got {spec.shape}")
    return shape
