"""Calls of CUDA's driver that torch has no name for.

own_stream(device)               ->  a stream that nothing else in the process uses
after(stream, function, number)  ->  whether the driver's own thread will call it when the stream is done
"""

import ctypes
from functools import cache
from typing import Any

import torch

NON_BLOCKING = 1  # a stream that does not wait for the default one


def own_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A new stream of a device. Torch has 32 of each priority, and hands each out again and again.

    Raises:
        RuntimeError: the driver makes none.
    """
    torch.cuda.synchronize(device)  # from now on the driver knows the device of this thread
    stream = ctypes.c_void_p()
    if code := _driver().cuStreamCreateWithPriority(ctypes.byref(stream), NON_BLOCKING, priority):
        raise RuntimeError(f"CUDA's driver makes no stream on {device}: error {code} of cuStreamCreateWithPriority")
    return torch.cuda.ExternalStream(stream.value, device)


def after(stream: torch.cuda.Stream, function: ctypes.c_void_p, number: int) -> bool:
    """Have a C function called with a number when all that was issued to a stream until now is done.

    Returns:
        Whether it will be.
    """
    return _driver().cuLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), function, number) == 0


@cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    driver.cuStreamCreateWithPriority.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int]
    return driver
