"""Work on a CUDA device: arrays there and back without waiting, and calls that are launched as one.

    arrays  ->  `send`, on a stream of its own  ->  computed in a `turn`  ->  `fetch`  ->  arrays

A network of a hundred layers is a thousand small operators. Launching them from Python takes some milliseconds, longer
than a GPU computes for a small batch. Calls whose shapes come again are recorded once as a CUDA graph, and from then on
launched at once.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tritone.runtime.cuda.driver import own_stream
from tritone.runtime.cuda.held import Held
from tritone.runtime.cuda.turns import turns_of
from tritone.runtime.graph import HELD, PCM_SCALE, Array, TensorSpec

LOGGER = logging.getLogger(__name__)
MAX_RECORDED = 64  # shapes of one function
RECORD_AFTER = 3  # calls of the same shapes
ASIDE_BYTES = 2**20  # results from this size on are fetched beside the next call's work
MAX_SEEN = 4096  # shapes that are counted
STAGED_BYTES = 2**10  # of ordinary memory: a copy of up to 64 KB to the device returns once the driver has read it
NAP_S = 1e-6  # asked for; the system makes some 60 µs of it

Function = Callable[..., Sequence[Tensor]]


class CudaQueue:
    """One stream of a device. Work is issued within `turn`, by one thread at a time; nobody waits for it there.

    Arrays travel on streams of their own: those of the next call go to the device, and large results of the last one
    come back, while this one is computed. A call alone has nothing to travel beside, so all of it is in one stream.
    """

    def __init__(self, device: torch.device, *, priority: int = 0) -> None:
        """Take the device; work of priority -1 goes first where there is other work on it."""
        self.device = device
        self._priority = priority
        self.stream = torch.cuda.Stream(device, priority=priority)
        self._there = torch.cuda.Stream(device)
        self._back = torch.cuda.Stream(device)
        self._after = torch.cuda.Stream(device)  # where the end of a call is noticed, which the next need not wait for
        self._lock = threading.Lock()
        self._calls = 0
        self._counting = threading.Lock()

    @contextmanager
    def call(self) -> Iterator[bool]:
        """The time of a call, from its arrays to its results; says whether no other had begun and not ended before."""
        with self._counting:
            alone, self._calls = not self._calls, self._calls + 1
        try:
            yield alone
        finally:
            with self._counting:
                self._calls -= 1

    @contextmanager
    def turn(self, *, shared: bool = False) -> Iterator[None]:
        """The time in which the calling thread alone issues work; `shared`: in turns with other processes."""
        turns = turns_of(self.device) if shared else None
        permit = None if turns is None else turns.take()
        try:
            with self._lock, torch.cuda.stream(self.stream), EXACT:
                yield
                if permit is not None:
                    self._after.wait_stream(self.stream)
                    permit.release(self._after)
        finally:
            if permit is not None:
                permit.release()

    @contextmanager
    def recording(self) -> Iterator[Callable[[Any, Any], AbstractContextManager[None]]]:
        """The time in which one thread of the process rehearses and records; belongs into a `turn`.

        It does so in a stream of its own. Memory that was used in a stream is marked there when any thread drops it,
        and such a mark within a recording is an error for both.

        Yields:
            What records, into a graph and with its pool of memory.
        """
        # Other threads may use the device meanwhile, but not record.
        with RECORDING:
            self._recorder.wait_stream(self.stream)
            with torch.cuda.stream(self._recorder):
                yield lambda graph, pool: torch.cuda.graph(
                    graph, pool, self._recorder, capture_error_mode="thread_local"
                )

    @cached_property
    def _recorder(self) -> torch.cuda.Stream:
        return own_stream(self.device, self._priority)

    def free_bytes(self) -> int:
        """The free memory of the device."""
        return torch.cuda.mem_get_info(self.device)[0]

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array in pinned memory, which the device reads by itself."""
        return torch.empty(shape, dtype=getattr(torch, np.dtype(dtype).name), pin_memory=True).numpy()

    def block(self, num_bytes: int) -> Tensor:
        """So many bytes of pinned memory. They are given out again only when the copies from them are over."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def pinned(self, array: Array) -> Tensor:
        """An array as a tensor in pinned memory; a copy if it is not there yet.

        Or as it is, if it is so small that the driver itself copies it when it is sent, and waits for nothing.
        """
        source = torch.from_numpy(array)
        if source.nbytes <= STAGED_BYTES or source.is_pinned():
            return source
        return torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(source)

    def send(self, arrays: Sequence[Array]) -> "Sent":
        """Have arrays copied to the device, at once: outside of a `turn`, in which `received` has them."""
        pinned = [self.pinned(array) for array in arrays]
        with torch.cuda.stream(self._there):
            tensors = [each.to(self.device, non_blocking=True) for each in pinned]
            done = torch.cuda.Event()
            done.record(self._there)
        return Sent(tensors, done)

    def received(self, sent: "Sent") -> Sequence[Tensor]:
        """What was sent, on the device; belongs into a `turn`, whose work waits until it is there.

        The memory is used for what is sent next as soon as `sent` is gone, so keep it until the results are there.
        """
        self.stream.wait_event(sent.done)
        return sent.tensors

    def fetch(self, tensors: Sequence[Tensor], names: Sequence[str] = (), *, alone: bool = False) -> "Fetched":
        """Have tensors of the device copied to the host when they are ready. Belongs into a `turn`.

        Args:
            names: of the tensors; those whose name begins with `HELD` are copied on the device instead.
            alone: the caller has nothing else to do than to wait for them, and looks for them again and again.
        """
        stay = [name.startswith(HELD) for name in names] or [False] * len(tensors)
        aside = sum(tensor.nbytes for tensor, stays in zip(tensors, stay, strict=True) if not stays) >= ASIDE_BYTES
        # The next call may write where recorded results are; a copy on the device takes a hundredth of the way back.
        copied = [tensor.clone() if aside or stays else tensor for tensor, stays in zip(tensors, stay, strict=True)]
        done = torch.cuda.Event(blocking=True)
        if not aside and not any(stay):  # what is small comes in the stream that computes it, behind it
            small = [self._to_host(tensor) for tensor in copied]
            done.record(self.stream)
            return Fetched(small, done, naps=alone)
        ready = torch.cuda.Event()
        ready.record(self.stream)
        back = self._back if aside else self.stream
        back.wait_event(ready)
        with torch.cuda.stream(back):
            copies = [
                Held(tensor, ready) if stays else self._to_host(tensor)
                for tensor, stays in zip(copied, stay, strict=True)
            ]
            done.record(back)
        return Fetched(copies, done, copied if aside else (), naps=alone)

    @staticmethod
    def _to_host(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


class Sent(NamedTuple):
    """Arrays that are on their way to a device, where they are `tensors` when `done` has happened."""

    tensors: Sequence[Tensor]
    done: torch.cuda.Event


class Fetched:
    """Arrays that are on their way from a device."""

    def __init__(
        self,
        copies: Sequence[Tensor | Held],
        done: torch.cuda.Event,
        held: Sequence[Tensor] = (),
        *,
        naps: bool = False,
    ) -> None:
        """Take the copies, when they are done, and what they are made of if its memory must be kept until then.

        A thread that the driver is to wake wakes 0.1 to 0.2 ms late; one that `naps` and looks in between does not, and
        takes a tenth of a CPU.
        """
        self._copies = copies
        self._done = done
        self._held = held
        self._naps = naps

    def wait(self) -> list[Any]:
        """The arrays, when they are there, and what stays on the device."""
        if not all(isinstance(copy, Held) for copy in self._copies):
            while self._naps and not self._done.query():
                time.sleep(NAP_S)
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
        self._room: dict[int, Tensor] = {}  # memory that the inputs of all recordings share, by their index

    def run(
        self,
        name: Any,
        function: Function,
        inputs: Sequence[Tensor],
        *,
        wide: bool = False,
        at_once: bool = False,
    ) -> Sequence[Tensor]:
        """Call `function`, which goes by `name`, on inputs that are pinned or on the device.

        What it gives is valid until the next call.

        A recording is rehearsed with zeros in place of the inputs, so with them the function must do no harm.

        Args:
            wide: the function takes float32 in place of inputs that are int16, see `widening`, so it is recorded once.
            at_once: record the first call of these shapes already, however many there are, as they are known to come.
        """
        types = [torch.float32 if wide and each.dtype == torch.int16 else each.dtype for each in inputs]
        key = (name, *((tuple(each.shape), dtype) for each, dtype in zip(inputs, types, strict=True)))
        recording = self._recorded.get(key)
        if recording is None and self._limit and (at_once or len(self._recorded) < self._limit):
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen[key] += 1
            if at_once or self._seen[key] >= self._record_after:
                recording = self._record(key, function, inputs, types)
        if recording is None:
            return function(*(each.to(self._queue.device, non_blocking=True) for each in inputs))
        return recording(inputs)

    def forget(self) -> None:
        """Drop all recordings, when none of them is under way: the functions have become others."""
        self._recorded.clear()
        self._seen.clear()
        # torch refuses to record into memory of which all recordings are gone while a result still holds some of it.
        self._pool = None

    def _record(
        self, key: Any, function: Function, inputs: Sequence[Tensor], types: Sequence[torch.dtype]
    ) -> "_Recording | None":
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            places = [
                self._place(index, each.shape, dtype)
                for index, (each, dtype) in enumerate(zip(inputs, types, strict=True))
            ]
            self._recorded[key] = _Recording(self._queue, self._pool, function, places)
        except RuntimeError as error:
            self._limit = 0  # what cannot be recorded once cannot be recorded for other shapes either
            LOGGER.warning("operators are launched one by one, because recording them failed: %s", error)
        return self._recorded.get(key)

    def _place(self, index: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Where recordings have an input: calls come one after the other, so all have it in the same memory."""
        num_bytes = shape.numel() * dtype.itemsize
        if index not in self._room or len(self._room[index]) < num_bytes:
            self._room[index] = torch.empty(num_bytes, dtype=torch.uint8, device=self._queue.device)
        return self._room[index][:num_bytes].view(dtype).view(shape)


class _Recording:
    """One function on inputs that are always in these places."""

    def __init__(self, queue: CudaQueue, pool: Any, function: Function, places: Sequence[Tensor]) -> None:
        self._inputs = [place.zero_() for place in places]
        self._graph = torch.cuda.CUDAGraph()
        with queue.recording() as record:
            function(*self._inputs)  # libraries choose their kernels and take their memory at the first call
            with record(self._graph, pool):
                self._outputs = list(function(*self._inputs))

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        for place, value in zip(self._inputs, inputs, strict=True):
            if value.dtype == place.dtype:
                place.copy_(value, non_blocking=True)
            else:
                torch.mul(value.to(place.device, non_blocking=True), 1 / PCM_SCALE, out=place)
        self._graph.replay()
        return self._outputs


def widening(function: Function, specs: Mapping[str, TensorSpec]) -> Function:
    """A function of all inputs that takes int16 where the graph has float32: n stands for n / 32768."""
    places = [place for place, spec in enumerate(specs.values()) if spec.dtype == np.float32]
    scale = torch.tensor(1 / PCM_SCALE, dtype=torch.float32)  # a number on the CPU, which any device takes

    def widened(*inputs: Tensor) -> Sequence[Tensor]:
        given = list(inputs)
        for place in places:
            if given[place].dtype == torch.int16:
                given[place] = given[place] * scale
        return function(*given)

    return widened


class _ExactConvolutions:
    """While any thread is inside, float32 convolutions compute in float32.

    cuDNN would use TF32, which keeps 10 bits of a number, unless asked otherwise; products of matrices do not. The
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
