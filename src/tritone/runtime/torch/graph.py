"""Programs on torch, on the CPU or on a CUDA device.

A program computes in the precision that it was exported with; what goes in and comes out has the types of its contract.
The file is read by `program`, which trusts nothing in it, or a script by torch itself. On a GPU every graph has a
stream of its own; arrays pass through pinned memory, and calls of the same shapes are replayed (see `runtime/cuda/`).
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tritone.errors import OperatorError
from tritone.runtime.cuda.held import Held, tensor_of
from tritone.runtime.cuda.kernels import keep_kernels
from tritone.runtime.cuda.obstacle import obstacle
from tritone.runtime.cuda.queue import RECORDING, CudaQueue, Replays, widening
from tritone.runtime.cuda.slots import DeviceSlots
from tritone.runtime.device import cuda_index, thread_count
from tritone.runtime.files.builder import Program as BuiltProgram
from tritone.runtime.files.program import read_program
from tritone.runtime.graph import HELD, Array, Bucket, Slots, TensorSpec, largest
from tritone.runtime.memory import trim_heap
from tritone.runtime.slots import HostSlots
from tritone.runtime.torch.compiled import CompiledCall, CompiledStore, LoadedCall, Shapes, input_shapes, most_rows

# Larger calls keep a GPU busy for longer than it takes to launch their operators one by one.
# As in `onnx.py`. torch leaves more of a network to one thread, so with smaller ones calls at once still gain.
ALONE_BYTES = 512 * 2**20
MAX_REPLAYED = 2**21  # elements of all inputs; two minutes of audio at 16 kHz
MAX_KINDS = 4096  # of calls, by outputs, shapes and types, that are known to have been made


class Program(Protocol):
    """What was read from a file: specs of inputs and outputs, and functions of all inputs for some of the outputs."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def outputs(self) -> Mapping[str, TensorSpec]: ...

    def function(self, outputs: Sequence[str]) -> Callable[..., Sequence[torch.Tensor]]: ...


class TorchGraph:
    """One program on one device."""

    def __init__(
        self, path: Path, device: str = "cpu", threads: int | None = None, *, split_calls: bool = True
    ) -> None:
        """Open a program.

        Args:
            path: the .pt2 file, which holds its weights.
            device: `cpu`, `cuda` or `cuda:<index>`.
            threads: CPU threads; None takes every CPU this process may use. On a GPU they do not matter.
            split_calls: spread each call over all threads, as many as calls at once leave for it. Without it a call
                stays on its caller's thread; right for many small calls.

        Raises:
            OperatorError: CUDA was asked for and is not there. There is no silent fall-back to the CPU.
            BundleError: the file is not a program that can be opened; see `read_program`.
            ValueError: the device name or the number of threads makes no sense.
        """
        index, self._threads = cuda_index(device), thread_count(threads)
        if reason := obstacle(device):
            raise OperatorError(f"device {device} was asked for, but {reason}.")
        self.path = path
        self.device = device
        self._split_calls = split_calls
        self._place = torch.device("cpu") if index is None else torch.device("cuda", index)
        self._program = self.read(path, self._place)
        self.inputs: Mapping[str, TensorSpec] = self._program.inputs
        self.outputs: Mapping[str, TensorSpec] = self._program.outputs
        # On a GPU a second call is prepared while the first computes; small calls would only be cut smaller by it.
        self.widens = index is not None
        self.concurrency = self._threads if index is None else 2 if split_calls else 1
        if index is None and split_calls and path.stat().st_size >= ALONE_BYTES:
            self.concurrency = 1
        self._functions: dict[tuple[str, ...], Any] = {}
        self._derived: dict[str, tuple[tuple[str, ...], Callable[..., torch.Tensor]]] = {}
        self._compiled: list[LoadedCall] = []
        self._compiled_for: dict[tuple[str, ...], list[CompiledCall]] = {}  # by outputs
        self._buckets: dict[tuple[str, ...], Sequence[Bucket]] = {}  # by outputs
        self._active = 0
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._slots: weakref.WeakSet[DeviceSlots] = weakref.WeakSet()
        self._kinds: dict[Any, bool] = {}  # of calls that were made on a GPU; whether they are compiled
        self._cuda = None if index is None else CudaQueue(self._place)
        self._replays = None if self._cuda is None else Replays(self._cuda)
        if self._cuda is not None:
            keep_kernels(self._place)
            torch.cuda.synchronize(self._place)  # the program was put there by another stream than will run it
        self.open_compiled()

    @staticmethod
    def read(path: Path, device: torch.device) -> Program:
        """Read the file; other kinds of file are of other classes."""
        return read_program(path, device)

    def derive(self, name: str, needs: Sequence[str], function: Callable[..., torch.Tensor]) -> None:
        """Add an output that is computed from others, on the device, and recorded with the network.

        Args:
            name: of the new output; it is not among `outputs`, which are those of the program.
            needs: the outputs of the program that it is computed from.
            function: pure, of those as tensors; its shapes depend on theirs alone.

        Raises:
            ValueError: the program has an output of this name, or lacks one that is needed.
        """
        if name in self.outputs or not set(needs) <= set(self.outputs):
            raise ValueError(f"{name} of {', '.join(needs)} cannot be derived: the graph has {', '.join(self.outputs)}")
        with self._lock:
            self._derived[name] = tuple(needs), function

    def __call__(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
        """Run the graph on host arrays and return the named outputs, in the order asked for.

        Inputs may also be held on this device (`Held`), as outputs are whose names begin with `HELD`.

        Raises:
            ValueError: an input is missing, or not of the graph's type or shape.
        """
        names, values = tuple(outputs), [self._checked(name, inputs) for name in self.inputs]
        with torch.inference_mode():
            function = self.function(names)
            if self._cuda is None or self._replays is None:
                with self._cpu_threads():
                    results = function(*map(tensor_of, values))
                return [
                    Held(result) if name.startswith(HELD) else result.numpy()
                    for name, result in zip(names, results, strict=True)
                ]
            arrays = [value for value in values if not isinstance(value, Held)]
            kind = (names, *((value.shape, value.dtype) for value in values))
            known = self._kinds.get(kind)  # the first calls of a kind record it, which others need not wait for
            compiled = self._is_compiled(names, values) if known is None else known
            recorded = compiled or sum(array.size for array in arrays) <= MAX_REPLAYED
            with self._cuda.call() as alone:
                # Inputs of a recording are copied into it in any case, and in order: alone, straight from the host.
                direct = alone and recorded
                pinned = [self._cuda.pinned(array) for array in arrays] if direct else []
                sent = None if direct else self._cuda.send(arrays)
                with self._cuda.turn(shared=known is not None):
                    arrived = iter(pinned if sent is None else self._cuda.received(sent))
                    given = [value.tensor() if isinstance(value, Held) else next(arrived) for value in values]
                    function = self.function(names)  # more may have been compiled before this turn
                    if recorded:
                        results = self._replays.run(names, function, given, wide=True, at_once=compiled)
                    else:
                        results = function(*given)
                    fetched = self._cuda.fetch(results, names, alone=alone)
                if known is None and len(self._kinds) < MAX_KINDS and compiled == self._is_compiled(names, values):
                    self._kinds[kind] = compiled
                return fetched.wait()

    def _is_compiled(self, outputs: tuple[str, ...], values: Sequence[Any]) -> bool:
        """Whether there is a compiled call for these outputs and inputs, and their number of rows is one of its own."""
        shapes = [value.shape for value in values]
        return any(each.takes(shapes) and shapes[0][0] in each.rows for each in self._compiled_for.get(outputs, ()))

    def function(self, outputs: tuple[str, ...]) -> Any:
        """The program as a function of device tensors to these outputs, derived ones too; compiled for some shapes.

        See also `widening`.
        """
        with self._lock:
            if outputs not in self._functions:
                self._functions[outputs] = self._composed(outputs)
                self._compiled_for[outputs] = [each.call for each in self._able(self._needed(outputs))]
            return self._functions[outputs]

    def _composed(self, outputs: tuple[str, ...]) -> Callable[..., Sequence[torch.Tensor]]:
        plain, names = [name.removeprefix(HELD) for name in outputs], self._needed(outputs)
        program = widening(Dispatched(self._program.function(names), names, self._able(names)), self.inputs)
        if names == outputs:
            return program

        def compute(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
            found = dict(zip(names, program(*inputs), strict=True))
            for name in plain:
                if name in self._derived:
                    needs, function = self._derived[name]
                    found[name] = function(*(found[need] for need in needs))
            return [found[name] for name in plain]

        return compute

    def _needed(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """The outputs of the program that others are made of, in its order: one network, however they are asked for."""
        plain = [name.removeprefix(HELD) for name in outputs]
        wanted = {need for name in plain for need in (self._derived[name][0] if name in self._derived else (name,))}
        return (*(name for name in self.outputs if name in wanted), *sorted(wanted - set(self.outputs)))

    def _able(self, outputs: Sequence[str]) -> list[LoadedCall]:
        """The compiled calls that have these outputs of the program, best first: without others, for few rows."""
        able = [each for each in self._compiled if set(outputs) <= set(each.call.outputs)]
        return sorted(able, key=lambda each: (len(each.call.outputs), most_rows(each.call.shapes)))

    def buckets_for(self, outputs: Sequence[str]) -> Sequence[Bucket]:
        """See `Graph.buckets_for`."""
        names = tuple(outputs)
        with self._lock:
            if names not in self._buckets:
                calls = [each.call for each in self._able(self._needed(names))]
                self._buckets[names] = sorted({replace(each.bucket, rows=rows) for each in calls for rows in each.rows})
            return self._buckets[names]

    def compile(
        self,
        buckets: Iterable[Bucket],
        outputs: Sequence[str],
        *,
        history: int = 0,
        done: Callable[[CompiledCall], None] = lambda call: None,
    ) -> None:
        """See `CompilableGraph`; it is done in processes of their own, see `compiling`.

        Raises:
            OperatorError: the program is a script, or as of `compile_calls`.
        """
        shapes = [input_shapes(self.inputs, each, history) for each in largest(buckets)]
        self.compile_shapes(shapes, outputs, done=done)

    def compile_shapes(
        self,
        shapes: Sequence[Shapes],
        outputs: Sequence[str],
        *,
        done: Callable[[CompiledCall], None] = lambda call: None,
    ) -> None:
        """See `ShapedGraph`; errors as of `compile`."""
        if not isinstance(self._program, BuiltProgram):
            raise OperatorError(f"{self.path} is a script, which cannot be compiled; export it for runtime torch")
        from tritone.runtime.torch.compiling import Wanted, compile_calls  # takes its time to load

        store = CompiledStore(self._program, self._place)
        needed = self._needed(outputs)
        wanted = [Wanted(needed, {name: each[name] for name in self.inputs}) for each in shapes]

        def made(call: CompiledCall) -> None:
            self.open_compiled()  # one after the other: who asks meanwhile has what is there already
            done(call)

        compile_calls(self.path, self._place, store, wanted, done=made)
        self.open_compiled()

    @property
    def compiled_shapes(self) -> Sequence[Shapes]:
        """See `ShapedGraph`."""
        return [
            {name: (rows, *shape[1:]) for name, shape in each.call.shapes.items()}
            for each in self._compiled
            for rows in each.call.rows
        ]

    def open_compiled(self) -> None:
        """Load what was compiled of this program for this machine, see `compiled`; calls of its shapes use it.

        Calls may be made meanwhile: each runs wholly as it is, or wholly compiled.
        """
        if not isinstance(self._program, BuiltProgram):
            return
        with self._opening:
            found = CompiledStore(self._program, self._place).open(self.concurrency, self._compiled)
            if self._compiled and len(found) == len(self._compiled):
                return  # and nothing of what is recorded has to be forgotten
            if self._cuda is None:
                self._take(found)
                return
            with self._cuda.turn(), RECORDING:
                self._take(found)
                self._cuda.stream.synchronize()  # recordings that are dropped must not be under way
                if self._replays is not None:
                    self._replays.forget()
                for slots in self._slots:
                    slots.forget()

    def _take(self, compiled: list[LoadedCall]) -> None:
        with self._lock:
            self._compiled = compiled
            for each in (self._compiled_for, self._functions, self._buckets, self._kinds):
                each.clear()

    def give_back(self, inputs: Mapping[str, Array]) -> None:
        """See `Graph.give_back`; the memory of a GPU stays with this process."""
        trim_heap()

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """See `Graph.empty`; pinned where there is a GPU."""
        return np.empty(shape, dtype) if self._cuda is None else self._cuda.empty(shape, dtype)

    def slots(self, states: Mapping[str, TensorSpec], capacity: int) -> Slots:
        """See `Graph.slots`; on a GPU the rows stay there."""
        if self._cuda is None:
            return HostSlots(self, states, capacity)
        slots = DeviceSlots(self, self._cuda, Replays(self._cuda, record_after=1), states, capacity)
        self._slots.add(slots)
        return slots

    @property
    def program(self) -> BuiltProgram | None:
        """The operators and weights, where they were read as data; None for a script."""
        return self._program if isinstance(self._program, BuiltProgram) else None

    @property
    def is_on_gpu(self) -> bool:
        """Whether it runs on a GPU, so that what is copied to the host costs more than what is computed there."""
        return self._cuda is not None

    def _checked(self, name: str, inputs: Mapping[str, Any]) -> Any:
        spec = self.inputs[name]
        if name not in inputs:
            raise ValueError(f"input {name} is missing; the graph takes {', '.join(self.inputs)}")
        value = inputs[name]
        fits = value.ndim == len(spec.shape) and all(
            axis is None or axis == size for axis, size in zip(spec.shape, value.shape, strict=True)
        )
        narrow = value.dtype == np.int16 and spec.dtype == np.float32
        if not (value.dtype == spec.dtype or narrow) or not fits:
            raise ValueError(
                f"input {name} is {value.dtype} of shape {value.shape}, the graph takes {spec.dtype} of shape "
                f"{spec.shape}"
            )
        if isinstance(value, Held):
            return value
        # torch warns of arrays that must not be written to, and takes no negative strides.
        return value if value.flags.carray else np.require(value, requirements=("C", "W"))

    @contextmanager
    def _cpu_threads(self) -> Iterator[None]:
        """Give this call its share of the threads.

        torch keeps the number for each calling thread, so calls at once can have different ones. It is put back
        afterwards: the thread may belong to somebody who uses torch for other things.
        """
        with self._lock:
            self._active += 1
            share = max(1, self._threads // self._active) if self._split_calls else 1
        before = torch.get_num_threads()
        try:
            if share != before:
                torch.set_num_threads(share)
            yield
        finally:
            if share != before:
                torch.set_num_threads(before)
            with self._lock:
                self._active -= 1


class Dispatched:
    """A function of a program's inputs, with what was compiled of it for some shapes."""

    def __init__(
        self, function: Callable[..., Sequence[torch.Tensor]], outputs: tuple[str, ...], compiled: Sequence[LoadedCall]
    ) -> None:
        """Take the program's function for `outputs`, and compiled calls that have them; the first that fits is used."""
        self._function = function
        self._compiled = [(each.call, each.giving(outputs)) for each in compiled]

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        shapes = [tuple(each.shape) for each in inputs]
        able = (function for call, function in self._compiled if call.takes(shapes))
        return next(able, self._function)(*inputs)
