"""TensorRT engines on a CUDA device.

An engine is for one version of TensorRT and one kind of GPU, and takes sizes within its profiles alone: what it was
built with is checked before anything is read, and calls with more rows than fit are run in parts. Tensors lie in
torch's memory and arrays travel as in `runtime/cuda/queue.py`; each profile has an execution context of its own, made
when the first call needs it.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tritone.errors import BundleError, OperatorError
from tritone.runtime.cuda import tensorrt as tensorrt_library
from tritone.runtime.cuda.obstacle import obstacle as torch_obstacle
from tritone.runtime.cuda.queue import CudaQueue, Replays
from tritone.runtime.cuda.slots import DeviceSlots
from tritone.runtime.cuda.tensorrt import INSTALL, TITLES, Gpu, Library
from tritone.runtime.device import cuda_index
from tritone.runtime.graph import Array, Bucket, EngineStamp, Slots, TensorSpec
from tritone.runtime.memory import trim_heap

# TensorRT's names of types, as numpy and torch call them. Our graphs have no other inputs and outputs.
DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT64": "int64", "INT32": "int32", "BOOL": "bool"}
REBUILD = "Build it again on this machine: `tritone engine`"
Sizes = tuple[int, ...]


class TensorRtGraph:
    """One engine on one device."""

    def __init__(
        self,
        path: Path,
        device: str = "cuda",
        threads: int | None = None,
        *,
        split_calls: bool = True,
        engine: EngineStamp | None = None,
    ) -> None:
        """Open an engine.

        Args:
            path: the .plan file.
            device: `cuda` or `cuda:<index>`.
            threads: of no meaning here.
            split_calls: whether a call is large enough that another is worth preparing while it computes.
            engine: what it was built with. TensorRT reads nothing else, and what a plan holds it runs.

        Raises:
            OperatorError: engines cannot run on the device, or this one was built for another version or GPU.
            BundleError: nothing records what it was built with, or TensorRT cannot read it.
            ValueError: the device name makes no sense.
        """
        if reason := obstacle(device):
            raise OperatorError(f"device {device} was asked for, but {reason}.")
        if engine is None:
            raise BundleError(f"{path}: nothing records what it was built with, so it is not opened. {REBUILD}.")
        index = cuda_index(device) or 0
        self._place = _place(index)
        library = tensorrt_library.load_library(engine.library)
        check_stamp(path, engine, library, _gpu(index))
        trt = library.module
        with torch.cuda.device(self._place):
            # Both are needed for as long as the engine is.
            self._log = trt.Logger(trt.Logger.Severity.ERROR)
            self._runtime = trt.Runtime(self._log)
            self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise BundleError(f"{library.title} cannot read {path}. {REBUILD}.")
        self.path = path
        self.device = device
        names = [self._engine.get_tensor_name(place) for place in range(self._engine.num_io_tensors)]
        inputs = [name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        # For each profile the least and the most of every input.
        self._profiles: list[dict[str, tuple[Sizes, Sizes]]] = [
            {name: self._limits(name, number) for name in inputs}
            for number in range(self._engine.num_optimization_profiles)
        ]
        self.inputs: Mapping[str, TensorSpec] = {name: self._within(name) for name in inputs}
        self.outputs: Mapping[str, TensorSpec] = {name: self._spec(name) for name in names if name not in inputs}
        self.widens = False
        self.concurrency = 2 if split_calls else 1
        self._queue = CudaQueue(self._place)
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()
        # An empty tensor has no address, and TensorRT wants one.
        self._nowhere = torch.zeros(256, dtype=torch.uint8, device=self._place)
        torch.cuda.synchronize(self._place)

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Run the engine on host arrays and return the named outputs, in the order asked for.

        Raises:
            ValueError: an input is missing, not of the engine's type or shape, or beyond what it was built for.
        """
        values = [self._checked(name, inputs) for name in self.inputs]
        function = self.function(tuple(outputs))
        with torch.inference_mode():
            pinned = [self._queue.pinned(value) for value in values]
            with self._queue.turn():
                results = function(*(value.to(self._place, non_blocking=True) for value in pinned))
                fetched = self._queue.fetch(results)
            return fetched.wait()

    def function(self, outputs: tuple[str, ...]) -> Any:
        """The engine as a function of device tensors, to be called in a turn of its queue."""

        def run(*tensors: Tensor) -> list[Tensor]:
            fed = dict(zip(self.inputs, tensors, strict=True))
            count = tensors[0].shape[0]
            profile, rows = self._choose({name: tuple(tensor.shape) for name, tensor in fed.items()})
            parts = [
                self._execute(profile, {name: tensor[first : first + rows] for name, tensor in fed.items()}, outputs)
                for first in range(0, count, rows)
            ]
            return parts[0] if len(parts) == 1 else [torch.cat(values) for values in zip(*parts, strict=True)]

        return run

    def buckets_for(self, outputs: Sequence[str]) -> Sequence[Bucket]:
        """See `Graph.buckets_for`; nothing is compiled."""
        return ()

    def give_back(self, inputs: Mapping[str, Array]) -> None:
        """See `Graph.give_back`; the memory of a GPU stays with this process."""
        trim_heap()

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """See `Graph.empty`; in pinned memory."""
        return self._queue.empty(shape, dtype)

    def slots(self, states: Mapping[str, TensorSpec], capacity: int) -> Slots:
        """See `Graph.slots`; the rows stay on the device."""
        never = Replays(self._queue, record_after=sys.maxsize)  # a recording would keep the addresses of one call
        return DeviceSlots(self, self._queue, never, states, capacity)

    def _choose(self, shapes: Mapping[str, Sizes]) -> tuple[int, int]:
        """The first profile that takes inputs of these shapes, and the rows of a part: all rows if any takes all."""
        fitting: list[tuple[int, int]] = []
        for number, limits in enumerate(self._profiles):
            fits = all(
                low <= size <= high
                for name, shape in shapes.items()
                for size, low, high in list(zip(shape, *limits[name], strict=True))[1:]
            )
            if fits:
                fitting.append((number, min(most[0] for _, most in limits.values())))
        count = max(shape[0] for shape in shapes.values())
        for number, rows in fitting:
            if count <= rows:
                return number, max(1, count)
        if fitting:
            return max(fitting, key=lambda each: each[1])
        bounds = "; or ".join(
            ", ".join(f"{name} {list(least)} to {list(most)}" for name, (least, most) in limits.items())
            for limits in self._profiles
        )
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(
            f"{self.path.name} was not built for inputs of shapes {given}; it takes {bounds}. Build it again with "
            "other --min and --max."
        )

    def _execute(self, profile: int, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> list[Tensor]:
        stream = torch.cuda.current_stream(self._place).cuda_stream
        context = self._context(profile, stream)
        inputs = {name: tensor.contiguous() for name, tensor in inputs.items()}  # to be kept until the launch
        for name, tensor in inputs.items():
            context.set_input_shape(name, tuple(tensor.shape))
            context.set_tensor_address(name, tensor.data_ptr() or self._nowhere.data_ptr())
        results = {}
        for name, spec in self.outputs.items():  # TensorRT computes all of them, wanted or not
            shape = tuple(context.get_tensor_shape(name))
            results[name] = torch.empty(shape, dtype=getattr(torch, spec.dtype.name), device=self._place)
            context.set_tensor_address(name, results[name].data_ptr() or self._nowhere.data_ptr())
        if not context.execute_async_v3(stream):
            raise RuntimeError(f"TensorRT could not run {self.path}; it says why on stderr")
        return [results[name] for name in outputs]

    def _context(self, profile: int, stream: int) -> Any:
        with self._lock:
            if profile not in self._contexts:
                context = self._engine.create_execution_context()
                if context is None:
                    raise RuntimeError(
                        f"no memory on {self.device} for {self.path}; build it with a smaller --max, or fewer instances"
                    )
                context.set_optimization_profile_async(profile, stream)
                self._contexts[profile] = context
            return self._contexts[profile]

    def _checked(self, name: str, inputs: Mapping[str, Array]) -> Array:
        spec = self.inputs[name]
        if name not in inputs:
            raise ValueError(f"input {name} is missing; the engine takes {', '.join(self.inputs)}")
        value = inputs[name]
        if value.dtype != spec.dtype or value.ndim != len(spec.shape):
            raise ValueError(
                f"input {name} is {value.dtype} of shape {value.shape}, the engine takes {spec.dtype} of shape "
                f"{spec.shape}"
            )
        return np.require(value, requirements=("C", "W"))

    def _spec(self, name: str) -> TensorSpec:
        kind = self._engine.get_tensor_dtype(name).name
        if kind not in DTYPES:
            raise BundleError(f"{self.path}: tensor {name} is a {kind}, which Tritone does not handle")
        shape = tuple(None if axis < 0 else int(axis) for axis in self._engine.get_tensor_shape(name))
        return TensorSpec(np.dtype(DTYPES[kind]), shape)

    def _within(self, name: str) -> TensorSpec:
        """An input with the limits of all profiles together."""
        least, most = zip(*(limits[name] for limits in self._profiles), strict=True)
        return replace(self._spec(name), least=tuple(map(min, *least, least[0])), most=tuple(map(max, *most, most[0])))

    def _limits(self, name: str, profile: int) -> tuple[Sizes, Sizes]:
        least, _, most = self._engine.get_tensor_profile_shape(name, profile)
        return tuple(map(int, least)), tuple(map(int, most))


def check_stamp(path: Path, engine: EngineStamp, library: Library, gpu: Gpu) -> None:
    """Make sure that an engine was built for what is here.

    Raises:
        OperatorError: it was not; says what it was built with, and what is here.
    """
    built = f"{TITLES.get(engine.library, engine.library)} {engine.version}"
    if engine.gpu is not None:
        built += f" on {engine.gpu} (compute capability {engine.compute_capability})"
    # Engines for RTX that were built without a GPU are for all of them.
    here = (gpu.name, gpu.capability) if engine.gpu is not None else (None, None)
    same = engine.library == library.name and _same_version(engine.version, library.version)
    if not same or (engine.gpu, engine.compute_capability) != here:
        raise OperatorError(
            f"{path} was built with {built}; here is {library.title} on {gpu.name} (compute capability "
            f"{gpu.capability}). {REBUILD}, or take another runtime."
        )


def _same_version(one: str, other: str) -> bool:
    """Whether versions are equal as far as both go: `trtexec` knows three numbers of what Python knows four of."""
    return all(a == b for a, b in zip(one.split("."), other.split("."), strict=False))


def obstacle(device: str) -> str | None:
    """Why no engine can run on a device, with the way out; None if one could, built for this GPU and version.

    Raises:
        ValueError: it is no device name.
    """
    if cuda_index(device) is None:
        return "its engines run on GPUs alone"
    if not tensorrt_library.installed():
        return f"TensorRT is not installed: {INSTALL}"
    return torch_obstacle(device)


def _place(index: int) -> torch.device:
    return torch.device("cuda", index)


def _gpu(index: int) -> Gpu:
    major, minor = torch.cuda.get_device_capability(index)
    return Gpu(torch.cuda.get_device_name(index), f"{major}.{minor}")
