"""States of streams that stay on the device between steps.

A step sends slot numbers and audio, and gets what the search needs; the states, which are far larger, never travel.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tritone.runtime.graph import Array, TensorSpec
from tritone.runtime.slots import state_shape
from tritone.runtime.torch_cuda import CudaQueue, Replays

NOBODY = 1  # rows before the first slot's: the row that steps of a smaller batch use for the rest


class OnDevice(Protocol):
    """The part of `TorchGraph` that is used here."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    def function(self, outputs: tuple[str, ...]) -> Callable[..., Sequence[Tensor]]: ...


class DeviceSlots:
    """See `Slots`. All rows are made at once: recorded steps need them where they are."""

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
            }
        self._fed = [name for name in graph.inputs if name not in states]
        self._steps: dict[tuple[str, ...], Callable[..., Sequence[Tensor]]] = {}

    def clear(self, slot: int) -> None:
        with torch.inference_mode(), self._queue.turn():
            for rows in self._rows.values():
                rows[NOBODY + slot].zero_()

    def reserve(self, count: int) -> None:
        """Nothing to do: a step makes its own room."""

    def __call__(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0
    ) -> list[Array]:
        names, count = tuple(outputs), len(slots)
        size = 1 << (count - 1).bit_length()  # few sizes, so that each of them is recorded
        places = np.zeros(size, np.int64)
        places[:count] = np.asarray(slots) + NOBODY
        blocks = [places, *(_padded(inputs[name], size) for name in self._fed)]
        with torch.inference_mode():
            if names not in self._steps:
                self._steps[names] = self._step(names)
            pinned = [self._queue.pinned(block) for block in blocks]
            with self._queue.turn():
                results = self._replays.run(names, self._steps[names], pinned)
                fetched = self._queue.fetch([result[:count] for result in results])
            return fetched.wait()

    def _step(self, outputs: tuple[str, ...]) -> Callable[..., Sequence[Tensor]]:
        function = self._graph.function((*outputs, *(f"next_{name}" for name in self._rows)))

        def step(places: Tensor, *blocks: Tensor) -> Sequence[Tensor]:
            fed = dict(zip(self._fed, blocks, strict=True))
            fed |= {name: rows.index_select(0, places) for name, rows in self._rows.items()}
            results = function(*(fed[name] for name in self._graph.inputs))
            for rows, values in zip(self._rows.values(), results[len(outputs) :], strict=True):
                rows.index_copy_(0, places, values)
            return results[: len(outputs)]

        return step


def _padded(array: Array, size: int) -> Array:
    if len(array) == size:
        return np.require(array, requirements=("C", "W"))
    padded = np.zeros((size, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded
