"""Reading shared tables by their address, in compiled code.

    int32s(address)[i]

numba counts the references to every array that a compiled function is given or touches, with atomic operations that
take ten times as long as the look-up itself. Numbers are not counted, so tables that many searches read go by address;
the caller that passes an address keeps the array alive as long as it is used.
"""

from typing import Any

import numpy.typing as npt
from llvmlite.ir import Constant
from numba import types
from numba.extending import intrinsic

from tritone.search.compiled.compiler import inlined


def address_of(array: npt.NDArray[Any]) -> int:
    """Where the items of an array begin; they must lie one after the other."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def pointer_to(item: Any) -> Any:
    """Make a function that compiled code calls with an address, to have a pointer to items of a type of numba's.

    Of records make an array first, with `numba.carray(pointer, shape)`: what a pointer to records gives is a copy.
    """

    def cast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    def pointer(typing_context: Any, address: Any) -> Any:
        return types.CPointer(item)(types.int64), cast

    return intrinsic(pointer)


int32s = pointer_to(types.int32)
uint32s = pointer_to(types.uint32)
int64s = pointer_to(types.int64)
float32s = pointer_to(types.float32)
float64s = pointer_to(types.float64)


def _float_of_bits(typing_context: Any, bits: Any) -> Any:

    def cast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return types.float32(types.int32), cast


float_of_bits: Any = intrinsic(_float_of_bits)  # the float32 with the bits of an int32


def _borrowed(typing_context: Any, arrays: Any) -> Any:

    def borrow(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        for i, kind in enumerate(arrays):
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, builder.extract_value(value, i))
                array.meminfo = array.parent = Constant(array.meminfo.type, None)
                value = builder.insert_value(value, array._getvalue(), i)
        return value

    return arrays(arrays), borrow


# A tuple with arrays whose references are not counted; something else must keep them until they are no longer used.
# Functions that are not part of their caller cannot know that, so those with hot loops borrow their arguments again.
borrowed: Any = intrinsic(_borrowed)


@inlined
def after_use(owned: Any, result: Any) -> Any:
    """The result, when it is computed with what was `borrowed` from `owned`: until here numba does not free that."""
    return result
