"""States of streams that stay on the device between steps.

A step sends one block, which rows of the states it reads and writes and the audio, and gets back one block, what the
search needs; the states, which are far larger, never travel. Steps on states of fixed sizes are recorded, for a few
numbers of rows. Where a state grows, operators are launched one by one: a recording would keep inputs of its own for
every length and batch size.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tritone.errors import OperatorError
from tritone.runtime.cuda.queue import CudaQueue, Replays
from tritone.runtime.graph import HELD, ROW_STEPS, Array, Bucket, TensorSpec
from tritone.runtime.slots import growing_axis, state_shape

NOBODY = 0  # the row that the padding of a step writes
SILENT = 1  # a row of zeros: what a stream that starts reads, so that clearing a slot is no work for the device
FIRST = 2  # the row of slot 0
COMPILED_GAIN = 4 / 3  # so many more rows of a compiled step take as long
FEW = 64  # rows up to which a step takes as long as one of fewer
COPIES = 2  # of the states of its rows that a recorded step keeps, at least: what it reads and what it writes
ALIGNED = 256  # bytes: where tensors may begin that TensorRT takes


class OnDevice(Protocol):
    """The part of `TorchGraph` that is used here."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    def buckets_for(self, outputs: Sequence[str]) -> Sequence[Bucket]: ...

    def function(self, outputs: tuple[str, ...]) -> Callable[..., Sequence[Tensor]]: ...


class DeviceSlots:
    """States in the memory of a device. All rows of fixed sizes are made at once: recorded steps need them in place."""

    def __init__(
        self, graph: OnDevice, queue: CudaQueue, replays: Replays, states: Mapping[str, TensorSpec], capacity: int
    ) -> None:
        """Take the graph, the queue of its device, and its states; see `Graph.slots`.

        Raises:
            OperatorError: the device has too little free memory for the states.
        """
        self._graph = graph
        self._queue = queue
        self._replays = replays
        fixed = {name: (state_shape(spec), spec.dtype) for name, spec in states.items() if growing_axis(spec) is None}
        self._row_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in fixed.values())
        try:
            with torch.inference_mode(), queue.turn():
                self._rows = {
                    name: torch.zeros((FIRST + capacity, *shape), dtype=getattr(torch, dtype.name), device=queue.device)
                    for name, (shape, dtype) in fixed.items()
                }
        except torch.OutOfMemoryError as error:
            raise OperatorError(
                f"{queue.device} has too little free memory for {capacity} streams of {self._row_bytes / 1e6:.1f} MB "
                "each: serve fewer (--max-streams), or have fewer processes on the device (--instances), each of which "
                f"has its share of the streams and a copy of the model: {error}"
            ) from error
        self._grown = {
            name: _GrowingRows(spec, queue.device) for name, spec in states.items() if name not in self._rows
        }
        self._fed = [name for name in graph.inputs if name not in states]
        self._reads = np.full(capacity, SILENT, np.int64)  # which row the next step of a slot reads
        self._room: _Block | None = None  # the last one that was given to be filled
        self._free: list[Tensor] = []  # pinned memory of blocks whose steps are over
        self._steps: dict[tuple[Any, ...], _Step] = {}

    def clear(self, slot: int) -> None:
        self._reads[slot] = SILENT
        for grown in self._grown.values():
            grown.clear(slot)

    def release(self, slot: int) -> None:
        if self._grown:
            with self._queue.turn():  # memory that a stream of the device gives back is for this stream again
                for grown in self._grown.values():
                    grown.release(slot)

    def forget(self) -> None:
        """Drop the steps that were recorded, within a turn: the graph has become another, as more of it is compiled."""
        self._steps.clear()
        self._replays.forget()

    def reserve(self, count: int) -> None:
        """Nothing to do: a step makes its own room."""

    def sizes(self, most: int) -> list[int]:
        if self._grown:
            return sorted({1, most})
        needed, free = COPIES * self._padded(most) * self._row_bytes, self._queue.free_bytes()
        if needed > free:
            raise OperatorError(
                f"{self._queue.device} has {free / 1e6:.0f} MB of free memory, and steps of {most} streams take "
                f"{needed / 1e6:.0f} MB at least: have smaller ones (--max-batch-size), fewer processes on the device "
                "(--instances), each of which has steps of its own, or fewer streams (--max-streams)."
            )
        return sorted({self._padded(count) for count in range(1, most + 1)})

    def room(self, count: int, inputs: Mapping[str, TensorSpec]) -> dict[str, Array]:
        self._room = self._block(count, {name: (each.dtype, state_shape(each)) for name, each in inputs.items()})
        return self._room.inputs(self._fed)

    def __call__(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0, length: int = 0
    ) -> list[Array]:
        return self.start(slots, inputs, outputs, first, length)()

    def start(
        self, slots: Sequence[int], inputs: Mapping[str, Array], outputs: Sequence[str], first: int = 0, length: int = 0
    ) -> Callable[[], list[Array]]:
        block = self._filled(inputs, len(slots))
        rows = np.asarray(slots, np.int64)
        block.address(self._reads[rows], rows + FIRST)
        key = (*outputs, block.layout)
        with torch.inference_mode(), self._queue.turn():
            if (step := self._steps.get(key)) is None:  # in this turn: `forget` drops it and its recording together
                step = _Step(self._graph, block.layout, tuple(outputs), self._rows, tuple(self._grown))
                self._steps[key] = step
            if self._grown:
                grown = [each.gather(slots, length) for each in self._grown.values()]
                results: Sequence[Tensor] = step(block.bytes.to(self._queue.device, non_blocking=True), *grown)
                for state, values in zip(self._grown.values(), results[1 + len(step.held) :], strict=True):
                    state.scatter(slots, values)
            else:
                results = self._replays.run(key, step, [block.bytes])
            stay = [each[: len(slots)] for each in results[1 : 1 + len(step.held)]]
            fetched = self._queue.fetch([results[0], *stay], ["", *step.held], alone=True)
        self._reads[rows] = rows + FIRST

        def wait() -> list[Array]:
            found = fetched.wait()
            self._free.append(block.memory)
            return step.outputs(*found, count=len(slots))

        return wait

    def _filled(self, inputs: Mapping[str, Array], count: int) -> "_Block":
        """The block with these inputs, which is the one that was given as room if they are in it."""
        room, self._room = self._room, None
        if room is not None and all(inputs[name].base is room.arrays[name].base for name in self._fed):
            return room
        block = self._block(count, {name: (inputs[name].dtype, inputs[name].shape[1:]) for name in self._fed})
        for name, rows in block.inputs(self._fed).items():
            rows[...] = inputs[name]
        return block

    def _block(self, count: int, inputs: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> "_Block":
        layout = _Layout.of({name: inputs[name] for name in self._fed}, count if self._grown else self._padded(count))
        # Pinning megabytes takes milliseconds, so the few blocks that there are at once are used again.
        fitting = [index for index, memory in enumerate(self._free) if len(memory) >= layout.num_bytes]
        if fitting:
            return _Block(layout, self._free.pop(fitting[0]), count)
        self._free.clear()  # too small for the steps that come now
        return _Block(layout, self._queue.block(1 << (layout.num_bytes - 1).bit_length()), count)

    def _padded(self, count: int) -> int:
        """The rows of a step for so many streams: a number that is recorded, and rather one that is compiled."""
        most = ROW_STEPS[-1]
        size = ROW_STEPS[bisect_left(ROW_STEPS, count)] if count <= most else -(-count // most) * most
        compiled = min((each.rows for each in self._graph.buckets_for(()) if each.rows >= count), default=None)
        return size if compiled is None or compiled > max(FEW, size * COMPILED_GAIN) else compiled


@dataclass(frozen=True)
class _Field:
    """A tensor of (rows, …) within a block of bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def end(self) -> int:
        return self.begin + np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def of_array(self, block: Array) -> Array:
        return block[self.begin : self.end].view(self.dtype).reshape(self.shape)

    def of_tensor(self, block: Tensor) -> Tensor:
        return block[self.begin : self.end].view(getattr(torch, self.dtype)).view(self.shape)


@dataclass(frozen=True)
class _Layout:
    """Where the tensors of a step are in the block that is sent."""

    fields: tuple[_Field, ...]

    @classmethod
    def of(cls, inputs: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], rows: int) -> "_Layout":
        """The layout for inputs of these types and shapes of one row, and the rows that the step reads and writes."""
        fields: list[_Field] = []
        for name, (dtype, shape) in {"reads": INDEX, "writes": INDEX, **inputs}.items():
            begin = -(-fields[-1].end // ALIGNED) * ALIGNED if fields else 0
            fields.append(_Field(name, dtype.name, (rows, *shape), begin))
        return cls(tuple(fields))

    @property
    def num_bytes(self) -> int:
        return self.fields[-1].end


INDEX: tuple[np.dtype[Any], tuple[int, ...]] = (np.dtype(np.int64), ())


class _Block:
    """What is sent for one step, in pinned memory: `count` rows, and padding behind them."""

    def __init__(self, layout: _Layout, memory: Tensor, count: int) -> None:
        self.layout = layout
        self.memory = memory
        self.bytes = memory[: layout.num_bytes]
        self._count = count
        array = self.bytes.numpy()
        self.arrays = {field.name: field.of_array(array) for field in layout.fields}

    def inputs(self, names: Sequence[str]) -> dict[str, Array]:
        """The rows of these inputs, to be filled; those of the padding are silence."""
        for name in names:
            self.arrays[name][self._count :] = 0
        return {name: self.arrays[name][: self._count] for name in names}

    def address(self, reads: Array, writes: Array) -> None:
        """Say which rows of the states the step reads and writes."""
        for name, rows, padding in (("reads", reads, SILENT), ("writes", writes, NOBODY)):
            self.arrays[name][: self._count] = rows
            self.arrays[name][self._count :] = padding


class _Step:
    """What the device computes for a block: a function of the block, and of the states that grow."""

    def __init__(
        self,
        graph: OnDevice,
        layout: _Layout,
        outputs: tuple[str, ...],
        rows: Mapping[str, Tensor],
        grown: tuple[str, ...],
    ) -> None:
        self._function = graph.function((*outputs, *(f"next_{name}" for name in [*rows, *grown])))
        self._inputs = list(graph.inputs)
        self._layout = layout
        self._rows = rows
        self._grown = grown
        self._outputs = outputs
        self.held = [name for name in outputs if name.startswith(HELD)]  # those that stay on the device
        self._packed: list[tuple[int, _Field]] = []  # of each output its place among those that are asked for

    def __call__(self, block: Tensor, *grown: Tensor) -> list[Tensor]:
        """Returns the outputs in one tensor, those that stay, and the next values of the states that grow."""
        fed = {field.name: field.of_tensor(block) for field in self._layout.fields}
        reads, writes = fed.pop("reads"), fed.pop("writes")
        fed |= {name: rows.index_select(0, reads) for name, rows in self._rows.items()}
        fed |= dict(zip(self._grown, grown, strict=True))
        results = self._function(*(fed[name] for name in self._inputs))
        known = len(self._outputs) + len(self._rows)
        for rows, values in zip(self._rows.values(), results[len(self._outputs) : known], strict=True):
            rows.index_copy_(0, writes, values)
        found = dict(zip(self._outputs, results, strict=False))
        stay = [found.pop(name) for name in self.held]
        return [self._pack(list(found.values())), *stay, *results[known:]]

    def outputs(self, packed: Array, *held: Any, count: int) -> list[Any]:
        """The outputs of the first `count` rows, as the device has packed them, and what is held of them."""
        arrays = {index: field.of_array(packed)[:count] for index, field in self._packed}
        others, stay = (iter(each) for each in ([arrays[index] for index in sorted(arrays)], held))
        return [next(stay if name in self.held else others) for name in self._outputs]

    def _pack(self, outputs: Sequence[Tensor]) -> Tensor:
        # The widest types first, so that each begins at a multiple of its size.
        order = sorted(range(len(outputs)), key=lambda index: -outputs[index].element_size())
        self._packed, end = [], 0
        for index in order:
            field = _Field("", str(outputs[index].dtype).removeprefix("torch."), tuple(outputs[index].shape), end)
            self._packed.append((index, field))
            end = field.end
        return torch.cat([outputs[index].contiguous().view(-1).view(torch.uint8) for index in order])


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
