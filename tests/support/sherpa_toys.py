"""Tiny hand-written ONNX models in the layout of sherpa-onnx's folders, whose arithmetic can be checked by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

DIM, VOCAB, CONTEXT, BINS = 6, 7, 2, 80
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TOKENS = ["<blk>", "<sos/eos>", "<unk>", "▁A", "B", "▁C", "D"]


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1 / np.sqrt(shape[0]), shape).astype(np.float32)


def write(
    path: Path,
    nodes: Sequence[tuple[Any, ...]],
    inputs: Mapping[str, tuple[int, Sequence[object]]],
    outputs: Mapping[str, tuple[int, Sequence[object]]],
    constants: Mapping[str, Any],
    metadata: Mapping[str, Any],
    opset: int = 13,
) -> Path:
    """Nodes are (operator, inputs, outputs, attributes)."""
    graph = helper.make_graph(
        [helper.make_node(kind, ins, outs, **(rest[0] if rest else {})) for kind, ins, outs, *rest in nodes],
        "toy",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],  # type: ignore[arg-type]
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],  # type: ignore[arg-type]
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    helper.set_model_props(model, {key: str(value) for key, value in metadata.items()})
    path.write_bytes(model.SerializeToString())
    return path


def encoder(path: Path, *, leaking: bool = False, mixing: bool = False, metadata: Mapping[str, Any] = {}) -> Path:
    """Every fourth feature frame times a matrix; `leaking` adds the mean over time, with whatever padding there is.

    `mixing` adds the mean over the batch.
    """
    nodes = [
        ("Slice", ["x", "zero", "end", "one", "four"], ["picked"]),
        ("MatMul", ["picked", "w"], ["product"]),
        ("ReduceMean", ["product"], ["mean"], {"axes": [1], "keepdims": 1}),
        ("ReduceMean", ["product"], ["mates"], {"axes": [0], "keepdims": 1}),
        ("Mul", ["mean", "leak"], ["leaked"]),
        ("Mul", ["mates", "mix"], ["mixed"]),
        ("Add", ["product", "leaked"], ["some"]),
        ("Add", ["some", "mixed"], ["encoder_out"]),
        ("Add", ["x_lens", "three"], ["more"]),
        ("Div", ["more", "by"], ["encoder_out_lens"]),
    ]
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "end": np.array([2**31]),
        "four": np.array([4]),
        "three": np.int64(3),
        "by": np.int64(4),
        "w": weights(1, BINS, DIM),
        "leak": np.float32(leaking),
        "mix": np.float32(mixing),
    }
    return write(
        path,
        nodes,
        {"x": (FLOAT, ["N", "T", BINS]), "x_lens": (INT64, ["N"])},
        {"encoder_out": (FLOAT, ["N", "T2", DIM]), "encoder_out_lens": (INT64, ["N"])},
        constants,
        {"model_type": "zipformer2", "version": "1", **metadata},
    )


def echo(path: Path, metadata: Mapping[str, Any] = {}, dim: int = BINS) -> Path:
    """An encoder that gives the features themselves."""
    nodes = [("Identity", ["x"], ["encoder_out"]), ("Identity", ["x_lens"], ["encoder_out_lens"])]
    return write(
        path,
        nodes,
        {"x": (FLOAT, ["N", "T", dim]), "x_lens": (INT64, ["N"])},
        {"encoder_out": (FLOAT, ["N", "T", dim]), "encoder_out_lens": (INT64, ["N"])},
        {},
        metadata,
    )


def stream_echo(path: Path, window: int, shift: int) -> Path:
    """An online model of the type lstm that gives the first features of each window."""
    nodes = [
        ("Slice", ["x", "zero", "shift", "one"], ["encoder_out"]),
        ("Identity", ["state0"], ["new_state0"]),
        ("Add", ["state1", "unit"], ["new_state1"]),
    ]
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "shift": np.array([shift]),
        "unit": np.float32(1),
    }
    states = {"state0": (FLOAT, [2, "N", 3]), "state1": (FLOAT, [2, "N", 4])}
    return write(
        path,
        nodes,
        {"x": (FLOAT, ["N", window, BINS]), **states},
        {"encoder_out": (FLOAT, ["N", shift, BINS]), **{f"new_{name}": spec for name, spec in states.items()}},
        constants,
        {
            "model_type": "lstm",
            "T": window,
            "decode_chunk_len": shift,
            "num_encoder_layers": 2,
            "d_model": 3,
            "rnn_hidden_size": 4,
        },
    )


def decoder(path: Path, *, masked: bool = True, metadata: Mapping[str, Any] = {}, dim: int = DIM) -> Path:
    """The sum of the tokens' vectors, each times its place; `masked` gives negative ids none."""
    nodes = [
        ("Gather", ["table", "y"], ["vectors"]),
        ("Less", ["y", "zero"], ["negative"]),
        ("Cast", ["negative"], ["is_negative"], {"to": FLOAT}),
        ("Mul", ["is_negative", "masked"], ["hidden"]),
        ("Sub", ["unit", "hidden"], ["shown"]),
        ("Mul", ["shown", "places"], ["scale"]),
        ("Unsqueeze", ["scale", "last"], ["scales"]),
        ("Mul", ["vectors", "scales"], ["scaled"]),
        ("ReduceSum", ["scaled", "middle"], ["decoder_out"], {"keepdims": 0}),
    ]
    constants = {
        "table": 3 * weights(2, VOCAB, dim),
        "zero": np.int64(0),
        "masked": np.float32(masked),
        "unit": np.float32(1),
        "places": np.array([0.5, 1.0], np.float32),
        "last": np.array([2]),
        "middle": np.array([1]),
    }
    return write(
        path,
        nodes,
        {"y": (INT64, ["N", CONTEXT])},
        {"decoder_out": (FLOAT, ["N", dim])},
        constants,
        {"vocab_size": VOCAB, "context_size": CONTEXT, **metadata},
    )


def joiner(path: Path, vocab: int = VOCAB, dim: int = DIM) -> Path:
    nodes = [
        ("Add", ["encoder_out", "decoder_out"], ["sum"]),
        ("Tanh", ["sum"], ["bent"]),
        ("MatMul", ["bent", "w"], ["logit"]),
    ]
    vector = (FLOAT, ["N", dim])
    inputs = {"encoder_out": vector, "decoder_out": vector}
    return write(
        path, nodes, inputs, {"logit": (FLOAT, ["N", vocab])}, {"w": weights(3, dim, vocab)}, {"joiner_dim": dim}
    )


def ctc(path: Path, model_type: str = "zipformer2_ctc", *, normalised: bool = True) -> Path:
    nodes = [
        ("Slice", ["x", "zero", "end", "one", "four"], ["picked"]),
        ("MatMul", ["picked", "w"], ["scores"]),
        ("LogSoftmax" if normalised else "Identity", ["scores"], ["log_probs"], {"axis": -1} if normalised else {}),
        ("Add", ["x_lens", "three"], ["more"]),
        ("Div", ["more", "by"], ["log_probs_len"]),
    ]
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "end": np.array([2**31]),
        "four": np.array([4]),
        "three": np.int64(3),
        "by": np.int64(4),
        "w": weights(4, BINS, VOCAB),
    }
    return write(
        path,
        nodes,
        {"x": (FLOAT, ["N", "T", BINS]), "x_lens": (INT64, ["N"])},
        {"log_probs": (FLOAT, ["N", "T2", VOCAB]), "log_probs_len": (INT64, ["N"])},
        constants,
        {"model_type": model_type, "vocab_size": VOCAB, "subsampling_factor": 4},
    )


def stream_encoder(path: Path, *, metadata: Mapping[str, Any] = {}, batch: int | str = "N", hidden: int = 5) -> Path:
    """An online model of the type lstm: two frames of a window of 13, with a window moving on by 8.

    `state0` is a leaky sum of what came out, `state1` counts the steps.
    """
    nodes = [
        ("Slice", ["x", "zero", "end", "one", "four"], ["picked"]),
        ("MatMul", ["picked", "w"], ["product"]),
        ("Transpose", ["state0"], ["past"], {"perm": [1, 0, 2]}),
        ("Add", ["product", "past"], ["encoder_out"]),
        ("ReduceSum", ["encoder_out", "one"], ["summed"], {"keepdims": 1}),
        ("Transpose", ["summed"], ["turned"], {"perm": [1, 0, 2]}),
        ("Mul", ["turned", "little"], ["new_state0"]),
        ("Add", ["state1", "unit"], ["new_state1"]),
    ]
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "end": np.array([8]),
        "four": np.array([4]),
        "little": np.float32(0.1),
        "unit": np.float32(1),
        "w": weights(5, BINS, DIM),
    }
    states = {"state0": (FLOAT, [1, batch, DIM]), "state1": (FLOAT, [1, batch, hidden])}
    return write(
        path,
        nodes,
        {"x": (FLOAT, [batch, 13, BINS]), **states},
        {"encoder_out": (FLOAT, [batch, 2, DIM]), **{f"new_{name}": spec for name, spec in states.items()}},
        constants,
        {
            "model_type": "lstm",
            "T": 13,
            "decode_chunk_len": 8,
            "num_encoder_layers": 1,
            "d_model": DIM,
            "rnn_hidden_size": 5,
            **metadata,
        },
    )


def tokens(folder: Path, names: Sequence[str] = TOKENS) -> Path:
    path = folder / "tokens.txt"
    path.write_text("".join(f"{name} {id}\n" for id, name in enumerate(names)), encoding="utf-8")
    return path


def transducer(folder: Path, suffix: str = "", **options: Any) -> Path:
    """A folder with a whole model for utterances; options as of `encoder`."""
    folder.mkdir(exist_ok=True)
    encoder(folder / f"encoder{suffix}.onnx", **options)
    decoder(folder / f"decoder{suffix}.onnx")
    joiner(folder / f"joiner{suffix}.onnx")
    tokens(folder)
    return folder


def stream_transducer(folder: Path, **options: Any) -> Path:
    """A folder with a whole model for streams; options as of `stream_encoder`."""
    folder.mkdir(exist_ok=True)
    stream_encoder(folder / "encoder.onnx", **options)
    decoder(folder / "decoder.onnx")
    joiner(folder / "joiner.onnx")
    tokens(folder)
    return folder
