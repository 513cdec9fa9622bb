"""ONNX graphs on onnxruntime, on the CPU or on a CUDA device.

The session folds constants when it is created, so weights stored as int8 or fp16 are widened to float32 once, not at
every call.
Weights in a file beside the graph are found by onnxruntime; names that lead out of the graph's folder are refused here.
"""

import ctypes
import math
import os
import platform
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from tritone.bfloat16 import from_bfloat16, to_bfloat16
from tritone.errors import BundleError, InputError, OperatorError
from tritone.runtime.device import cuda_index, thread_count
from tritone.runtime.files.external_data import inspect
from tritone.runtime.graph import Array, TensorSpec
from tritone.runtime.memory import trim_heap
from tritone.runtime.onnx.fusing import fused
from tritone.runtime.slots import HostGraph

BFLOAT16 = "tensor(bfloat16)"
BFLOAT16_OF_ONNX = 16  # onnx.TensorProto.BFLOAT16
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint64)": np.uint64,
    "tensor(uint32)": np.uint32,
    "tensor(uint16)": np.uint16,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
    BFLOAT16: np.float32,  # numpy has no such type: rounded on the way in, exact on the way out
}
# Calls at once each read all weights. Those of a network of `LARGE_BYTES` and more are no longer in the caches by then,
# and two such calls take longer at once than one after the other; but with attention, whose many small operators leave
# threads without work, two take less up to `ALONE_BYTES`. More than two were not tried.
LARGE_BYTES, ALONE_BYTES = 64 * 2**20, 512 * 2**20
# A call of a graph with loops ends after so long, and a second more for so many numbers: as long as audio lasts.
LOOP_LIMIT_S = 8.0
LOOP_SAMPLES_PER_S = 16_000
FATAL_ONLY = 4
ERRORS_ONLY = 3  # onnxruntime's severity; its warnings are about graph rewrites nobody can act on


class OnnxGraph(HostGraph):
    """One onnxruntime session."""

    def __init__(
        self,
        path: Path,
        device: str = "cpu",
        threads: int | None = None,
        *,
        split_calls: bool = True,
        quiet: bool = False,
        packed: bool = True,
    ) -> None:
        """Open a graph.

        Args:
            path: the .onnx file; external weights lie beside it.
            device: `cpu`, `cuda` or `cuda:<index>`.
            threads: CPU threads; None takes every CPU this process may use.
            split_calls: spread each call over all threads. Without it a call stays on its caller's thread, which wastes
                nothing, and `concurrency` calls at once use them all; right for many small calls.
            packed: copy weights into the order of the kernels, which makes calls faster. Without it they stay in their
                file, of which the system holds in memory what it has room for.
            quiet: calls that fail write nothing to stderr, where failing is no surprise.

        Raises:
            OperatorError: CUDA was asked for and is not there. There is no silent fall-back to the CPU.
            BundleError: the file is not a graph that onnxruntime can open, or its weights lie outside of its folder.
            ValueError: the device name or the number of threads makes no sense.
        """
        providers, options = _providers(device), _options(threads)
        if not packed:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if quiet:
            options.log_severity_level = FATAL_ONLY
        weights, self._loops, attends, model = inspect(path)
        # Calls of several threads share the session's own threads: a lone call has all of them, two have half each.
        self.concurrency = options.intra_op_num_threads if device == "cpu" else 1
        num_bytes = sum(file.stat().st_size for file in (path, *weights) if file.is_file())
        if split_calls and num_bytes >= LARGE_BYTES:
            self.concurrency = min(self.concurrency, 2 if attends and num_bytes < ALONE_BYTES else 1)
        if not split_calls and device == "cpu":
            options.intra_op_num_threads = 1
        try:
            graph = fused(model, path.parent, options) if device == "cpu" else None
            self._session = onnxruntime.InferenceSession(graph or os.fspath(path), options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            if device != "cpu" and "CUDA" in str(error):
                raise OperatorError(f"onnxruntime could not start on {device}: {error}") from error
            raise BundleError(f"onnxruntime cannot open {path}: {error}. Export the bundle again.") from error
        if device != "cpu" and self._session.get_providers()[0] != "CUDAExecutionProvider":
            raise OperatorError(
                f"onnxruntime has CUDA support but could not start it on {device}: the driver, CUDA or cuDNN does not "
                "fit this onnxruntime-gpu. Run `tritone doctor`, or use device cpu."
            )
        self._session.disable_fallback()
        self.path = path
        self.device = device
        self.inputs: Mapping[str, TensorSpec] = {node.name: _spec(node) for node in self._session.get_inputs()}
        self.outputs: Mapping[str, TensorSpec] = {node.name: _spec(node) for node in self._session.get_outputs()}
        nodes = (*self._session.get_inputs(), *self._session.get_outputs())
        self._types = {node.name: node.type for node in nodes}
        self._has_bfloat16 = BFLOAT16 in self._types.values()
        self._texts = [name for name, spec in self.inputs.items() if spec.dtype == object]
        if self._has_bfloat16 and "tensor(string)" in self._types.values():
            raise BundleError(
                f"{path} has both text and bfloat16 among its inputs and outputs, which onnxruntime cannot take from "
                "Python. Cast bfloat16 to float32 in the graph."
            )

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Run the graph on host arrays and return the named outputs, in the order asked for.

        Raises:
            InputError: text is not UTF-8, which is all that onnxruntime takes.
        """
        return self._run(self._with_text(inputs) if self._texts else inputs, list(outputs))

    def _with_text(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs, strings as str: of bytes onnxruntime would take what Python prints for them."""
        found = dict(inputs)
        for name in (each for each in self._texts if each in found):
            found[name] = np.empty(inputs[name].shape, object)
            for index, value in enumerate(inputs[name].flat):
                try:
                    found[name].flat[index] = value.decode() if isinstance(value, bytes) else str(value)
                except UnicodeDecodeError as error:
                    raise InputError(f"input {name}, element {index}: {error}; send text in UTF-8") from error
        return found

    def _run(
        self,
        inputs: Mapping[str, Array],
        outputs: list[str] | None,
        options: onnxruntime.RunOptions | None = None,
    ) -> list[Array]:
        """A call; that of a graph with loops, of which a tensor says how long they are, has a time limit."""
        if not self._loops:
            return self._computed(inputs, outputs, options)
        limit_s = LOOP_LIMIT_S + sum(array.size for array in inputs.values()) / LOOP_SAMPLES_PER_S
        options = options or onnxruntime.RunOptions()
        clock = threading.Timer(limit_s, setattr, (options, "terminate", True))
        clock.daemon = True
        clock.start()
        try:
            return self._computed(inputs, outputs, options)
        except Exception as error:
            if not options.terminate:
                raise
            raise BundleError(
                f"{self.path} has a loop that did not end within {limit_s:.0f} s. Do not use this bundle unless you "
                "know who made it; export the model again, without operators that loop."
            ) from error
        finally:
            clock.cancel()

    def _computed(
        self, inputs: Mapping[str, Array], outputs: list[str] | None, options: onnxruntime.RunOptions | None
    ) -> list[Array]:
        if not self._has_bfloat16:
            results: list[Array] = self._session.run(outputs, dict(inputs), options)
            return results
        names = list(self.outputs) if outputs is None else outputs
        binding = self._session.io_binding()
        for name, array in inputs.items():
            if self._types[name] == BFLOAT16:
                bits = to_bfloat16(array)
                value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, BFLOAT16_OF_ONNX)
                binding.bind_ortvalue_input(name, value)
            else:
                binding.bind_cpu_input(name, array)
        for name in names:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, options)
        values = zip(names, binding.get_outputs(), strict=True)
        return [_from_bfloat16(value) if self._types[name] == BFLOAT16 else value.numpy() for name, value in values]

    def give_back(self, inputs: Mapping[str, Array]) -> None:
        """See `Graph.give_back`; on the CPU alone, where the arena keeps whatever its largest calls took."""
        if self.device == "cpu":
            options = onnxruntime.RunOptions()
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
            self._run(inputs, None, options)
        trim_heap()


def _from_bfloat16(value: Any) -> npt.NDArray[np.float32]:
    """An `OrtValue` of bfloat16 on the host, which onnxruntime returns as no array."""
    shape = tuple(value.shape())
    if not math.prod(shape):
        return np.empty(shape, np.float32)
    memory = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return from_bfloat16(np.frombuffer(memory, np.uint16).reshape(shape))


def obstacle(device: str) -> str | None:
    """Why the installed onnxruntime cannot run on a device, with the way out; None if it can.

    Raises:
        ValueError: it is no device name.
    """
    if cuda_index(device) is None or "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return None
    return (
        f"the installed onnxruntime {onnxruntime.__version__} has no CUDA support. Replace it: `pip uninstall "
        "onnxruntime`, then `pip install onnxruntime-gpu`; or use device cpu"
    )


def _options(threads: int | None) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = thread_count(threads)
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # Every call has new shapes: a memory plan per shape would be kept for each of them and hardly ever used again. The
    # arena stays, since without it large tensors are mapped and unmapped by the kernel at every call.
    options.enable_mem_pattern = False
    # Idle threads sleep: the cores are shared with the server and with other instances, and spinning gained no time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if _saturates():  # then weights beyond 64 levels, and these alone, are for slower kernels
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


@cache
def _saturates() -> bool:
    """Whether onnxruntime's fast kernels add two products of 8 bits in 16, as on x86-64 without VNNI."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # of other systems, which do not say
        return True
    return "avx512_vnni" not in flags and "avx_vnni" not in flags


def _providers(device: str) -> list[Any]:
    index = cuda_index(device)
    if index is None:
        return ["CPUExecutionProvider"]
    if reason := obstacle(device):
        raise OperatorError(f"device {device} was asked for, but {reason}.")
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # finds CUDA and cuDNN where pip installed them; since onnxruntime 1.21
    cuda = {
        "device_id": str(index),
        # The default search times every algorithm for each new shape, and lengths here are always new.
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        # float32 is float32: TF32, which the provider uses by default, keeps 10 bits of a number.
        "use_tf32": "0",
    }
    return [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]


def _spec(node: Any) -> TensorSpec:
    if node.type not in DTYPES:
        raise BundleError(f"the graph's tensor {node.name} is a {node.type}, which Tritone does not handle")
    return TensorSpec(
        np.dtype(DTYPES[node.type]), tuple(axis if isinstance(axis, int) else None for axis in node.shape)
    )
