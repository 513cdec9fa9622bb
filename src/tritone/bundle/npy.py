"""Arrays of numbers in `.npy` files of strangers.

    mean_vec.npy  ->  read_vector  ->  (n,) float32

`numpy.load` takes memory for what a header claims, looks into zip files, and fails in a dozen ways. Here the header is
held against the file before anything is made of it, and nothing but numbers is read.
Source of the layout: numpy, NEP 1 and `numpy.lib.format`.
"""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

MAX_VECTOR_BYTES = 1 << 20  # embeddings have a few hundred numbers
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # 3.0 is for names of fields


def read_array(path: Path, max_bytes: int) -> npt.NDArray[Any]:
    """Read an array of integers or floats; it cannot be written to.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is larger than `max_bytes`, or no such array; says which.
    """
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    stream = io.BytesIO(data)
    try:
        shape, is_fortran, dtype = HEADERS[npy.read_magic(stream)](stream)
    except Exception as error:  # the header is read as Python is, which goes wrong in as many ways
        raise ValueError("it is no array that numpy has saved") from error
    if dtype.kind not in "fiu":
        raise ValueError(f"it holds {dtype}, not numbers")
    begin, count = stream.tell(), math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - begin:
        raise ValueError(
            f"it has {len(data) - begin:,} bytes for an array of {dtype} {shape}; it is cut off or damaged"
        )
    array = np.frombuffer(data, dtype, count, begin) if count else np.empty(0, dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def read_vector(path: Path, max_bytes: int = MAX_VECTOR_BYTES) -> npt.NDArray[np.float32]:
    """Read one vector (n,) of finite numbers; (1, n) and (n, 1) will do.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is something else, or too large; says which.
    """
    array = read_array(path, max_bytes)
    if not 0 < array.size == max(array.shape, default=0):
        raise ValueError(f"it holds {array.dtype} {array.shape}, not one vector of numbers")
    with np.errstate(over="ignore"):
        vector = array.reshape(-1).astype(np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("it holds numbers that are not finite")
    return vector
