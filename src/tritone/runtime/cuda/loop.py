"""Computations that go on until a number on the device is 0, recorded in blocks of steps.

    inputs  ->  start  ->  state  ->  step, step, ...  ->  finish  ->  arrays

A search of a transducer takes as many steps as there are tokens, each some small operators. A block of them is one
launch; the host looks at what is left while the next block computes already.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tritone.runtime.cuda.held import Held, tensor_of
from tritone.runtime.cuda.queue import RECORDING, CudaQueue

LOGGER = logging.getLogger(__name__)
STEPS = 8  # of a block; while the host looks at what is left of one, another one is computed in vain at most
MAX_RECORDED = 128  # loops and shapes
MAX_BYTES = 2**28  # of the frames of a recording; larger ones are launched operator by operator


class Loop(Protocol):
    """A computation in torch operators on a state, tensors of sizes that do not change."""

    def start(self, *inputs: Tensor) -> list[Tensor]:
        """The state before the first step."""

    def step(self, *state: Tensor) -> list[Tensor]:
        """The next state. Some of it may be written in place; what never changes is the same tensor as before."""

    def left(self, *state: Tensor) -> Tensor:
        """A whole number, 0 once further steps would change nothing."""

    def finish(self, *state: Tensor) -> list[Tensor]:
        """What is to be known of a state."""


class DeviceLoops:
    """Runs loops on one device, one at a time."""

    def __init__(self, device: str, *, steps: int = STEPS) -> None:
        """Take the name of the device and the steps of a block."""
        self.place = torch.device(device)
        self._steps = steps
        # Its kernels are small: without priority each would wait for a large one of a network on the same device.
        self._queue = CudaQueue(self.place, priority=-1) if self.place.type == "cuda" else None
        self._lock = threading.Lock()  # in place of the queue's turns
        self._recorded: dict[Hashable, _Recording] = {}
        self._limit = MAX_RECORDED
        self._pool: Any = None

    def between(self, change: Callable[[], object], moves: bool = True) -> None:
        """Change memory that loops use, or do other work on the device, while none of them runs.

        Args:
            moves: whether other memory is used from then on; what was recorded with the old is dropped.
        """
        queue = self._queue
        with torch.inference_mode(), self._lock if queue is None else queue.turn(), RECORDING:
            if queue is not None:
                queue.stream.synchronize()  # recordings that are dropped must not be under way
            if moves:
                self._recorded.clear()
                self._pool = None  # torch refuses to record into one whose recordings are all gone
            change()

    def __call__(
        self,
        name: Hashable,
        loop: Loop,
        large: Any,
        shape: tuple[int, int],
        small: Sequence[Any],
        steps: int | None,
        *,
        block: int = STEPS,
    ) -> list[Any]:
        """Run a loop from its start to its end.

        Args:
            name: of the loop.
            large: its first input (rows, frames, ...), an array or `Held`.
            shape: the rows and frames that it is padded to, with anything.
            small: the other inputs, arrays of that many rows.
            steps: how many to take; None takes as many as it needs.
            block: the steps of a block, if those of all are no fewer.

        Returns:
            What `finish` returns, on the host.
        """
        block = min(block, self._steps)
        with torch.inference_mode():
            if self._queue is None:
                with self._lock:
                    state = loop.start(_padded(tensor_of(large), shape), *map(torch.from_numpy, small))
                    return [each.numpy() for each in self._launched(loop, state, steps, block)]
            queue = self._queue
            pinned = [queue.pinned(each) for each in (small if isinstance(large, Held) else [large, *small])]
            with queue.turn():
                given = [large.tensor(), *pinned] if isinstance(large, Held) else pinned
                recording = self._recording(name, loop, shape, given, block)
                if recording is None:
                    first, *rest = (each.to(self.place, non_blocking=True) for each in given)
                    results: Sequence[Tensor] = self._launched(
                        loop, loop.start(_padded(first, shape), *rest), steps, block
                    )
                else:
                    results = recording(given, steps)
                fetched = queue.fetch(results)
                return fetched.wait()  # within the turn: a recording writes its outputs to the same place each time

    @staticmethod
    def _launched(loop: Loop, state: list[Tensor], steps: int | None, block: int) -> list[Tensor]:
        while steps is None and int(loop.left(*state)):
            for _ in range(block):
                state = loop.step(*state)
        for _ in range(steps or 0):
            state = loop.step(*state)
        return loop.finish(*state)

    def _recording(
        self, name: Hashable, loop: Loop, shape: tuple[int, int], given: Sequence[Tensor], block: int
    ) -> "_Recording | None":
        assert self._queue is not None
        key = name, block, shape, tuple(each.shape[1:] for each in given[1:])
        found = self._recorded.get(key)
        large = given[0]
        num_bytes = int(np.prod((*shape, *large.shape[2:]))) * large.element_size()
        if found is None and len(self._recorded) < self._limit and num_bytes <= MAX_BYTES:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            try:
                found = self._recorded[key] = _Recording(self._queue, self._pool, loop, shape, given, block)
            except RuntimeError as error:
                self._limit = 0  # what cannot be recorded once cannot be recorded for other shapes either
                LOGGER.warning("a search is launched operator by operator, because recording it failed: %s", error)
        return found


class _Recording:
    """A loop for inputs of certain shapes: its start, a block of steps, and its end."""

    def __init__(
        self, queue: CudaQueue, pool: Any, loop: Loop, shape: tuple[int, int], given: Sequence[Tensor], steps: int
    ) -> None:
        self._queue, self._steps = queue, steps
        large, *small = given
        sizes = [(*shape, *large.shape[2:]), *(each.shape for each in small)]
        self._inputs = [
            torch.zeros(size, dtype=each.dtype, device=queue.device) for size, each in zip(sizes, given, strict=True)
        ]
        self._start, self._block, self._finish = (torch.cuda.CUDAGraph() for _ in range(3))
        with queue.recording() as record:
            loop.finish(*loop.step(*loop.start(*self._inputs)))  # libraries choose their kernels at the first call
            with record(self._start, pool):
                self._state = loop.start(*self._inputs)
            with record(self._block, pool):
                state = self._state
                for _ in range(steps):
                    state = loop.step(*state)
                for place, value in zip(self._state, state, strict=True):
                    if value is not place:
                        place.copy_(value)
                self._left = loop.left(*self._state)
            with record(self._finish, pool):
                self._outputs = loop.finish(*self._state)

    def __call__(self, given: Sequence[Tensor], steps: int | None) -> Sequence[Tensor]:
        for place, value in zip(self._inputs, given, strict=True):
            part = place if place.shape == value.shape else place[: value.shape[0], : value.shape[1]]
            part.copy_(value, non_blocking=True)
        self._start.replay()
        if steps is not None:
            for _ in range(-(-steps // self._steps)):
                self._block.replay()
        else:
            before = self._advance()
            while True:
                after = self._advance()
                if not before.wait()[0].item():
                    break
                before = after
        self._finish.replay()
        return self._outputs

    def _advance(self) -> Any:
        self._block.replay()
        return self._queue.fetch([self._left])


def _padded(large: Tensor, shape: tuple[int, int]) -> Tensor:
    if tuple(large.shape[:2]) == shape:
        return large
    padded = large.new_zeros((*shape, *large.shape[2:]))
    padded[: large.shape[0], : large.shape[1]] = large
    return padded
