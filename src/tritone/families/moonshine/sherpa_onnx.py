"""A Moonshine model's folder as sherpa-onnx has it: the four graphs that UsefulSensors published of its first code.

    preprocess.onnx, encode.onnx, uncached_decode.onnx, cached_decode.onnx (or .int8.onnx), tokens.txt  ->  Checkpoint

The weights are read, and not the graphs taken over: those take one recording at a time, since nothing hides the padding
of a batch, and their steps copy whole caches. What a matrix is follows from what it takes and what takes its result; a
key is told from a query by the axis of the softmax over their product. The network that is made of them is compared
with the graphs.
Source: usefulsensors/moonshine moonshine/model.py (useful-moonshine 20241016), exported with tf2onnx; sherpa-onnx,
scripts/moonshine and csrc/offline-moonshine-model.cc.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch

from tritone.bundle.vocabulary import read_tokens
from tritone.errors import BundleError, ExportError
from tritone.families.export.tokens import tokens_of
from tritone.families.layers.decoder_graph import AttendedGraph
from tritone.families.layers.text_decoder import DecoderSizes
from tritone.families.moonshine.checkpoint import SAMPLE_RATE, Checkpoint, turn
from tritone.families.moonshine.model import MIN_SAMPLES, STEM, MoonshineSizes, Network
from tritone.families.onnx.large import array_of
from tritone.families.onnx.products import Array, Product, Products
from tritone.families.onnx.source import Source, read_source
from tritone.families.onnx.trial import largest_difference, opened, run

START, END = 1, 2
THETA = 10000.0
CONTEXT = 512  # tokens of a text; the graphs have no limit
TOKENS_PER_SECOND = 6.0  # of a text, as upstream's code and sherpa-onnx cut it off: these models are of English
SILENT = re.compile("<unk>|</?s>|<<.*>>")
TRIED_S = 1.3  # of noise, on which network and graphs are compared
ALLOWED = 1e-3, 0.2  # of the size of what comes out, in float32 and in int8
MOONSHINE = ("preprocess", "encode", "uncached_decode", "cached_decode")


@dataclass(frozen=True)
class MoonshineFiles:
    """The files of one model. `int8`: whether matrices are stored so, in one of them at least."""

    graphs: Mapping[str, Path]
    tokens: Path

    @property
    def int8(self) -> bool:
        return any(".int8" in path.name for path in self.graphs.values())


def find_moonshine(folder: Path) -> MoonshineFiles | None:
    """The files of a Moonshine in a folder, those in float32 before those in int8; None if it holds none.

    Raises:
        ExportError: some are missing.
    """
    found = {
        part: path for part in MOONSHINE for form in (".int8", "") if (path := folder / f"{part}{form}.onnx").is_file()
    }
    if not found:
        return None
    files = MoonshineFiles(found, folder / "tokens.txt")
    missing = [f"{part}.onnx" for part in MOONSHINE if part not in found]
    if missing or not files.tokens.is_file():
        raise ExportError(
            f"{folder} holds a Moonshine of sherpa-onnx without {' and '.join(missing or ['tokens.txt'])}"
        )
    return files


def read_files(files: MoonshineFiles) -> Checkpoint:
    """Read a model.

    Raises:
        ExportError: a file is damaged, or the graphs are no Moonshine's as upstream exports them.
    """
    sources = {part: read_source(files.graphs[part]) for part in MOONSHINE}
    heads, head_dim = _heads(sources["cached_decode"])
    stem, encoder, decoder = (_Graph(sources[part], heads * head_dim) for part in MOONSHINE[:3])
    encoder_layers, decoder_layers = encoder.layers(2), decoder.layers(3)
    state = stem.stem()
    for layer in range(encoder_layers):
        state |= encoder.layer(f"encoder.blocks.{layer}", 2 * layer, cross=False)
    for layer in range(decoder_layers):
        state |= decoder.layer(f"decoder.blocks.{layer}", 3 * layer, cross=True)
    state |= encoder.norm("encoder.ln_post", -1) | decoder.norm("decoder.ln", -1) | decoder.embedding()
    table, head = state["decoder.token_embedding.weight"], state["decoder.head.weight"]
    if tied := np.array_equal(table, head):
        del state["decoder.head.weight"]
    rotary = max(head_dim // 2, 32)
    sizes = MoonshineSizes(
        decoder=DecoderSizes(
            vocab=len(table),
            context=CONTEXT,
            width=heads * head_dim,
            heads=heads,
            layers=decoder_layers,
            hidden=state["decoder.blocks.0.mlp.2.weight"].shape[1],
            tied=tied,
            biases=(),
            norm_bias=False,
            activation="gated-silu",
            rotary=rotary,
        ),
        encoder_layers=encoder_layers,
        theta=THETA,
    )
    encoder.check_angles(rotary)
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    turn(tensors, sizes)
    return Checkpoint(
        sizes=sizes,
        state=tensors,
        **_tokens(files.tokens, len(table)),
        start=START,
        end=END,
        tokens_per_second=TOKENS_PER_SECOND,
        sources={path.name: path for path in files.graphs.values()} | {"tokens": files.tokens},
    )


@torch.no_grad()
def check_network(files: MoonshineFiles, network: Network) -> None:
    """Compare a network with the graphs that its weights were read of, on noise and the first token.

    Raises:
        ExportError: they differ, so that the weights were taken for others than they are.
    """
    audio = np.random.default_rng(0).normal(0, 0.1, (1, round(TRIED_S * SAMPLE_RATE))).astype(np.float32)
    [features] = _outputs(files.graphs["preprocess"], audio)
    [encoded] = _outputs(files.graphs["encode"], features, np.array([features.shape[1]], np.int32))
    logits, *_ = _outputs(
        files.graphs["uncached_decode"], np.array([[START]], np.int32), encoded, np.array([1], np.int32)
    )
    encoder = AttendedGraph(network.encoder, network.decoder, SAMPLE_RATE, MIN_SAMPLES)
    ours, counts, *cross = encoder(torch.from_numpy(audio), torch.tensor([audio.shape[1]]))
    form, zero = network.decoder.sizes, torch.zeros(1, dtype=torch.int64)
    none = [torch.zeros(1, form.heads, 0, form.head_dim)] * (2 * form.layers)
    written, *_ = network.decoder(torch.tensor([[START]]), zero, zero.unsqueeze(1), cross, none, counts)
    for part, theirs, found in (("encode", encoded, ours), ("uncached_decode", logits, written)):
        difference = largest_difference(found.numpy(), theirs, part) / np.abs(theirs).max()
        if difference > ALLOWED[files.int8]:
            raise ExportError(
                f"{files.graphs[part]}: a network of its weights differs by {difference:.2g} of the size of what comes "
                f"out, so that they are not what they were taken for. Read are {_Graph.written_by}."
            )


def _outputs(path: Path, *inputs: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    source, graph = read_source(path), opened(path)
    given = {each.name: value for each, value in zip(source.inputs, inputs, strict=False)}
    return run(graph, source, given, [each.name for each in source.outputs])


def _heads(source: Source) -> tuple[int, int]:
    """Heads and the width of each, of the first cache that a step takes."""
    if len(source.inputs) > 3:
        shape = source.inputs[3].shape
        if len(shape) == 4 and shape[2] and shape[3]:
            return shape[2], shape[3]
    raise ExportError(f"{source.path} takes no caches (batch, tokens, heads, width), as steps of Moonshine do")


def _tokens(path: Path, vocab: int) -> dict[str, Any]:
    try:
        tokens = read_tokens(path)
    except BundleError as error:
        raise ExportError(str(error)) from error
    if len(tokens) != vocab:
        raise ExportError(f"{path} has {len(tokens)} tokens, but the graphs {vocab}; they are of different models")
    silent = tuple(id for id, token in enumerate(tokens) if SILENT.fullmatch(token))
    return {"tokens": tokens_of(tokens)[:-1], "silent": silent}


class _Graph(Products):
    """Finds the tensors of a part by the names of our network; norms are numbered as they follow each other."""

    models = "Moonshine models"
    written_by = "the graphs that UsefulSensors published of Moonshine tiny and base, and their int8 forms"

    def __init__(self, source: Source, width: int) -> None:
        self._width = width
        self._gammas: list[str] = []
        self._betas: list[str] = []
        super().__init__(source)

    def _find_norms(self) -> dict[str, str]:
        """Of a scale by 1 / deviation, all of whose takers are added up."""
        found: dict[str, str] = {}
        for node in self._nodes:
            gamma = self._constant(node, "Mul")
            if gamma is None or not any(name in self._makers for name in node.input):
                continue
            scaled = [each.output[0] for each in self._takers.get(node.output[0], ()) if each.op_type == "Mul"]
            sums = [each for name in scaled for each in self._takers.get(name, ()) if each.op_type == "Add"]
            if len(scaled) != 2 or not sums:
                continue
            betas = [beta for each in sums if (beta := self._constant(each, "Add"))]
            self._gammas.append(gamma)
            self._betas += betas
            found[str(len(found))] = self._nodes[max(self._nodes.index(each) for each in sums)].output[0]
        return found

    def _constant(self, node: onnx.NodeProto, kind: str) -> str | None:
        """The initializer of one number a channel that a node of a kind takes."""
        if node.op_type != kind:
            return None
        return next((name for name in node.input if self._is_of_channels(name, self._width)), None)

    def _is_of_channels(self, name: str, width: int) -> bool:
        return name in self._tensors and int(np.prod(self._tensors[name].dims)) == width > 1

    def layers(self, norms: int) -> int:
        """How many layers of so many norms there are; one more norm follows them."""
        count, rest = divmod(len(self._norms), norms)
        if rest != 1 or not count:
            raise self._lacks("norms of layers")
        return count

    def norm(self, name: str, place: int) -> dict[str, Array]:
        return {f"{name}.weight": self._array(self._gammas[place], name).reshape(-1)}

    def layer(self, name: str, first: int, *, cross: bool) -> dict[str, Array]:
        """A layer, whose norms are numbered from `first`."""
        state = self.norm(f"{name}.attn_ln", first) | self.attention(f"{name}.attn", first)
        if cross:
            state |= self.norm(f"{name}.cross_attn_ln", first + 1)
            state |= self.attention(f"{name}.cross_attn", first + 1)
        last = first + 1 + cross
        up = self._only(self._after(self._norms[str(last)]), f"{name}.mlp.0")
        down = self._only(self._after(up.made), f"{name}.mlp.2")
        return state | self.norm(f"{name}.mlp_ln", last) | self._linears({f"{name}.mlp.0": up, f"{name}.mlp.2": down})

    def attention(self, name: str, place: int) -> dict[str, Array]:
        """The attention behind a norm."""
        beside = self._after(self._norms[str(place)])
        following = [self._after(each.made) for each in beside] or [[]]
        out = self._only([each for each in following[0] if all(each in other for other in following)], f"{name}.out")
        values = [each for each in self._before(out.of, past_softmax=False) if each in self._products]
        others = self._before(out.of, past_softmax=True) - set(values)
        query, key = self._scored(name, {each for each in others if each in self._products})
        value = self._only([self._products[each] for each in values], f"{name}.value")
        return self._linears({f"{name}.query": query, f"{name}.key": key, f"{name}.value": value, f"{name}.out": out})

    def _scored(self, name: str, two: set[str]) -> tuple[Product, Product]:
        """Query and key among two products: the softmax is over the keys, which are rows or columns of the scores."""
        for softmax in (node for node in self._nodes if node.op_type == "Softmax"):
            scores = self._makers.get(softmax.input[0])
            if scores is not None and scores.op_type == "Add":  # of a mask
                made = [self._makers.get(each) for each in scores.input]
                scores = next((each for each in made if each is not None and each.op_type == "MatMul"), None)
            if scores is None or scores.op_type != "MatMul":
                continue
            sides = [self._before(each, past_softmax=True) & two for each in scores.input]
            if [len(each) for each in sides] == [1, 1] and set.union(*sides) == two:
                axis = next((each.i for each in softmax.attribute if each.name == "axis"), -1)
                columns = axis in (-1, 3)
                rows, others = (self._products[each.pop()] for each in sides)
                return (rows, others) if columns else (others, rows)
        raise self._lacks(f"{name}.query")

    def stem(self) -> dict[str, Array]:
        """The convolutions over samples, with the norm between them."""
        convolutions = [node for node in self._nodes if node.op_type == "Conv"]
        if len(convolutions) != len(STEM) or len(self._gammas) != 1 or len(self._betas) != 1:
            raise self._lacks("encoder.conv1")
        state = {
            "encoder.groupnorm.weight": self._array(self._gammas[0], "encoder.groupnorm").reshape(-1),
            "encoder.groupnorm.bias": self._array(self._betas[0], "encoder.groupnorm").reshape(-1),
        }
        for place, (node, (size, _)) in enumerate(zip(convolutions, STEM, strict=True)):
            name = f"encoder.conv{place + 1}"
            kernel = self._array(node.input[1], name)
            if kernel.shape[-1] != size or kernel.size != kernel.shape[0] * kernel.shape[1] * size:
                raise self._lacks(name)
            state[f"{name}.weight"] = kernel.reshape(kernel.shape[0], kernel.shape[1], size)
            if place:
                state[f"{name}.bias"] = self._bias(node, len(kernel), name)
        return state

    def _bias(self, node: onnx.NodeProto, width: int, name: str) -> Array:
        """What is added to a convolution, in it or behind it."""
        if len(node.input) > 2:
            return self._array(node.input[2], name)
        behind = [*self._next(node.output[0], "Squeeze", "Add"), *self._next(node.output[0], "Add")]
        names = [each for add in behind for each in add.input if self._is_of_channels(each, width)]
        return self._array(names[0] if names else None, f"{name}.bias").reshape(-1)

    def embedding(self) -> dict[str, Array]:
        """The vectors of tokens, and those that the last norm is compared with."""
        head = self._only(self._after(self._norms[str(len(self._norms) - 1)]), "decoder.head")
        vectors = self._matrix(head, "decoder.head")
        tables = [name for name in self._tensors if tuple(self._tensors[name].dims) == vectors.shape]
        gathered = [name for name in tables if any(each.op_type == "Gather" for each in self._takers.get(name, ()))]
        found = {"decoder.head.weight": vectors, "decoder.token_embedding.weight": vectors}
        if gathered:
            found["decoder.token_embedding.weight"] = self._table(gathered[0])
        return found

    def _table(self, name: str) -> Array:
        """A table that is looked up, in int8 with the scale and the zero that its rows are widened with."""
        values = array_of(self._tensors[name])
        for widened in self._next(self._takers[name][0].output[0], "DequantizeLinear"):
            scale, *zero = (array_of(self._tensors[each]).astype(np.float32) for each in widened.input[1:])
            values = (values.astype(np.float32) - sum(zero)) * scale
        return np.ascontiguousarray(values, np.float32)

    def check_angles(self, rotary: int) -> None:
        """That positions turn so many numbers of each head, by the usual angles."""
        rates = THETA ** -(np.arange(0, rotary, 2, dtype=np.float32) / rotary)
        given = (array_of(each).reshape(-1) for each in self._tensors.values() if np.prod(each.dims) == len(rates))
        if not any(np.allclose(each, rates, rtol=1e-4) for each in given):
            raise self._lacks(f"angles of rotary positions over {rotary} numbers")
