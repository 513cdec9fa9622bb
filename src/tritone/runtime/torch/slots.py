"""States of streams that stay on the device between steps.

A step sends slot numbers and audio, and gets what the search needs; the states, which are far larger, never travel.
Steps on states of fixed sizes are recorded. Where one grows, operators are launched one by one: a recording would keep
inputs of its own for every length and batch size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tritone.runtime.graph import Array, TensorSpec
from tritone.runtime.slots import growing_axis, state_shape
from tritone.runtime.torch.cuda import CudaQueue, Replays

NOBODY = 1  # rows before the first slot's: the row that steps of a smaller batch use for the rest


class OnDevice(Protocol):
    """The part of `TorchGraph` that is used here."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    def function(self, outputs: tuple[str, ...]) -> Callable[..., Sequence[Tensor]]: ...


class DeviceSlots:
    """See `Slots`. All rows of fixed sizes are made at once: recorded steps need them where they are."""

    def __init__(
        self, graph: OnDevice, queue: CudaQueue, replays: Replays, states: Mapping[str, TensorSpec], capacity: int
    ) -> None:
        """Take the graph, the queue of its device, and its states; see `Graph.slots`."""
        self._graph = graph
        self._queue = queue
        self._replays = replays
        with torch.inference_mode(), queue.turn():
            self._rows = {
                name: torch.zeros(
                    (NOBODY + capacity, *state_shape(spec)), dtype=getattr(torch, spec.dtype.name), device=queue.device
                )
                for name, spec in states.items()
                if growing_axis(spec) is None
            }
        self._grown = {
            name: _GrowingRows(spec, queue.device) for name, spec in states.items() if name not in self._rows
        }
        self._fed = [name for name in graph.inputs if name not in states]
        self._steps: dict[tuple[str, ...], Callable[..., Sequence[Tensor]]] = {}

    def clear(self, slot: int) -> None:
        with torch.inference_mode(), self._queue.turn():
            for rows in self._rows.values():
                rows[NOBODY + slot].zero_()
        for grown in self._grown.values():
            grown.clear(slot)

    def release(self, slot: int) -> None:
        with self._queue.turn():  # memory that a stream of the device gives back is for this stream again
            for grown in self._grown.values():
                grown.release(slot)

    def reserve(self, count: int) -> None:
        """Nothing to do: a step makes its own room."""

    def __call__(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0, length: int = 0
    ) -> list[Array]:
        names, count = tuple(outputs), len(slots)
        # few sizes where each of them is recorded
        size = count if self._grown else 1 << (count - 1).bit_length()
        places = np.zeros(size, np.int64)
        places[:count] = np.asarray(slots) + NOBODY
        blocks = [places, *(_padded(inputs[name], size) for name in self._fed)]
        with torch.inference_mode():
            if names not in self._steps:
                self._steps[names] = self._step(names)
            pinned = [self._queue.pinned(block) for block in blocks]
            with self._queue.turn():
                if self._grown:
                    results = self._grow(slots, length, self._steps[names], pinned)
                else:
                    results = self._replays.run(names, self._steps[names], pinned)
                fetched = self._queue.fetch([result[:count] for result in results], names)
            return fetched.wait()

    def _step(self, outputs: tuple[str, ...]) -> Callable[..., Sequence[Tensor]]:
        """What a call computes on the device; the states that grow come last, going in and coming out."""
        function = self._graph.function((*outputs, *(f"next_{name}" for name in [*self._rows, *self._grown])))
        given = [*self._fed, *self._grown]

        def step(places: Tensor, *blocks: Tensor) -> Sequence[Tensor]:
            fed = dict(zip(given, blocks, strict=True))
            fed |= {name: rows.index_select(0, places) for name, rows in self._rows.items()}
            results = function(*(fed[name] for name in self._graph.inputs))
            grown = len(outputs) + len(self._rows)
            for rows, values in zip(self._rows.values(), results[len(outputs) : grown], strict=True):
                rows.index_copy_(0, places, values)
            return [*results[: len(outputs)], *results[grown:]]

        return step

    def _grow(
        self, slots: Sequence[int], length: int, step: Callable[..., Sequence[Tensor]], pinned: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        blocks = [each.to(self._queue.device, non_blocking=True) for each in pinned]
        results = step(*blocks, *(grown.gather(slots, length) for grown in self._grown.values()))
        known = len(results) - len(self._grown)
        for grown, values in zip(self._grown.values(), results[known:], strict=True):
            grown.scatter(slots, values)
        return results[:known]


class _GrowingRows:
    """One state tensor whose rows are as long, along one axis, as the last step left them."""

    def __init__(self, spec: TensorSpec, device: torch.device) -> None:
        self._spec = spec
        self._axis = growing_axis(spec) or 0
        self._dtype = getattr(torch, spec.dtype.name)
        self._device = device
        self._rows: dict[int, Tensor | None] = {}

    def clear(self, slot: int) -> None:
        self._rows[slot] = None

    def release(self, slot: int) -> None:
        self._rows.pop(slot, None)

    def gather(self, slots: Sequence[int], length: int) -> Tensor:
        """The rows of `slots` (slots, …), with zeros in front of those that are shorter than `length`."""
        shape = (len(slots), *state_shape(self._spec, length))
        block = torch.zeros(shape, dtype=self._dtype, device=self._device)
        for place, slot in zip(block, slots, strict=True):
            if (row := self._rows[slot]) is not None:
                held = min(length, row.shape[self._axis])
                newest = row.narrow(self._axis, row.shape[self._axis] - held, held)
                place.narrow(self._axis, length - held, held).copy_(newest)
        return block

    def scatter(self, slots: Sequence[int], values: Tensor) -> None:
        for slot, value in zip(slots, values, strict=True):
            self._rows[slot] = value.clone()  # a view would keep all streams of the call in memory


def _padded(array: Array, size: int) -> Array:
    if len(array) == size:
        return np.require(array, requirements=("C", "W"))
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded
