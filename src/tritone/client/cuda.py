"""CUDA shared memory: a region on a GPU that a server on this machine opens by a handle.

NVIDIA's package `cuda-python` reaches the driver; it is imported with the first region.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tritone.client.device_array import DeviceArray
from tritone.client.regions import Claim, Memory, Region
from tritone.errors import MissingDependencyError, OperatorError

HANDLE_BYTES = 64  # CUDA_IPC_HANDLE_SIZE
SUCCESS = 0


class CudaRegion(Region):
    """Memory of one GPU. Thread-safe: another thread's current device is left as it is."""

    memory: Memory = "cuda"

    def __init__(self, size: int, device: int = 0) -> None:
        try:
            from cuda.bindings import runtime  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise MissingDependencyError(
                "CUDA shared memory needs NVIDIA's package for Python: pip install cuda-python"
            ) from error
        self._runtime: Any = runtime
        self.size, self.device = size, device
        with self._current():
            self._pointer = int(self._call("cudaMalloc", size))
            handle = self._call("cudaIpcGetMemHandle", self._pointer)
        # Before version 13 a field has the bytes, since then they are behind a pointer.
        reserved = getattr(handle, "reserved", None)
        self._handle = bytes(
            (ctypes.c_char * HANDLE_BYTES).from_address(handle.getPtr()) if reserved is None else reserved
        )
        self._claim = Claim(0)
        self.name = self._claim.name

    @property
    def registration(self) -> Mapping[str, Any]:
        return {"raw_handle": self._handle, "device_id": self.device, "byte_size": self.size}

    def write(self, offset: int, array: Any) -> None:
        source = array if isinstance(array, DeviceArray) else np.ascontiguousarray(array)
        with self._current():
            if isinstance(source, DeviceArray):
                if source.stream:
                    self._call("cudaStreamSynchronize", source.stream)
                address = source.pointer
            else:
                address = source.ctypes.data
            # On the default stream, and done when it returns: the server knows nothing of our streams.
            kind = self._runtime.cudaMemcpyKind.cudaMemcpyDefault
            self._call("cudaMemcpy", self._pointer + offset, address, source.nbytes, kind)
            self._call("cudaStreamSynchronize", 0)

    def close(self) -> None:
        if self._pointer:
            with self._current():
                self._call("cudaFree", self._pointer)
            self._pointer = 0
        self._claim.close()

    @contextmanager
    def _current(self) -> Iterator[None]:
        before = self._call("cudaGetDevice")
        self._call("cudaSetDevice", self.device)
        try:
            yield
        finally:
            self._call("cudaSetDevice", before)

    def _call(self, name: str, *arguments: Any) -> Any:
        function: Callable[..., Any] = getattr(self._runtime, name)
        code, *results = function(*arguments)
        if int(code) != SUCCESS:
            raise OperatorError(
                f"CUDA shared memory on GPU {self.device}: {name} failed ({getattr(code, 'name', code)}). It needs an "
                "NVIDIA GPU with a driver that this cuda-python knows, and memory on it."
            )
        return results[0] if results else None
