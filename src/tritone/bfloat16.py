"""Numbers of bfloat16, the upper half of float32, which numpy does not have: its bits as uint16.

float32  <->  uint16
"""

import numpy as np
import numpy.typing as npt

NAN = 0x7FC0
BITS = np.dtype([("bfloat16", "<u2")])
"""The type of arrays of such bits where their type has to tell them from uint16."""


def to_bfloat16(array: npt.NDArray[np.floating]) -> npt.NDArray[np.uint16]:
    """The bits of numbers as bfloat16, rounded to the nearest, ties to even; NaN stays NaN."""
    single = np.ascontiguousarray(array, np.float32).reshape(np.shape(array))
    bits = single.view(np.uint32)
    # Of the largest numbers the sum wraps around, but their bits are those of NaN.
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(NAN), rounded)


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The numbers that bits of bfloat16 are."""
    wide = np.array(bits, np.uint32, order="C")
    np.left_shift(wide, np.uint32(16), out=wide)  # in place, for a scalar stays an array
    return wide.view(np.float32)
