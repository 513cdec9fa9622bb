"""The graphs of a Whisper bundle as ONNX, written node by node of a model's tensors. Needs no torch.

    sizes, tensors, precision  ->  features.onnx, encoder.onnx, decoder.onnx (`onnx.ModelProto`s)

They are the modules of `graphs`, whose docstrings have their inputs and outputs, with the operators that onnxruntime
fuses. In fp16 all is computed in it but the features; what goes in and comes out is float32 and int64.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import onnx
from onnx import TensorProto

from tritone.bundle.attending import layer_names
from tritone.bundle.manifest import Precision, Role
from tritone.families.layers.clipped_mel import FRAME_LENGTH, FRAME_SHIFT
from tritone.families.onnx.builder import Builder
from tritone.families.onnx.clipped_mel import OPSET, log_mel
from tritone.families.onnx.large import WeightFile
from tritone.families.whisper.dims import Dims, State

EPSILON = 1e-5  # of layer norms, as torch's
HIDDEN = -3e4  # is added to scores that do not count; see layers.attention
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Spec = tuple[int, Sequence[int | str]]


def onnx_graph(
    dims: Dims,
    state: State,
    alignment_heads: Sequence[tuple[int, int]],
    role: Role,
    precision: Precision,
    weights: WeightFile,
) -> onnx.ModelProto:
    """The graph of a role of a model; `precision` is fp32 or fp16, `weights` the file that takes them."""
    if role == "features":
        return _features(dims.num_bins)
    nodes = _Nodes(dims, state, precision, weights)
    return _encoder(nodes) if role == "encoder" else _decoder(nodes, alignment_heads)


class _Nodes:
    """Writes the parts of a network that encoder and decoder share. `model` makes the graph of what was written."""

    def __init__(self, dims: Dims, state: State, precision: Precision, weights: WeightFile) -> None:
        self.b = Builder(OPSET, weights)
        self.dims = dims
        self._state = state
        self._half = precision == "fp16"
        self._type = np.float16 if self._half else np.float32
        self._outputs: dict[str, Spec] = {}

    def number(self, value: float) -> str:
        """A constant in the precision of the graph."""
        return self.b.constant(value, self._type)

    def weight(self, name: str, *, turned: bool = False, scale: float = 1.0) -> str:
        """A tensor of the model times `scale`; `turned`: a matrix (outputs, inputs) as (inputs, outputs)."""
        array = self._state[name].astype(self._type, copy=False)
        if scale != 1.0:
            array = np.multiply(array, self._type(scale), dtype=self._type)
        return self.b.weight(name, array.T if turned else array)

    def taken(self, name: str) -> str:
        """An input in the precision of the graph."""
        return self.b.op("Cast", name, to=TensorProto.FLOAT16) if self._half else name

    def give(self, x: str, name: str, shape: Sequence[int | str]) -> None:
        """Make an output of a tensor."""
        if self._half:
            self.b.op("Cast", x, to=FLOAT, output=name)
        else:
            self.b.rename(x, name)
        self._outputs[name] = (FLOAT, shape)

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.b.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)

    def linear(self, x: str, name: str, *, biased: bool = True, scale: float = 1.0) -> str:
        product = self.b.op("MatMul", x, self.weight(f"{name}.weight", turned=True, scale=scale))
        return self.b.op("Add", product, self.weight(f"{name}.bias", scale=scale)) if biased else product

    def gelu(self, x: str) -> str:
        erf = self.b.op("Erf", self.b.op("Div", x, self.number(2**0.5)))
        return self.b.op("Mul", self.b.op("Mul", x, self.b.op("Add", erf, self.number(1.0))), self.number(0.5))

    def split(self, x: str, heads: int, *, turned: bool = False) -> str:
        """(batch, length, width) as (batch, heads, length, head_dim), or `turned` (batch, heads, head_dim, length)."""
        apart = self.b.op("Reshape", x, self.b.constant([0, 0, heads, self.dims.audio_width // heads]))
        return self.b.op("Transpose", apart, perm=[0, 2, 3, 1] if turned else [0, 2, 1, 3])

    def attend(self, x: str, name: str, heads: int, keys: str, values: str, bias: str = "") -> tuple[str, str]:
        """What x attends to, and the scores behind it; keys are turned.

        Queries come scaled out of their product: onnxruntime makes a scale of their own one of the product with the
        keys, and copies all keys before a product of one row with a scale. (1/8, which all released models have,
        changes no digit.)
        """
        query = self.split(self.linear(x, f"{name}.query", scale=(self.dims.audio_width // heads) ** -0.5), heads)
        scores = self.b.op("MatMul", query, keys)
        weights = self.b.op("Softmax", self.b.op("Add", scores, bias) if bias else scores, axis=-1)
        mixed = self.b.op("Transpose", self.b.op("MatMul", weights, values), perm=[0, 2, 1, 3])
        together = self.b.op("Reshape", mixed, self.b.constant([0, 0, self.dims.audio_width]))
        return self.linear(together, f"{name}.out"), scores

    def mlp(self, x: str, block: str) -> str:
        """x and what the block's MLP makes of it."""
        y = self.gelu(self.linear(self.norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0"))
        return self.b.op("Add", x, self.linear(y, f"{block}.mlp.2"))

    def model(self, inputs: Mapping[str, Spec], contract: str) -> onnx.ModelProto:
        return self.b.model(inputs, self._outputs, {"producer": "tritone", "contract": contract})


def _features(num_bins: int) -> onnx.ModelProto:
    b = Builder(OPSET)
    length = b.op("Shape", "waveform", start=1, end=2)
    count = b.op("Squeeze", length)
    places = b.op("Range", b.constant(0), count, b.constant(1))
    inside = b.op("Less", places, b.op("Reshape", "num_samples", b.constant([-1, 1])))
    signal = b.op("Pad", b.op("Where", inside, "waveform", b.real(0)), b.constant([0, 0, 0, FRAME_LENGTH]), b.real(0))
    before = b.slice(signal, FRAME_LENGTH // 2, 0, axis=1, step=-1)
    whole = b.op("Concat", before, signal, axis=1)
    frames = b.op("Div", b.op("Add", length, b.constant([FRAME_LENGTH // 2 + FRAME_SHIFT])), b.constant([FRAME_SHIFT]))
    log_mel(b, whole, frames, num_bins, output="features")
    b.op("Div", "num_samples", b.constant(FRAME_SHIFT), output="num_frames")
    return b.model(
        {"waveform": (FLOAT, ["batch", "samples"]), "num_samples": (INT64, ["batch"])},
        {"features": (FLOAT, ["batch", "frames", num_bins]), "num_frames": (INT64, ["batch"])},
        {"producer": "tritone", "contract": "FeaturesGraph"},
    )


def _encoder(nodes: _Nodes) -> onnx.ModelProto:
    b, dims = nodes.b, nodes.dims
    x = b.op("Transpose", nodes.taken("features"), perm=[0, 2, 1])
    for name, stride in (("encoder.conv1", 1), ("encoder.conv2", 2)):
        weight, bias = nodes.weight(f"{name}.weight"), nodes.weight(f"{name}.bias")
        x = nodes.gelu(b.op("Conv", x, weight, bias, kernel_shape=[3], pads=[1, 1], strides=[stride]))
    x = b.op("Add", b.op("Transpose", x, perm=[0, 2, 1]), nodes.weight("encoder.positional_embedding"))
    heads = dims.audio_heads
    for block in (f"encoder.blocks.{layer}" for layer in range(dims.audio_layers)):
        y = nodes.norm(x, f"{block}.attn_ln")
        keys = nodes.split(nodes.linear(y, f"{block}.attn.key", biased=False), heads, turned=True)
        values = nodes.split(nodes.linear(y, f"{block}.attn.value"), heads)
        x = nodes.mlp(b.op("Add", x, nodes.attend(y, f"{block}.attn", heads, keys, values)[0]), block)
    found = nodes.norm(x, "encoder.ln_post")
    nodes.give(found, "encoder_out", ["batch", dims.audio_context, dims.audio_width])
    names = iter(layer_names("cross", dims.text_layers))
    for block in (f"decoder.blocks.{layer}.cross_attn" for layer in range(dims.text_layers)):
        keys = nodes.split(nodes.linear(found, f"{block}.key", biased=False), dims.text_heads, turned=True)
        values = nodes.split(nodes.linear(found, f"{block}.value"), dims.text_heads)
        nodes.give(keys, next(names), ["batch", dims.text_heads, dims.head_dim, dims.audio_context])
        nodes.give(values, next(names), ["batch", dims.text_heads, dims.audio_context, dims.head_dim])
    return nodes.model({"features": (FLOAT, ["batch", 2 * dims.audio_context, dims.num_bins])}, "EncoderGraph")


def _decoder(nodes: _Nodes, alignment_heads: Sequence[tuple[int, int]]) -> onnx.ModelProto:
    b, dims = nodes.b, nodes.dims
    heads, width = dims.text_heads, dims.audio_width
    cross_names, self_names = layer_names("cross", dims.text_layers), layer_names("self", dims.text_layers)
    past, length = b.op("Shape", self_names[0], start=2, end=3), b.op("Shape", "tokens", start=1, end=2)
    total = b.op("Add", past, length)
    there = b.op("Range", b.constant(0), b.op("Squeeze", total), b.constant(1))
    here = b.op("Slice", there, past, total, b.constant([0]))
    padding = b.op("Unsqueeze", "padding", b.constant([1]))
    position = b.op("Max", b.op("Sub", here, padding), b.constant(0))
    earlier = b.op("LessOrEqual", there, b.op("Unsqueeze", here, b.constant([1])))
    real = b.op("GreaterOrEqual", there, b.op("Unsqueeze", padding, b.constant([2])))
    seen = b.op("Unsqueeze", b.op("And", earlier, real), b.constant([1]))
    bias = b.op("Where", seen, nodes.number(0.0), nodes.number(HIDDEN))
    table = nodes.weight("decoder.token_embedding.weight")
    places = b.op("Gather", nodes.weight("decoder.positional_embedding"), position)
    x = b.op("Add", b.op("Gather", table, "tokens"), places)
    recordings = b.op("Shape", cross_names[0], start=0, end=1)
    together = b.op("Concat", recordings, b.constant([-1, width]), axis=0)
    rows = b.op("Concat", b.op("Shape", "tokens"), b.constant([width]), axis=0)
    scores = []
    for layer in range(dims.text_layers):
        block = f"decoder.blocks.{layer}"
        y = nodes.norm(x, f"{block}.attn_ln")
        caches = []
        for part, name, biased in (("key", self_names[2 * layer], False), ("value", self_names[2 * layer + 1], True)):
            new = nodes.split(nodes.linear(y, f"{block}.attn.{part}", biased=biased), heads)
            caches.append(b.op("Concat", nodes.taken(name), new, axis=2))
            nodes.give(caches[-1], f"next_{name}", ["rows", heads, "total", dims.head_dim])
        keys = b.op("Transpose", caches[0], perm=[0, 1, 3, 2])
        x = b.op("Add", x, nodes.attend(y, f"{block}.attn", heads, keys, caches[1], bias)[0])
        crossed = b.op("Reshape", nodes.norm(x, f"{block}.cross_attn_ln"), together)
        keys, values = (nodes.taken(name) for name in cross_names[2 * layer : 2 * layer + 2])
        attended, score = nodes.attend(crossed, f"{block}.cross_attn", heads, keys, values)
        x = nodes.mlp(b.op("Add", x, b.op("Reshape", attended, rows)), block)
        scores.append(score)
    chosen = b.op("GatherND", x, b.op("Unsqueeze", "places", b.constant([2])), batch_dims=1)
    flat = b.op("Reshape", nodes.norm(chosen, "decoder.ln"), b.constant([-1, width]))
    # One product for all rows, whose weight is the table itself: the file holds it once.
    head = table if dims.tied else nodes.weight("decoder.head.weight")
    shape = b.op("Concat", b.op("Shape", "places"), b.constant([dims.vocab]), axis=0)
    logits = b.op("Reshape", b.op("Gemm", flat, head, transB=1), shape)
    nodes.give(logits, "logits", ["rows", "wanted", dims.vocab])
    if alignment_heads:
        # Rows of a recording stand side by side in its scores: (recordings, heads, rows of each · length, positions).
        count = len(alignment_heads)
        parts = [
            b.op("Gather", scores[layer], b.constant([head for _, head in group]), axis=1)
            for layer, group in groupby(alignment_heads, key=lambda pair: pair[0])
        ]
        found = b.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        apart = b.op("Concat", b.constant([0, count, -1]), length, b.constant([dims.audio_context]), axis=0)
        turned = b.op("Transpose", b.op("Reshape", found, apart), perm=[0, 2, 1, 3, 4])
        shape = b.op("Concat", b.constant([-1, count]), length, b.constant([dims.audio_context]), axis=0)
        nodes.give(b.op("Reshape", turned, shape), "alignment", ["rows", count, "length", dims.audio_context])
    inputs: dict[str, Spec] = {
        "tokens": (INT64, ["rows", "length"]),
        "padding": (INT64, ["rows"]),
        "places": (INT64, ["rows", "wanted"]),
    }
    for name in cross_names:
        sizes = [dims.head_dim, dims.audio_context]
        inputs[name] = (FLOAT, ["recordings", heads, *(sizes if "_key_" in name else sizes[::-1])])
    inputs |= {name: (FLOAT, ["rows", heads, "past", dims.head_dim]) for name in self_names}
    return nodes.model(inputs, "DecoderGraph")
