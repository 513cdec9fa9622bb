"""Work that changes tensors of a device in place, step after step: recorded on a GPU, called on a CPU.

function, key  ->  launched, recorded once for each key  ->  results that the host reads when they are there
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tritone.runtime.cuda.kernels import keep_kernels
from tritone.runtime.cuda.queue import CudaQueue
from tritone.runtime.device import cuda_index, thread_count
from tritone.runtime.files.archive import Archive
from tritone.runtime.graph import Array

LOGGER = logging.getLogger(__name__)
AHEAD = 4  # steps that are launched before the host has read the first of them
MAX_RECORDED = 256  # of recorded work; more are launched operator by operator


def read_weights(path: Path, device: str) -> dict[str, Tensor]:
    """The tensors of a program by their names, on a device; the operators are left aside.

    Raises:
        BundleError: the file is damaged.
    """
    with Archive(path) as archive:
        return archive.tensors(torch.device(device))


class Late:
    """An array that is on its way from the device."""

    def __init__(self, tensor: Tensor, done: Any = None) -> None:
        """Take it on the host, where it is when the event is done."""
        self._tensor, self._done = tensor, done

    @property
    def is_there(self) -> bool:
        """Whether it can be read without waiting."""
        return self._done is None or bool(self._done.query())

    def array(self) -> Array:
        """The array; waits for it."""
        if self._done is not None:
            self._done.synchronize()
        return self._tensor.numpy()


class Steps:
    """One stream of work on a device; on a CPU there is none, and work is done when it is launched."""

    def __init__(self, device: str, *, threads: int | None = None, priority: int = 0) -> None:
        """Take the device; work of priority -1 goes before other work on a GPU."""
        index = cuda_index(device)
        self.device = torch.device("cpu") if index is None else torch.device("cuda", index)
        self._queue = None if index is None else CudaQueue(self.device, priority=priority)
        if index is not None:
            keep_kernels(self.device)
        self._threads = thread_count(threads)
        self.ahead = 1 if index is None else AHEAD
        self._recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._pool: Any = None
        self._limit = MAX_RECORDED

    def free_bytes(self) -> int | None:
        """The free memory of a GPU; None on a CPU."""
        return None if self._queue is None else self._queue.free_bytes()

    def settle(self) -> None:
        """Wait for everything on the device: what other streams have made may be used from now on."""
        if self._queue is not None:
            torch.cuda.synchronize(self.device)

    def beside(self) -> "Steps":
        """Other work on the same device, which the work of these goes before."""
        return Steps(str(self.device), threads=self._threads)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The time in which one thread launches work."""
        with torch.inference_mode():
            if self._queue is not None:
                with self._queue.turn():
                    yield
                return
            before = torch.get_num_threads()
            torch.set_num_threads(self._threads)
            try:
                yield
            finally:
                torch.set_num_threads(before)

    def run(self, key: Hashable, function: Callable[[], Any], kept: Sequence[Tensor] = ()) -> Any:
        """Do work within a turn; what it returns is valid until the next work with this key.

        Args:
            function: reads and writes tensors that are always in the same place.
            kept: those among them that it must not write twice: it is rehearsed before it is recorded.
        """
        if self._queue is None:
            return function()
        if key not in self._recorded and len(self._recorded) < self._limit:
            self._record(key, function, kept)
        if key not in self._recorded:
            return function()
        graph, found = self._recorded[key]
        graph.replay()
        return found

    def _record(self, key: Hashable, function: Callable[[], Any], kept: Sequence[Tensor]) -> None:
        assert self._queue is not None
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        before = [each.clone() for each in kept]
        graph = torch.cuda.CUDAGraph()
        try:
            with self._queue.recording() as record:
                function()  # libraries choose their kernels and take their memory at the first call
                for each, was in zip(kept, before, strict=True):
                    each.copy_(was)
                with record(graph, self._pool):
                    found = function()
            self._recorded[key] = graph, found
        except RuntimeError as error:
            self._limit = 0
            LOGGER.warning("operators are launched one by one, because recording them failed: %s", error)
            torch.cuda.synchronize(self.device)
            for each, was in zip(kept, before, strict=True):
                each.copy_(was)

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array that can be sent without a copy on the host."""
        return np.empty(shape, dtype) if self._queue is None else self._queue.empty(shape, dtype)

    def send(self, array: Array) -> Tensor:
        """An array on the device, for work that is launched after it."""
        return self._source(array).to(self.device, non_blocking=True)

    def put(self, place: Tensor, array: Array) -> Tensor:
        """The same, in a place of the device."""
        return place.copy_(self._source(array), non_blocking=True)

    def _source(self, array: Array) -> Tensor:
        array = np.ascontiguousarray(array)
        return torch.from_numpy(array) if self._queue is None else self._queue.pinned(array)

    def fetch(self, tensor: Tensor) -> Late:
        """What a tensor has when all that was launched is done."""
        if self._queue is None:
            return Late(tensor.clone())
        done = torch.cuda.Event()
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        done.record(self._queue.stream)
        return Late(copy, done)

    def mark(self) -> Late:
        """What is there when all that was launched is done."""
        return self.fetch(torch.zeros(1, device=self.device))
