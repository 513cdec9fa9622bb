"""Reading shared tables by their address, in compiled code.

    int32s(address)[i]

numba counts the references to every array that a compiled function is given or touches, with atomic operations that
take ten times as long as the look-up itself. Numbers are not counted, so tables that many searches read go by address;
whoever passes an address keeps the array alive as long as it is used.
"""

from typing import Any

import numpy.typing as npt
from numba import types
from numba.extending import intrinsic


def address_of(array: npt.NDArray[Any]) -> int:
    """Where the items of an array begin; they must lie one after the other."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _pointer_to(item: Any) -> Any:
    def cast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    def pointer(typing_context: Any, address: Any) -> Any:
        return types.CPointer(item)(types.int64), cast

    return intrinsic(pointer)


int32s = _pointer_to(types.int32)
uint32s = _pointer_to(types.uint32)
int64s = _pointer_to(types.int64)
float32s = _pointer_to(types.float32)
float64s = _pointer_to(types.float64)
