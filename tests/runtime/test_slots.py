"""States that grow: what a stream has seen is there, whatever slots share its calls, in host memory and on a device."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_graph import NEVER, HostQueue
from torch import Tensor

from tritone.errors import OperatorError
from tritone.runtime import TensorSpec
from tritone.runtime.cuda.queue import Replays
from tritone.runtime.cuda.slots import DeviceSlots
from tritone.runtime.graph import Array
from tritone.runtime.slots import HostSlots, growing_axis, state_shape

NEW = 3  # columns that a step adds
STATES = {
    "count": TensorSpec(np.dtype(np.int64), ()),
    "past": TensorSpec(np.dtype(np.float32), (2, None, 5)),
}


class Remembering:
    """A graph that keeps its inputs, each number ten-fold in 2 x 5 places, and counts them; the sum tells of all."""

    buckets = ()
    inputs: Mapping[str, TensorSpec] = {"x": TensorSpec(np.dtype(np.float32), (None, NEW)), **STATES}

    def function(self, outputs: tuple[str, ...]) -> Any:
        def call(x: Tensor, count: Tensor, past: Tensor) -> list[Tensor]:
            new = x[:, None, :, None].expand(-1, 2, -1, 5)
            seen = torch.cat([past, new], dim=2)
            found = {
                "sum": seen.sum(dim=(1, 2, 3)) / 10,
                "length": torch.full((len(x),), past.shape[2]),
                "next_count": count + NEW,
                "next_past": seen[:, :, NEW:],
            }
            return [found[name] for name in outputs]

        return call

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        values = [torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in self.inputs]
        return [each.numpy().copy() for each in self.function(tuple(outputs))(*values)]


def slots_of(kind: str) -> Any:
    graph: Any = Remembering()
    queue: Any = HostQueue()
    if kind == "host":
        return HostSlots(graph, STATES, capacity=8)
    return DeviceSlots(graph, queue, Replays(queue, NEVER), STATES, capacity=8)


def test_states_that_a_device_has_no_memory_for_say_how_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*shape: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("20.5 GiB are asked for")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(OperatorError, match=r"8 streams of \d+\.\d MB each: .*--max-streams.*--instances.*20\.5 GiB"):
        slots_of("device")


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_growing_state_holds_the_newest_numbers_that_its_length_has_room_for(kind: str) -> None:
    slots, rng = slots_of(kind), np.random.default_rng(4)
    heard: dict[int, list[float]] = {}
    lengths: dict[int, int] = {}
    for _ in range(200):
        count = int(rng.integers(1, 9))
        chosen = rng.permutation(8)[:count].tolist()
        for slot in chosen:
            if slot not in heard or rng.random() < 0.1:
                if slot in heard:
                    slots.release(slot)
                slots.clear(slot)
                heard[slot], lengths[slot] = [], 0
        # Up to a limit, where the oldest are dropped.
        length = min(24, max([*(lengths[slot] for slot in chosen), *(len(heard[slot]) + NEW for slot in chosen)]))
        numbers = rng.integers(0, 100, (count, NEW)).astype(np.float32)
        slots.reserve(count)
        sums, told = slots(chosen, {"x": numbers}, ["sum", "length"], 0, length)
        assert told.tolist() == [length] * count
        for slot, new, found in zip(chosen, numbers.tolist(), sums, strict=True):
            assert found == sum(heard[slot]) + sum(new)
            heard[slot] = [*heard[slot], *new][-length:]
            lengths[slot] = length


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_state_of_length_0_remembers_nothing(kind: str) -> None:
    slots = slots_of(kind)
    slots.clear(2)
    for _ in range(3):
        slots.reserve(1)
        assert slots([2], {"x": np.ones((1, NEW), np.float32)}, ["sum"], 0, 0)[0].tolist() == [NEW]


def test_memory_of_a_grown_state_is_given_back_and_no_step_keeps_that_of_its_neighbours() -> None:
    slots = slots_of("host")
    for slot in range(8):
        slots.clear(slot)
    slots.reserve(8)
    slots(list(range(8)), {"x": np.ones((8, NEW), np.float32)}, ["sum"], 0, 1000)
    rows = slots._states["past"]._rows
    assert all(row.base is None for row in rows.values())
    for slot in range(8):
        slots.release(slot)
    assert not rows


def test_one_axis_may_grow_and_needs_a_length() -> None:
    assert [growing_axis(spec) for spec in STATES.values()] == [None, 1]
    assert state_shape(STATES["past"], 7) == (2, 7, 5)
    with pytest.raises(ValueError, match=r"\(2, None, 5\) needs a length"):
        state_shape(STATES["past"])
    with pytest.raises(ValueError, match="at most one axis of a state may grow"):
        growing_axis(TensorSpec(np.dtype(np.float32), (None, None)))
