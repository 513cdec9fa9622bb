"""The operators that a program may call: they compute new tensors from tensors and numbers, and do nothing else.

None of them reads a file, keeps a state, draws random numbers, or reaches beyond the memory of its arguments. To take
up another one, make sure of that and add its name.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

# Names of aten operators; a program may use every form of them that changes none of its arguments.
_NAMES = """
abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d add addbmm addcdiv addcmul addmm all amax amin aminmax any
arange argmax argmin argsort asin asinh atan atan2 atanh avg_pool1d avg_pool2d baddbmm batch_norm bitwise_and
bitwise_not bitwise_or bitwise_xor bmm broadcast_tensors broadcast_to bucketize cat ceil celu chunk clamp clamp_max
clamp_min clone concat concatenate constant_pad_nd contiguous conv1d conv2d conv_transpose1d conv_transpose2d
convolution cos cosh cumprod cumsum detach diagonal diff div divide dot einsum elu embedding empty_like eq erf erfc exp
exp2 expand expand_as expm1 eye fft_fft fft_irfft fft_rfft flatten flip floor floor_divide fmod frac full full_like
gather ge gelu glu group_norm gru gt hann_window hardshrink hardsigmoid hardswish hardtanh im2col imag index
index_select instance_norm isfinite isinf isnan kthvalue layer_norm le leaky_relu lerp lift_fresh_copy linalg_norm
linalg_vector_norm linear linspace log log10 log1p log2 log_sigmoid log_softmax logaddexp logical_and logical_not
logical_or logical_xor logsumexp lstm lt masked_fill masked_scatter matmul max max_pool1d max_pool2d maximum mean
median meshgrid min minimum mish mm movedim mul multiply mv nan_to_num narrow ne neg negative new_empty new_full
new_ones new_zeros norm normalize numel one_hot ones ones_like outer pad permute pixel_shuffle pixel_unshuffle pow
prelu prod ravel real reciprocal reflection_pad1d reflection_pad2d relu relu6 remainder repeat repeat_interleave
replication_pad1d replication_pad2d reshape reshape_as rms_norm roll round rsqrt rsub scalar_tensor
scaled_dot_product_attention scatter scatter_add searchsorted select select_scatter selu sigmoid sign silu sin sinh
slice slice_scatter softmax softplus sort split split_with_sizes sqrt square squeeze stack std std_mean stft sub
subtract sum swapaxes swapdims sym_numel sym_size t tan tanh tensor_split tile to topk transpose tril triu true_divide
trunc type_as unbind unflatten unfold unsqueeze upsample_linear1d upsample_nearest1d var var_mean view view_as
view_as_complex view_as_real where xlogy zeros zeros_like __and__ __or__ __xor__ _addmm_activation _log_softmax
_safe_softmax _softmax _to_copy _unsafe_view
"""
OPERATORS = frozenset(_NAMES.split())

# What text an operator may be given: modes as "tanh", equations of einsum.
WORD = re.compile(r"[a-z][a-z_]{0,30}|[A-Za-z ,.]{0,60}->[A-Za-z .]{0,30}")

# Checks of torch's own and marks for the exporter; they compute nothing.
IGNORED = frozenset(
    {"_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size"}
)
# Give their first argument as it is.
IDENTITIES = frozenset({"alias", "detach", "lift_fresh_copy"})

_ARITHMETIC = "add sub mul floordiv truediv mod neg pos abs eq ne lt le gt ge and_ or_"
ON_NUMBERS: Mapping[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in _ARITHMETIC.split()},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    **{f"torch.{name}": getattr(torch, name) for name in ("sym_max", "sym_min", "sym_not", "sym_int", "sym_float")},
}
"""Operators on sizes, which are plain numbers when a program runs."""
