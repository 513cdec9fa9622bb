"""Folders of random NeMo models in sherpa-onnx's layout, with the graphs, names and metadata of its export scripts.

Written from the facts of sherpa-onnx's scripts/nemo (634265c) and of the inputs and outputs of NeMo's modules.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import helper
from torch import Tensor, nn

import sherpa_toys as toys
from families.nemo_models import make_model, small_config
from nemo_reference import Reference
from tritone.families.nemo.config import parse_config
from tritone.families.nemo.model import NemoModel
from tritone.families.onnx.writer import export_graph

BINS = 80  # sherpa-onnx asks for no other number of its CTC models
MOST = {"rnnt": 10, "tdt": 5}  # tokens of a frame in sherpa-onnx


def random_model(kind: str) -> Reference:
    """A random model of a kind, ctc, rnnt or tdt, with the sizes that sherpa-onnx fixes."""
    content = small_config(kind)
    content["preprocessor"]["features"] = content["encoder"]["feat_in"] = BINS
    if kind != "ctc":
        content["decoding"]["greedy"]["max_symbols"] = MOST[kind]
    if kind == "tdt":
        content["decoding"]["durations"] = [0, 1, 2, 3]
    return make_model(content, seed=2 if kind == "rnnt" else 0)  # one whose frames are not all full of tokens


class Encoder(nn.Module):
    """audio_signal (B, bins, T), length (B,) -> outputs (B, D, T'), encoded_lengths (B,); or logprobs (B, T', V)."""

    def __init__(self, model: NemoModel, *, ctc: bool) -> None:
        super().__init__()
        self.encoder, self.ctc = model.encoder, model.ctc if ctc else None

    def forward(self, audio_signal: Tensor, length: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        encoded, lengths = self.encoder(audio_signal.transpose(1, 2), length)
        return self.ctc(encoded) if self.ctc is not None else (encoded.transpose(1, 2), lengths)


class Decoder(nn.Module):
    def __init__(self, model: Reference) -> None:
        super().__init__()
        self.embed: Any = model.decoder.prediction["embed"]
        recurrent: Any = model.decoder.prediction["dec_rnn"]
        self.lstm = recurrent.lstm

    def forward(self, targets: Tensor, target_length: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        found, (hidden, cell) = self.lstm(self.embed(targets).transpose(0, 1), (hidden, cell))
        return found.permute(1, 2, 0), target_length + 0, hidden, cell


class Joiner(nn.Module):
    """encoder_outputs (B, D, T), decoder_outputs (B, H, U) -> outputs (B, T, U, classes)."""

    def __init__(self, model: Reference) -> None:
        super().__init__()
        self.joint = model.joint

    def forward(self, encoder_outputs: Tensor, decoder_outputs: Tensor) -> Tensor:
        frames = self.joint.enc(encoder_outputs.transpose(1, 2)).unsqueeze(2)
        predicted = self.joint.pred(decoder_outputs.transpose(1, 2)).unsqueeze(1)
        return self.joint.joint_net(self.joint.activation(frames + predicted)).log_softmax(dim=-1)


WINDOW, SHIFT = 17, 8  # feature frames of streams


def stream_encoder(path: Path, dim: int, *, ctc: bool = False, **metadata: Any) -> None:
    """Write an encoder for streams with the interface of a cache-aware FastConformer, and simple arithmetic.

    Its one frame a step is made of the tenth feature frame, of the means of the last three windows, and of a number
    that grows. Of a CTC model `dim` is the number of tokens with the blank.
    """
    frame: list[tuple[Any, ...]] = [
        ("Transpose", ["audio_signal"], ["x"], {"perm": [0, 2, 1]}),
        ("Slice", ["x", "nine", "ten", "one"], ["picked"]),
        ("ReduceMean", ["x"], ["mean"], {"axes": [1], "keepdims": 1}),
        ("ReduceMean", ["cache_last_channel"], ["past"], {"axes": [2], "keepdims": 0}),
        ("ReduceMean", ["cache_last_time"], ["grown"], {"axes": [3], "keepdims": 0}),
        ("Sub", ["picked", "past"], ["difference"]),
        ("Add", ["difference", "grown"], ["sum"]),
        ("MatMul", ["sum", "w"], ["product"]),
        ("LogSoftmax", ["product"], ["out"]) if ctc else ("Transpose", ["product"], ["out"], {"perm": [0, 2, 1]}),
        ("Min", ["length", "one"], ["encoded_lengths"]),
    ]
    states: list[tuple[Any, ...]] = [
        ("Slice", ["cache_last_channel", "one", "three", "two"], ["kept"]),
        ("Unsqueeze", ["mean", "one"], ["newest"]),
        ("Concat", ["kept", "newest"], ["cache_last_channel_next"], {"axis": 2}),
        ("Add", ["cache_last_time", "tenth"], ["cache_last_time_next"]),
        ("Add", ["cache_last_channel_len", "one"], ["cache_last_channel_next_len"]),
    ]
    numbers = {"one": 1, "two": 2, "three": 3, "nine": 9, "ten": 10}
    constants = {name: np.array([number]) for name, number in numbers.items()}
    caches: dict[str, tuple[int, list[object]]] = {
        "cache_last_channel": (toys.FLOAT, ["N", 1, "T", BINS]),
        "cache_last_time": (toys.FLOAT, ["N", 1, BINS, "K"]),
        "cache_last_channel_len": (toys.INT64, ["N"]),
    }
    held = {
        "vocab_size": 10,
        "window_size": WINDOW,
        "chunk_shift": SHIFT,
        "normalize_type": "",
        "cache_last_channel_dim1": 1,
        "cache_last_channel_dim2": 3,
        "cache_last_channel_dim3": BINS,
        "cache_last_time_dim1": 1,
        "cache_last_time_dim2": BINS,
        "cache_last_time_dim3": 2,
        "pred_rnn_layers": 2,
        "pred_hidden": 12,
        "subsampling_factor": SHIFT,
        "model_type": "EncDecHybridRNNTCTCBPEModel",
    }
    toys.write(
        path,
        [*frame, *states],
        {"audio_signal": (toys.FLOAT, ["N", BINS, "frames"]), "length": (toys.INT64, ["N"]), **caches},
        {
            "out": (toys.FLOAT, ["N", 1, dim] if ctc else ["N", dim, 1]),
            "encoded_lengths": (toys.INT64, ["N"]),
            "cache_last_channel_next": caches["cache_last_channel"],
            "cache_last_time_next": caches["cache_last_time"],
            "cache_last_channel_next_len": caches["cache_last_channel_len"],
        },
        {**constants, "tenth": np.float32(0.1), "w": 0.3 * toys.weights(5, BINS, dim)},
        {key: value for key, value in (held | metadata).items() if value is not None},
    )


def write(
    path: Path,
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: list[str],
    dynamic: Mapping[str, Mapping[int, str]],
    metadata: Mapping[str, Any],
) -> None:
    model = export_graph(module.float().eval(), inputs, outputs, dynamic, {}, opset=17)
    helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
    path.write_bytes(model.SerializeToString())


def nemo_folder(folder: Path, reference: Reference, tokens: list[str], *, head: str, **metadata: Any) -> Path:
    """Write a model with `head` ctc or transducer; `metadata` in place of what the scripts write, None leaves out."""
    folder.mkdir(parents=True, exist_ok=True)
    content = reference.content
    state = {name: value.float() for name, value in reference.state_dict().items()}
    model = NemoModel.of(parse_config(content), len(tokens), state, "the model")
    held: dict[str, Any] = {
        "vocab_size": len(tokens),
        "normalize_type": content["preprocessor"]["normalize"],
        "subsampling_factor": content["encoder"]["subsampling_factor"],
        "model_type": "EncDecCTCModelBPE" if head == "ctc" else "EncDecRNNTBPEModel",
        "version": "1",
        "model_author": "NeMo",
        "url": "https://huggingface.co/nvidia/parakeet-tdt-0.6b-v2",
    }
    if head == "transducer":
        sizes = content["decoder"]["prednet"]
        held |= {"pred_rnn_layers": sizes["pred_rnn_layers"], "pred_hidden": sizes["pred_hidden"]}
        if not content["decoding"].get("durations"):
            held["url"] = "https://huggingface.co/nvidia/parakeet-rnnt-0.6b"
    held = {key: value for key, value in (held | metadata).items() if value is not None}
    bins = content["preprocessor"]["features"]
    features = {"audio_signal": torch.randn(3, bins, 90), "length": torch.tensor([90, 70, 50])}
    time = {"audio_signal": {0: "batch", 2: "time"}, "length": {0: "batch"}}
    (folder / "tokens.txt").write_text(
        "".join(f"{token} {id}\n" for id, token in enumerate([*tokens, "<blk>"])), encoding="utf-8"
    )
    if head == "ctc":
        write(folder / "model.onnx", Encoder(model, ctc=True), features, ["logprobs"], time, held)
        return folder
    outputs = ["outputs", "encoded_lengths"]
    write(folder / "encoder.onnx", Encoder(model, ctc=False), features, outputs, time, held)
    layers, hidden = held["pred_rnn_layers"], held["pred_hidden"]
    states = {name: torch.randn(layers, 3, hidden) for name in ("states.1", "onnx::Slice_3")}
    tokens_in = {"targets": torch.ones(3, 2, dtype=torch.int32), "target_length": torch.ones(3, dtype=torch.int32)}
    rows = {"targets": {0: "batch", 1: "time"}, "target_length": {0: "batch"}}
    rows |= {name: {1: "batch"} for name in states}
    names = ["outputs", "prednet_lengths", "states", "next_states"]
    write(folder / "decoder.onnx", Decoder(reference), tokens_in | states, names, rows, {})
    width = model.encoder.output_dim
    vectors = {"encoder_outputs": torch.randn(3, width, 4), "decoder_outputs": torch.randn(3, hidden, 2)}
    axes = {name: {0: "batch", 2: name[:7]} for name in vectors}
    write(folder / "joiner.onnx", Joiner(reference), vectors, ["outputs"], axes, {})
    return folder
