"""Work on a CUDA device: arrays there and back without waiting, and calls that are launched as one.

A network of a hundred layers is a thousand small operators. Launching them from Python takes some milliseconds, longer
than a GPU computes for a small batch. Calls whose shapes come again are recorded once as a CUDA graph, and from then on
launched at once.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tritone.runtime.graph import HELD, Array
from tritone.runtime.torch.held import Held

LOGGER = logging.getLogger(__name__)
MAX_RECORDED = 64  # shapes of one function
RECORD_AFTER = 3  # calls of the same shapes
MAX_SEEN = 4096  # shapes that are counted

Function = Callable[..., Sequence[Tensor]]


class CudaQueue:
    """One stream of a device. Work is issued within `turn`, by one thread at a time; nobody waits for it there."""

    def __init__(self, device: torch.device, *, priority: int = 0) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device, priority=priority)
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The time in which the calling thread alone issues work."""
        with self._lock, torch.cuda.stream(self.stream), EXACT:
            yield

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array in pinned memory, which the device reads by itself."""
        return torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), pin_memory=True).numpy()

    def pinned(self, array: Array) -> Tensor:
        """An array as a tensor in pinned memory; a copy if it is not there yet."""
        source = torch.from_numpy(array)
        if source.is_pinned():
            return source
        return torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(source)

    def fetch(self, tensors: Sequence[Tensor], names: Sequence[str] = ()) -> "Fetched":
        """Have tensors of the device copied to the host when they are ready. Belongs into a `turn`.

        Args:
            names: of the tensors; those that begin with `HELD` are copied on the device instead, because a recording
                writes its outputs to the same place each time.
        """
        done = torch.cuda.Event(blocking=True)  # a thread that waits for it sleeps
        copies = [
            Held(tensor.clone(), done)
            if name.startswith(HELD)
            else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            for tensor, name in zip(tensors, names or [""] * len(tensors), strict=True)
        ]
        done.record(self.stream)
        return Fetched(copies, done)


class Fetched:
    """Arrays that are on their way from a device."""

    def __init__(self, copies: Sequence[Tensor | Held], done: torch.cuda.Event) -> None:
        self._copies = copies
        self._done = done

    def wait(self) -> list[Any]:
        """The arrays, when they are there, and what is held."""
        if not all(isinstance(copy, Held) for copy in self._copies):
            self._done.synchronize()
        return [copy if isinstance(copy, Held) else copy.numpy() for copy in self._copies]


class Replays:
    """A device's functions, recorded for the shapes that come often. Used within a `turn` of its queue."""

    def __init__(self, queue: CudaQueue, record_after: int = RECORD_AFTER) -> None:
        """Take the queue, and how many calls of the same shapes make them worth recording."""
        self._queue = queue
        self._record_after = record_after
        self._limit = MAX_RECORDED
        self._seen: Counter[Any] = Counter()
        self._recorded: dict[Any, _Recording] = {}
        self._pool: Any = None

    def run(self, name: Any, function: Function, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Call `function`, which goes by `name`, on pinned inputs; what it gives is valid until the next call.

        A recording is rehearsed with zeros in place of the inputs, so with them the function must do no harm.
        """
        key = (name, *(tuple(each.shape) for each in inputs))
        recording = self._recorded.get(key)
        if recording is None and len(self._recorded) < self._limit:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen[key] += 1
            if self._seen[key] >= self._record_after:
                recording = self._record(key, function, inputs)
        if recording is None:
            return function(*(each.to(self._queue.device, non_blocking=True) for each in inputs))
        return recording(inputs)

    def _record(self, key: Any, function: Function, inputs: Sequence[Tensor]) -> "_Recording | None":
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            self._recorded[key] = _Recording(self._queue, self._pool, function, inputs)
        except RuntimeError as error:
            self._limit = 0  # what cannot be recorded once cannot be recorded for other shapes either
            LOGGER.warning("operators are launched one by one, because recording them failed: %s", error)
        return self._recorded.get(key)


class _Recording:
    """One function on inputs of certain shapes."""

    def __init__(self, queue: CudaQueue, pool: Any, function: Function, inputs: Sequence[Tensor]) -> None:
        self._inputs = [torch.zeros(each.shape, dtype=each.dtype, device=queue.device) for each in inputs]
        function(*self._inputs)  # libraries choose their kernels and take their memory at the first call
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, but not record.
        with RECORDING, torch.cuda.graph(self._graph, pool, queue.stream, capture_error_mode="thread_local"):
            self._outputs = list(function(*self._inputs))

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        for place, value in zip(self._inputs, inputs, strict=True):
            place.copy_(value, non_blocking=True)
        self._graph.replay()
        return self._outputs


class _ExactConvolutions:
    """While any thread is inside, float32 convolutions compute in float32.

    cuDNN would use TF32, which keeps 10 bits of a number, unless it is told otherwise; products of matrices do not. The
    setting belongs to the whole process, so it is put back when nobody needs it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ""
        self._setting: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # torch makes it when it is asked

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = self._setting.fp32_precision
                self._setting.fp32_precision = "ieee"
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._setting.fp32_precision = self._before


EXACT = _ExactConvolutions()
RECORDING = threading.Lock()
