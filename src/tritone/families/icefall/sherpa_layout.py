"""icefall models as folders that sherpa-onnx reads: on phones and elsewhere, and to compare with it.

    IcefallModel  ->  encoder.onnx, decoder.onnx, joiner.onnx (or model.onnx of a CTC head), tokens.txt

Graphs take features. Names, shapes and order of inputs, outputs and states, and the numbers in the files' metadata, are
those of icefall's export-onnx scripts. Unlike theirs, graphs for whole utterances do not depend on padding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tritone.bundle.bundle import MANIFEST
from tritone.bundle.vocabulary import write_tokens
from tritone.errors import ExportError
from tritone.families.icefall.conformer import Conformer
from tritone.families.icefall.export import ReadModel, network_sizes
from tritone.families.icefall.layers import ConformerLayer
from tritone.families.icefall.model import CtcHead, IcefallModel
from tritone.families.icefall.options import FOR_BUNDLES, Head, IcefallOptions
from tritone.families.icefall.stateless import Joiner, StatelessPredictor
from tritone.families.icefall.zipformer import Zipformer
from tritone.families.icefall.zipformer_streaming import StreamingZipformer
from tritone.families.onnx.writer import export_graph
from tritone.options.fields import changed_flags
from tritone.runtime import open_graph

OPSET = 13  # what old phones run
MAX_DIFFERENCE = 1e-3  # of the largest number; float32 noise is two orders below
CHECKED_SIZES = {"N": 2, "T": 97}
BATCH = "N"
TRACED_BATCH = 3


def write_sherpa_layout(
    model: IcefallModel,
    folder: Path,
    tokens: Sequence[str],
    *,
    head: Head = "transducer",
    streaming: bool = False,
    chunk_size: int = 16,
    left_context: int = 64,
    right_context: int = 0,
    suffix: str = "",
    check: bool = True,
) -> None:
    """Write a model's graphs and its token table.

    Args:
        model: in eval mode, float32.
        folder: is made if it is not there; files of the same names are replaced.
        tokens: in the order of their ids.
        head: what to write; a zipformer may have both.
        streaming: graphs for streams, else for whole utterances.
        chunk_size, left_context, right_context: of streams; see `Conformer.streaming` and `Zipformer.streaming`.
        suffix: of the files' names, such as "-chunk-16-left-64".
        check: run every graph with other sizes than it was traced with, and compare it with the network.

    Raises:
        ExportError: the model lacks the head or cannot be streamed like that, or a graph does not follow the network.
    """
    if len(tokens) != model.config.vocab_size:
        raise ExportError(f"{len(tokens)} tokens were given for a model of {model.config.vocab_size}")
    if head == "ctc" and model.ctc is None:
        raise ExportError("this model has no CTC head")
    last: nn.Module = _Scores(model.ctc) if head == "ctc" and model.ctc is not None else _Projected(model.joiner)
    part = "model" if head == "ctc" else "encoder"
    folder.mkdir(parents=True, exist_ok=True)
    if not streaming:
        graph = _offline(model.encoder, last, head)
    elif isinstance(model.encoder, Zipformer):
        graph = _zipformer_stream(model.encoder, last, head, chunk_size, left_context, right_context)
    else:
        graph = _conformer_stream(model.encoder, last, chunk_size, left_context, right_context)
    graphs = {part: graph}
    if head == "transducer":
        graphs |= {"decoder": _decoder(model.predictor, model.joiner), "joiner": _joiner(model.joiner)}
    for name, each in graphs.items():
        path = folder / f"{name}{suffix}.onnx"
        traced = export_graph(each.module.eval(), each.inputs, each.outputs, each.dynamic, each.metadata, opset=OPSET)
        path.write_bytes(traced.SerializeToString())
        if check:
            _check(each, path)
    write_tokens(folder / "tokens.txt", tokens)


@dataclass(frozen=True)
class LayoutReport:
    """Where the files are. `notes`: what was taken for granted and should be known."""

    path: Path
    notes: tuple[str, ...]

    def lines(self, unit: str, original: str) -> list[str]:
        """The report for people."""
        return [f"note: {note}" for note in self.notes]


def export_sherpa_layout(**choices: Any) -> LayoutReport:
    """Write a checkpoint as a folder of sherpa-onnx.

    Args:
        choices: the fields of `IcefallOptions` other than those that say what a bundle has, see `FOR_BUNDLES`.

    Raises:
        ExportError: as of `export_icefall`.
        ValueError: an option is for bundles.
    """
    options = IcefallOptions(**choices)
    if unfit := changed_flags(options, FOR_BUNDLES):
        raise ValueError(f"{', '.join(unfit)} is for bundles, not for folders of sherpa-onnx")
    _refuse_bundle(options.output)
    read = ReadModel(options)
    chunk, left, right = network_sizes(read.model, read.sizes)
    options.progress("tracing and checking the graphs")
    write_sherpa_layout(
        read.model,
        options.output,
        read.tokens,
        head=read.head,
        streaming=options.streaming,
        chunk_size=chunk,
        left_context=left,
        right_context=right,
    )
    return LayoutReport(options.output, tuple(read.notes))


def _refuse_bundle(folder: Path) -> None:
    """Graphs of both have the same names: a bundle would be left with another's."""
    if (folder / MANIFEST).exists():
        raise ExportError(f"{folder} is a bundle; name another folder for the files of sherpa-onnx")


@dataclass(frozen=True)
class _Graph:
    """A module to trace. `dynamic`: axes that vary, by input."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]
    dynamic: Mapping[str, Mapping[int, str]]
    metadata: Mapping[str, str]


def _check(graph: _Graph, path: Path) -> None:
    """Run what was written with other sizes than it was traced with, and compare it with the network."""
    random = torch.Generator().manual_seed(0)
    inputs = {}
    for name, traced in graph.inputs.items():
        axes = graph.dynamic.get(name, {})
        shape = [CHECKED_SIZES.get(axes.get(axis, ""), size) for axis, size in enumerate(traced.shape)]
        if traced.is_floating_point():
            inputs[name] = torch.randn(shape, generator=random)
        else:  # lengths, counts of frames, tokens
            most = CHECKED_SIZES["T"] if name == "x_lens" else 2
            inputs[name] = most - torch.arange(math.prod(shape)).reshape(shape) % 2
    with torch.no_grad():
        expected = graph.module(*inputs.values())
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = open_graph(path)({name: value.numpy() for name, value in inputs.items()}, graph.outputs)
    for ours, theirs in zip(found, expected, strict=True):
        size = float(theirs.abs().max())
        if ours.shape != theirs.shape or not float(np.abs(ours - theirs.numpy()).max()) <= MAX_DIFFERENCE * max(
            size, 1
        ):
            raise ExportError(
                f"{path} does not reproduce the torch network. Please report this with the versions of torch, onnx and "
                "onnxruntime."
            )


class _Projected(nn.Module):
    """Encoder frames as the joiner wants them."""

    def __init__(self, joiner: Joiner) -> None:
        super().__init__()
        self.joiner = joiner

    def forward(self, encoded: Tensor) -> Tensor:
        return self.joiner.project_encoder(encoded)


class _Scores(nn.Module):
    """Encoder frames as log-probabilities."""

    def __init__(self, ctc: CtcHead) -> None:
        super().__init__()
        self.ctc = ctc

    def forward(self, encoded: Tensor) -> Tensor:
        return self.ctc(encoded)


class _Offline(nn.Module):
    def __init__(self, encoder: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.encoder, self.last = encoder, last

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        encoded, lengths = self.encoder(x, x_lens)
        return self.last(encoded), lengths


def _offline(encoder: Conformer | Zipformer, last: nn.Module, head: Head) -> _Graph:
    kind = "conformer" if isinstance(encoder, Conformer) else "zipformer2"
    frames, bins = 131, _bins(encoder)
    return _Graph(
        _Offline(encoder, last),
        {"x": torch.zeros(TRACED_BATCH, frames, bins), "x_lens": torch.tensor([frames, 90, 57])},
        ["log_probs", "log_probs_len"] if head == "ctc" else ["encoder_out", "encoder_out_lens"],
        {"x": {0: BATCH, 1: "T"}, "x_lens": {0: BATCH}},
        _metadata(f"{kind}_ctc" if head == "ctc" else kind, "whole utterances"),
    )


class _ZipformerStream(nn.Module):
    """Upstream's shapes of the states around a step, whose states have the batch first and heads apart."""

    def __init__(self, encoder: Zipformer, last: nn.Module, chunk_size: int, left_context: int, right: int) -> None:
        super().__init__()
        self.step = StreamingZipformer(encoder, chunk_size, left_context, right)
        self.last = last
        self.heads = [stack.heads for stack in encoder.config.stacks for _ in range(stack.layers)]

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        *layers, embed, processed = states
        taken: list[Tensor] = []
        for index, heads in enumerate(self.heads):
            key, mixed, value1, value2, conv1, conv2 = layers[6 * index : 6 * index + 6]
            taken += [_apart(key, heads), mixed[0], _apart(value1, heads), _apart(value2, heads), conv1, conv2]
        full = torch.full_like(processed, x.shape[1])
        encoded, _, *nexts = self.step(x, full, *taken, embed, processed)
        given: list[Tensor] = []
        for index in range(len(self.heads)):
            key, mixed, value1, value2, conv1, conv2 = nexts[6 * index : 6 * index + 6]
            given += [_joined(key), mixed.unsqueeze(0), _joined(value1), _joined(value2), conv1, conv2]
        return self.last(encoded), *given, *nexts[-2:]


def _apart(x: Tensor, heads: int) -> Tensor:
    """(frames, batch, heads · size) -> (batch, heads, frames, size)."""
    return x.unflatten(2, (heads, -1)).permute(1, 2, 0, 3)


def _joined(x: Tensor) -> Tensor:
    """(batch, heads, frames, size) -> (frames, batch, heads · size)."""
    return x.permute(2, 0, 1, 3).flatten(2)


def _zipformer_stream(
    encoder: Zipformer, last: nn.Module, head: Head, chunk_size: int, left_context: int, right_context: int
) -> _Graph:
    module = _ZipformerStream(encoder, last, chunk_size, left_context, right_context)
    step, stacks, n = module.step, encoder.config.stacks, TRACED_BATCH
    inputs = {"x": torch.zeros(n, step.window_frames, _bins(encoder))}
    dynamic = {"x": {0: BATCH}}
    index = 0
    for stack in stacks:
        past, lead = left_context // stack.downsampling, stack.kernel // 2
        for _ in range(stack.layers):
            states = {
                "cached_key": (past, n, stack.heads * stack.query_size),
                "cached_nonlin_attn": (1, n, past, 3 * stack.width // 4),
                "cached_val1": (past, n, stack.heads * stack.value_size),
                "cached_val2": (past, n, stack.heads * stack.value_size),
                "cached_conv1": (n, stack.width, lead),
                "cached_conv2": (n, stack.width, lead),
            }
            for name, shape in states.items():
                inputs[f"{name}_{index}"] = torch.zeros(shape)
                dynamic[f"{name}_{index}"] = {0 if "conv" in name else 1: BATCH}
            index += 1
    inputs["embed_states"] = torch.zeros(n, *step.state_shapes["embed"])
    inputs["processed_lens"] = torch.zeros(n, dtype=torch.int64)
    dynamic |= {"embed_states": {0: BATCH}, "processed_lens": {0: BATCH}}
    first = "log_probs" if head == "ctc" else "encoder_out"
    metadata: dict[str, int | Sequence[int]] = {
        "T": step.window_frames,
        "decode_chunk_len": step.shift_frames,
        "encoder_dims": [stack.width for stack in stacks],
        "query_head_dims": [stack.query_size for stack in stacks],
        "value_head_dims": [stack.value_size for stack in stacks],
        "num_heads": [stack.heads for stack in stacks],
        "num_encoder_layers": [stack.layers for stack in stacks],
        "cnn_module_kernels": [stack.kernel for stack in stacks],
        "left_context_len": [left_context // stack.downsampling for stack in stacks],
    }
    outputs = [first, *(f"new_{name}" for name in inputs if name != "x")]
    return _Graph(module, inputs, outputs, dynamic, _metadata("zipformer2", "streaming zipformer2", metadata))


class _ConformerStream(nn.Module):
    """Upstream's step: states are the layers' activations, from which keys and values are computed at every step.

    Every frame of a window counts as audio, and how many frames came before is given from outside.
    """

    def __init__(self, encoder: Conformer, last: nn.Module, chunk_size: int, left: int, right: int) -> None:
        super().__init__()
        self.step = encoder.streaming(chunk_size, left, right)
        self.last = last

    def forward(
        self, x: Tensor, cached_attn: Tensor, cached_conv: Tensor, processed_lens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        network, left = self.step.conformer, self.step.left_context
        chunk, frames = self.step.chunk_frames, self.step.chunk_frames + self.step.right_context
        x = network.encoder_embed(x)[:, 1:-1]
        slots = torch.arange(left, device=x.device)
        past = slots.unsqueeze(0) >= left - processed_lens.unsqueeze(1)
        mask = torch.cat([past, torch.ones_like(x[:, :, 0], dtype=torch.bool)], dim=1).unsqueeze(1)
        places = network.places(left, frames, x.device)
        attended, convolved = [], []
        for index, layer in enumerate(network.encoder.layers):
            # What attention sees of the past is what it saw then: activations after the first feed-forward.
            assert isinstance(layer, ConformerLayer)
            cached = cached_attn[index].transpose(0, 1)
            entering = x + layer.feed_forward_macaron(x)
            attended.append(torch.cat([cached, entering], dim=1)[:, chunk : chunk + left])
            attention = layer.self_attn
            _, key, value = attention.in_proj(cached).unflatten(2, (3, attention.heads, attention.size)).unbind(2)
            seen = torch.cat([key, value], dim=-1).transpose(1, 2)
            conv = cached_conv[index].transpose(0, 1)
            x, _, gated = layer(x, places, mask, None, seen, conv)
            convolved.append(gated[:, chunk : chunk + conv.shape[1]])
        new_attn = torch.stack(attended).transpose(1, 2)
        return self.last(x[:, :chunk]), new_attn, torch.stack(convolved).transpose(1, 2)


def _conformer_stream(
    encoder: Conformer, last: nn.Module, chunk_size: int, left_context: int, right_context: int
) -> _Graph:
    module = _ConformerStream(encoder, last, chunk_size, left_context, right_context)
    step, config, n = module.step, encoder.config, TRACED_BATCH
    width = config.encoder_dim
    metadata = {
        "T": step.window_frames,
        "decode_chunk_len": step.shift_frames,
        "pad_length": step.pad_frames,
        "left_context": left_context,
        "right_context": right_context,
        "chunk_size": chunk_size,
        "encoder_dim": width,
        "num_encoder_layers": config.layers,
        "cnn_module_kernel": config.kernel,
    }
    return _Graph(
        module,
        {
            "x": torch.zeros(n, step.window_frames, _bins(encoder)),
            "cached_attn": torch.zeros(config.layers, left_context, n, width),
            "cached_conv": torch.zeros(config.layers, config.kernel - 1, n, width),
            "processed_lens": torch.zeros(n, dtype=torch.int64),
        },
        ["encoder_out", "new_cached_attn", "new_cached_conv"],
        {"x": {0: BATCH}, "cached_attn": {2: BATCH}, "cached_conv": {2: BATCH}, "processed_lens": {0: BATCH}},
        _metadata("conformer", "streaming conformer", metadata),
    )


class _Decoder(nn.Module):
    def __init__(self, predictor: StatelessPredictor, joiner: Joiner) -> None:
        super().__init__()
        self.predictor, self.joiner = predictor, joiner

    def forward(self, y: Tensor) -> Tensor:
        return self.joiner.project_predictor(self.predictor(y))


def _decoder(predictor: StatelessPredictor, joiner: Joiner) -> _Graph:
    metadata = {"vocab_size": str(predictor.config.vocab_size), "context_size": str(predictor.context_size)}
    y = torch.zeros(TRACED_BATCH, predictor.context_size, dtype=torch.int64)
    return _Graph(_Decoder(predictor, joiner), {"y": y}, ["decoder_out"], {"y": {0: BATCH}}, metadata)


def _joiner(joiner: Joiner) -> _Graph:
    inputs = {name: torch.zeros(TRACED_BATCH, joiner.dim) for name in ("encoder_out", "decoder_out")}
    dynamic = {name: {0: BATCH} for name in inputs}
    return _Graph(joiner, inputs, ["logit"], dynamic, {"joiner_dim": str(joiner.dim)})


def _bins(encoder: Conformer | Zipformer) -> int:
    return encoder.config.feature_dim if isinstance(encoder, Conformer) else encoder.config.input_dim


def _metadata(kind: str, comment: str, numbers: Mapping[str, int | Sequence[int]] = {}) -> dict[str, str]:
    written = {
        key: str(value) if isinstance(value, int) else ",".join(map(str, value)) for key, value in numbers.items()
    }
    return {"model_type": kind, "version": "1", "model_author": "tritone", "comment": comment, **written}
