"""Requests whose tensors lie in shared memory: a transport around another one.

Call  ->  its larger tensors copied to a region, their places in the call  ->  the transport  ->  the places are free

The region is opened and registered with the first request, used again and again, and taken back when the transport is
closed. Where it has no room for a tensor, the tensor travels with the message; the log says so once.
"""

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from tritone.client.device_array import DeviceArray
from tritone.client.endpoint import Endpoint
from tritone.client.regions import PREFIX, Region, Room, check_memory, is_abandoned, open_region
from tritone.client.transport import AroundTransport, Call, Placement, Transport
from tritone.errors import OperatorError, RegionLostError, ServerUnreachableError, TritoneError

Answer = TypeVar("Answer")

DEFAULT_BYTES = 256 << 20  # of a region: 800 requests of 10 s as 16-bit audio
LEAST_BYTES = 2048  # of a tensor; smaller ones cost less in the message
TIMEOUT_S = 10.0  # of registering
GOODBYE_S = 2.0
LOG = logging.getLogger(__name__)


class SharedMemoryTransport(AroundTransport):
    """A transport for a server on this machine; see `Transport`. Thread-safe.

    Args:
        transport: what sends the requests; closed with this one.
        memory: "system", "cuda" or "cuda:N".
        size: of the region, in bytes.
    """

    def __init__(self, transport: Transport, endpoint: Endpoint, memory: str, size: int = DEFAULT_BYTES) -> None:
        super().__init__(transport)
        self._endpoint = endpoint
        self._memory = check_memory(memory)
        self._size = size
        self._lock = threading.Lock()  # of the room; answers wait for it, so nothing is asked of the server under it
        self._registering = threading.Lock()
        self._region: Region | None = None
        self._room = Room(size)
        self._is_registered = False
        self._was_full = False
        self._closed = False

    @property
    def is_on_gpu(self) -> bool:
        """Whether arrays on a GPU can be sent."""
        return self._memory != "system"

    def prepare(self) -> None:
        """Open and register the region, if that has not been done.

        Raises:
            InputError: the server's key is needed.
            OperatorError: there is no such memory, or the server cannot open it.
            RetryError: the server cannot be reached.
        """
        if self._is_registered:
            return
        with self._registering:
            if self._closed or self._is_registered:
                return
            if self._region is None:
                self._region = open_region(self._memory, self._size)
            register(self._transport, self._region, self._endpoint)
            self._is_registered = True

    def infer(self, call: Call[Answer]) -> Future[Answer]:
        self.prepare()
        placed = self._place(call)
        try:
            pending = self._transport.infer(replace(call, placed=placed))
        except BaseException:
            self._free(placed)
            raise
        pending.add_done_callback(lambda done: self._finish(done, placed))
        return pending

    def close(self) -> None:
        with self._registering:
            region, registered = self._region, self._is_registered
            self._closed, self._region, self._is_registered = True, None, False
        if region is not None and registered:
            with suppress(TritoneError):  # a server that is gone has forgotten it
                self._transport.unregister(region.name, region.memory, GOODBYE_S)
        self._transport.close()
        if region is not None:
            region.close()

    def _place(self, call: Call[Any]) -> dict[str, Placement]:
        placed: dict[str, Placement] = {}
        for name, tensor in call.tensors.items():
            on_gpu = isinstance(tensor, DeviceArray)
            if tensor.dtype.kind == "O" or not (on_gpu or tensor.nbytes >= LEAST_BYTES):
                continue
            region = self._region
            if region is None:
                raise ServerUnreachableError(f"{self._endpoint}: model '{call.model}': this client has been closed")
            with self._lock:
                offset = self._room.take(tensor.nbytes)
            if offset is None:
                self._warn_full(f"its {self._size >> 20} MB are taken")
                if on_gpu:
                    self._free(placed)
                    raise OperatorError(
                        f"{self._endpoint}: the {self._size >> 20} MB of CUDA shared memory have no room for "
                        f"{tensor.nbytes} bytes of an array on a GPU. Send fewer or shorter ones at once."
                    )
                continue
            placed[name] = Placement(region.name, offset, tensor.nbytes)
            try:
                region.write(offset, tensor)
            except OSError as error:
                self._free({name: placed.pop(name)})
                self._warn_full(error.strerror or str(error))
            except BaseException:
                self._free(placed)
                raise
        return placed

    def _warn_full(self, why: str) -> None:
        if not self._was_full:
            self._was_full = True
            LOG.warning("shared memory has no room (%s): what does not fit is sent in messages", why)

    def _free(self, placed: Mapping[str, Placement]) -> None:
        with self._lock:
            for each in placed.values():
                self._room.give(each.offset, each.num_bytes)

    def _finish(self, done: "Future[Any]", placed: Mapping[str, Placement]) -> None:
        # Of a request that was given up the server may still read; then it computes something else for nobody.
        self._free(placed)
        if not done.cancelled() and isinstance(done.exception(), RegionLostError):
            self._is_registered = False  # the server was started again; the next request registers again


def register(transport: Transport, region: Region, endpoint: Endpoint) -> None:
    """Make a region known to a server, and have it forget those of processes that have ended.

    Raises: as `SharedMemoryTransport.prepare`.
    """
    try:
        transport.register(region, TIMEOUT_S)
    except OperatorError as error:
        raise OperatorError(
            f"{endpoint}: the server cannot open the shared memory of this process ({error}). It must run on this "
            "machine, as this user or root, and containers must share it (docker run --ipc=host)"
            + ("" if region.memory == "system" else ", and the server needs the same GPU")
        ) from error
    with suppress(TritoneError):  # the rest is tidying up
        for name in transport.regions(region.memory, TIMEOUT_S):
            if name.startswith(PREFIX) and is_abandoned(name):
                transport.unregister(name, region.memory, TIMEOUT_S)
