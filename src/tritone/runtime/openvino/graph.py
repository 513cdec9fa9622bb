"""ONNX graphs on OpenVINO, on the CPU: the files of onnxruntime, whose operators are compiled for the CPU's vectors.

OpenVINO fuses chains of operators on single numbers, as activations are, into one pass, and computes their logarithms
with vectors. It prepares itself for each new shape, which takes a tenth of the first call.
"""

import os
import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from tritone.errors import BundleError, OperatorError
from tritone.runtime.device import cuda_index, thread_count
from tritone.runtime.files.external_data import inspect
from tritone.runtime.graph import Array, TensorSpec
from tritone.runtime.memory import trim_heap
from tritone.runtime.slots import HostGraph

INSTEAD = "Run it with runtime onnxruntime."
TYPES = {"f32", "f16", "f64", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "boolean"}


class OpenVinoGraph(HostGraph):
    """One compiled model of OpenVINO. Computes in float32, or in the types that the graph names."""

    def __init__(
        self, path: Path, device: str = "cpu", threads: int | None = None, *, split_calls: bool = True
    ) -> None:
        """Open a graph.

        Args:
            path: the .onnx file; external weights lie beside it.
            device: `cpu`.
            threads: CPU threads; None takes every CPU this process may use.
            split_calls: as of `OnnxGraph`.

        Raises:
            OperatorError: another device was asked for.
            BundleError: OpenVINO cannot run the graph, or it has loops, or its weights lie outside of its folder.
            ValueError: the device name or the number of threads makes no sense.
        """
        count = thread_count(threads)
        if reason := obstacle(device):
            raise OperatorError(f"device {device} was asked for, but {reason}.")
        if inspect(path).loops:
            raise BundleError(
                f"{path} has loops, which nothing would end here if they do not end themselves. {INSTEAD}"
            )
        self.path, self.device = path, device
        self.concurrency = 1 if split_calls else count  # two at once take longer behind a server
        settings = {
            "NUM_STREAMS": self.concurrency,
            "INFERENCE_NUM_THREADS": count,
            "INFERENCE_PRECISION_HINT": "f32",  # CPUs that have bfloat16 would round to it
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # nor is anything rounded where weights are stored as int8
            "ENABLE_CPU_PINNING": False,  # other processes have the same cores
        }
        try:
            model = openvino.Core().compile_model(os.fspath(path), "CPU", settings)
        except Exception as error:  # RuntimeError and what its front end has
            complaint = " ".join(str(error).split())[-400:]
            raise BundleError(f"OpenVINO {openvino.__version__} cannot run {path}: {complaint}. {INSTEAD}") from error
        self._model = model
        self.inputs: Mapping[str, TensorSpec] = {port.any_name: _spec(path, port) for port in model.inputs}
        self.outputs: Mapping[str, TensorSpec] = {port.any_name: _spec(path, port) for port in model.outputs}
        self._index = {port.any_name: index for index, port in enumerate(model.outputs)}
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(self.concurrency):
            self._idle.put(model.create_infer_request())

    def __call__(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Run the graph on host arrays and return the named outputs, in the order asked for."""
        given = {name: np.require(inputs[name], requirements="C") for name in self.inputs}
        request = self._idle.get()
        try:
            request.infer(given, share_inputs=True, share_outputs=True)
            return [request.get_output_tensor(self._index[name]).data.copy() for name in outputs]
        finally:
            self._idle.put(request)

    def give_back(self, inputs: Mapping[str, Array]) -> None:
        """See `Graph.give_back`."""
        held = [self._idle.get() for _ in range(self.concurrency)]  # none computes
        try:
            self._model.release_memory()
        finally:
            for request in held:
                self._idle.put(request)
        trim_heap()


def obstacle(device: str) -> str | None:
    """Why OpenVINO cannot run on a device, with the way out; None if it can.

    Raises:
        ValueError: it is no device name.
    """
    return None if cuda_index(device) is None else "OpenVINO runs graphs on the CPU alone; use runtime onnxruntime"


def _spec(path: Path, port: Any) -> TensorSpec:
    name = port.element_type.get_type_name()
    if name not in TYPES:
        raise BundleError(f"{path}: its tensor {port.any_name} is of type {name}. {INSTEAD}")
    shape = port.partial_shape
    sizes = tuple(None if axis.is_dynamic else axis.get_length() for axis in shape)
    return TensorSpec(np.dtype(port.element_type.to_dtype()), sizes)
