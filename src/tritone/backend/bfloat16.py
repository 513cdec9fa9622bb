"""BF16 tensors of Triton as float32 arrays: numpy has no such type, so they travel as DLPack capsules.

Source: dlpack.h of dmlc/dlpack, version 0.8.
"""

import ctypes
import math
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from tritone.bfloat16 import from_bfloat16, to_bfloat16
from tritone.runtime.graph import Array

CPU = 1  # kDLCPU
BFLOAT = 4  # kDLBfloat
NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_lent: dict[int, Any] = {}  # what capsules point to, until Triton gives them back
_numbers = count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _returned(address: int) -> None:
    _lent.pop(_Managed.from_address(address).context, None)


def read_bfloat16(tensor: Any) -> npt.NDArray[np.float32]:
    """The numbers of a BF16 tensor of a request, which is on the host."""
    capsule = tensor.to_dlpack()  # which frees the memory when it goes
    found = _Managed.from_address(_pointer_of(capsule, NAME)).tensor
    shape = tuple(found.shape[axis] for axis in range(found.ndim))
    if not math.prod(shape):
        return np.empty(shape, np.float32)
    memory = (ctypes.c_uint16 * math.prod(shape)).from_address(found.data + found.byte_offset)
    return from_bfloat16(np.frombuffer(memory, np.uint16).reshape(shape))


def bfloat16_tensor(name: str, array: Array) -> Any:
    """A BF16 tensor of a response, of float32 numbers."""
    bits = np.ascontiguousarray(to_bfloat16(array))
    key = next(_numbers)
    shape = (ctypes.c_int64 * bits.ndim)(*bits.shape)
    inner = _Tensor(bits.ctypes.data, CPU, 0, bits.ndim, BFLOAT, 16, 1, shape, None, 0)
    managed = _Managed(inner, key, ctypes.cast(_returned, ctypes.c_void_p))
    _lent[key] = (managed, shape, bits)
    return pb_utils.Tensor.from_dlpack(name, _new_capsule(ctypes.addressof(managed), NAME, None))
