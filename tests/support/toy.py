"""A tiny CTC bundle whose answers can be worked out by hand, for tests that need a whole model but no network.

A frame is 640 samples (40 ms) and needs 160 more after it, so that streaming windows overlap. Its level is
`round(64 * mean(samples))`, and the token it says is `(level - level of the frame before) mod 40`: levels are compared
with the past, so a stream that got another stream's state says something else. Silence is blank, as are frames like the
one before. Each frame's token has probability 0.95.

    write_toy_bundle(path)  ->  a bundle with both roles, weights in a shared external file; `runtimes`: for torch too;
                                `decoder`: with one that gives points for letters, see `LEFT_POINTS`; `stages`: with
                                features, which are levels, and acoustic network apart; `blank_last`: ids are one
                                less, so that the blank is the last one
    toy_waveform("hello")   ->  audio that it transcribes to "hello"
"""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tritone.bundle import BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, Provenance, Role, Runtime, State, Streaming, Vocabulary
from tritone.kinds.ctc.part import DecoderPart

SAMPLE_RATE = 16000
FRAME = 640  # samples
CONTEXT = 160  # samples a frame needs after its own
CHUNK = 4  # frames per streaming step
MIN_SAMPLES = FRAME + CONTEXT
WINDOW = CHUNK * FRAME + CONTEXT
SHIFT = CHUNK * FRAME
BINS = 2  # of its features: all are the level
LEVELS = 64  # per unit of amplitude
CONFIDENCE = 0.95
# What the left and the right decoder give for each token of a hypothesis, whatever was said, and for its end.
LEFT_POINTS, RIGHT_POINTS, END_POINTS = {"b": 16.0, "c": -3.0}, {"d": 40.0}, -1.0
TOKENS = ["<blank>", "<unk>", "▁", *string.ascii_lowercase, *string.digits, "<sos/eos>"]


def write_toy_bundle(
    path: Path,
    streaming: bool = True,
    name: str = "toy",
    runtimes: Sequence[Runtime] = ("onnxruntime",),
    decoder: bool = False,
    stages: bool = False,
    blank_last: bool = False,
) -> Path:
    """Write the bundle to `path` and return `path`; without `streaming` it has the offline role alone."""
    size = len(TOKENS)
    with BundleWriter(path) as writer:
        table = np.full((size, size), np.log((1 - CONFIDENCE) / (size - 1)), dtype=np.float32)
        np.fill_diagonal(table, np.log(CONFIDENCE))
        if blank_last:
            table = np.roll(table, -1, axis=1)
        if "onnxruntime" in runtimes:
            (writer.folder / "weights.bin").write_bytes(table.tobytes())
        writer.write_tokens([*TOKENS[1:], TOKENS[0]] if blank_last else TOKENS)
        roles: list[Role] = ["encoder", "streaming_encoder"] if streaming else ["encoder"]
        artifacts = []
        for runtime in runtimes:
            for role in roles:
                if runtime == "onnxruntime":
                    onnx.save(_graph(streaming=role != "encoder"), writer.folder / f"{role}.onnx")
                    artifacts.append(writer.artifact(role, f"{role}.onnx", "weights.bin"))
                else:
                    from toy_torch import save_toy_program  # torch takes its time to load

                    save_toy_program(writer.folder / f"{role}.pt2", table, streaming=role != "encoder")
                    artifacts.append(writer.artifact(role, f"{role}.pt2", runtime=runtime))
        if stages:
            for role, graph in (("features", _features()), ("acoustic", _acoustic())):
                onnx.save(graph, writer.folder / f"{role}.onnx")
                files = ("weights.bin",) if role == "acoustic" else ()
                artifacts.append(writer.artifact(role, f"{role}.onnx", *files))
        if decoder:
            onnx.save(_decoder(), writer.folder / "decoder.onnx")
            artifacts.append(writer.artifact("decoder", "decoder.onnx"))
        states = (State(name="offset", shape=(), dtype="int64"), State(name="level", shape=(1,), dtype="float32"))
        manifest = Manifest(
            name=name,
            kind="ctc",
            sample_rate=SAMPLE_RATE,
            features=Features(frame_length=400, frame_shift=160, num_mel_bins=BINS),
            encoder=Encoder(subsampling_rate=4, output_dim=1, min_samples=MIN_SAMPLES),
            vocabulary=Vocabulary(
                size=size,
                units="char",
                blank_id=size - 1 if blank_last else 0,
                unk_id=0 if blank_last else 1,
                sos_id=size - 2 if blank_last else size - 1,
                eos_id=size - 2 if blank_last else size - 1,
                connect_symbol="",
            ),
            streaming=Streaming(
                chunk_size=CHUNK, left_chunks=1, window_samples=WINDOW, shift_samples=SHIFT, states=states
            )
            if streaming
            else None,
            parts=(DecoderPart(bidirectional=True, ctc_weight=0.5, reverse_weight=0.25),) if decoder else (),
            artifacts=tuple(artifacts),
            provenance=Provenance(family="toy"),
        )
        writer.commit(manifest)
    return path


def toy_waveform(text: str, frames_per_token: int = 1) -> npt.NDArray[np.float32]:
    """Audio at `SAMPLE_RATE` that the toy bundle transcribes to `text` (lower-case letters, digits, inner spaces).

    Every character lasts `frames_per_token` frames; equal neighbours get a blank frame between them.
    """
    frames: list[int] = []
    previous = None
    for char in text.replace(" ", "▁"):
        frames += [0] if char == previous else []
        frames += [TOKENS.index(char)] * frames_per_token
        previous = char
    return frames_waveform(frames)


def frames_waveform(frame_tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Audio whose frames say the given token ids, one each."""
    levels = np.cumsum(frame_tokens) % len(TOKENS)
    samples = np.repeat(levels, FRAME) / LEVELS
    return np.concatenate((samples, np.zeros(CONTEXT))).astype(np.float32)


def _graph(*, streaming: bool) -> onnx.ModelProto:
    nodes, constants = _nodes()
    return _model(nodes, constants, streaming=streaming)


def _features() -> onnx.ModelProto:
    """Waveforms to levels: a part of the nodes of the encoder."""
    nodes, constants = _nodes()
    nodes = nodes[: next(place for place, each in enumerate(nodes) if "level_of_frame" in each.output) + 1]
    counted = {"counted_beyond", "counted_steps", "counted", "too_short", "num_frames"}
    nodes = [each for each in nodes if not counted & set(each.output)]
    constants["repeats"] = np.array([1, 1, BINS], np.int64)
    # Rows that end before the others are not cut here, and an input must be used.
    nodes += [
        helper.make_node("Unsqueeze", ["level_of_frame", "last_axis"], ["levels_alone"]),
        helper.make_node("Mul", ["num_samples", "zero"], ["nothing"]),
        helper.make_node("Cast", ["nothing"], ["nothing_real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["nothing_real", "behind"], ["nothing_for_all"]),
        helper.make_node("Add", ["levels_alone", "nothing_for_all"], ["levels_used"]),
        helper.make_node("Tile", ["levels_used", "repeats"], ["features"]),
    ]
    constants["behind"] = np.array([1, 2], np.int64)
    value = helper.make_tensor_value_info
    inputs = [
        value("waveform", TensorProto.FLOAT, ["batch", "samples"]),
        value("num_samples", TensorProto.INT64, ["batch"]),
    ]
    outputs = [value("features", TensorProto.FLOAT, ["batch", "frames", BINS])]
    return _finished(nodes, constants, inputs, outputs, external=False)


def _acoustic() -> onnx.ModelProto:
    """Levels to what the encoder says: the other part of its nodes."""
    nodes, constants = _nodes()
    place = next(place for place, each in enumerate(nodes) if "level_of_frame" in each.output)
    counting = [each for each in nodes[:place] if {"counted_beyond", "counted_steps", "counted"} & set(each.output)]
    counting += [each for each in nodes[:place] if {"too_short", "num_frames"} & set(each.output)]
    constants["any_bin"] = np.array(0, np.int64)
    nodes = [
        *counting,
        helper.make_node("Gather", ["features", "any_bin"], ["level_of_frame"], axis=2),
        helper.make_node("Gather", ["level_of_frame", "first"], ["level_at_start"], axis=1),
        helper.make_node("Mul", ["level_at_start", "no_level"], ["level_before"]),
        *nodes[place + 1 :],
    ]
    value = helper.make_tensor_value_info
    inputs = [
        value("features", TensorProto.FLOAT, ["batch", "frames", BINS]),
        value("num_samples", TensorProto.INT64, ["batch"]),
    ]
    outputs = [
        value("log_probs", TensorProto.FLOAT, ["batch", "frames", len(TOKENS)]),
        value("num_frames", TensorProto.INT64, ["batch"]),
        value("encoder_out", TensorProto.FLOAT, ["batch", "frames", 1]),
    ]
    return _finished(nodes, constants, inputs, outputs, external=True)


def _finished(
    nodes: list[onnx.NodeProto], constants: dict[str, npt.NDArray[Any]], inputs: Any, outputs: Any, *, external: bool
) -> onnx.ModelProto:
    used = {name for each in nodes for name in each.input}
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used]
    tables = [_external_table(len(TOKENS))] if external else []
    graph = helper.make_graph(nodes, "toy stage", inputs, outputs, [*initializers, *tables])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _nodes() -> tuple[list[onnx.NodeProto], dict[str, npt.NDArray[Any]]]:
    """What both encoders do, after "level_before" is known."""
    size = len(TOKENS)
    node = helper.make_node
    constants: dict[str, npt.NDArray[Any]] = {
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "first": np.array([0], np.int64),
        "second": np.array([1], np.int64),
        "minus_one": np.array([-1], np.int64),
        "frame": np.array(FRAME, np.int64),
        "min_samples": np.array(MIN_SAMPLES, np.int64),
        "size": np.array(size, np.int64),
        "levels": np.array(LEVELS, np.float32),
        "no_level": np.array(0, np.float32),
        "block": np.array([0, -1, FRAME], np.int64),
        "last_axis": np.array([2], np.int64),
    }
    nodes = [
        # frames = (samples - min_samples) // frame + 1, of the tensor and of each row
        node("Shape", ["waveform"], ["shape"]),
        node("Gather", ["shape", "second"], ["samples"]),
        *_count_frames("samples", "frames"),
        *_count_frames("num_samples", "counted"),
        node("Less", ["num_samples", "min_samples"], ["too_short"]),
        node("Where", ["too_short", "zero", "counted"], ["num_frames"]),
        # level = round(64 * mean) of each frame
        node("Mul", ["frames", "frame"], ["used"]),
        node("Slice", ["waveform", "first", "used", "second"], ["framed"]),
        node("Reshape", ["framed", "block"], ["blocks"]),
        node("ReduceMean", ["blocks"], ["means"], axes=[2], keepdims=0),
        node("Mul", ["means", "levels"], ["scaled"]),
        node("Round", ["scaled"], ["level_of_frame"]),
        # token = (level - level before) mod size
        node("Slice", ["level_of_frame", "first", "minus_one", "second"], ["all_but_last"]),
        node("Concat", ["level_before", "all_but_last"], ["before"], axis=1),
        node("Sub", ["level_of_frame", "before"], ["difference"]),
        node("Cast", ["difference"], ["whole"], to=TensorProto.INT64),
        node("Mod", ["whole", "size"], ["tokens"]),
        node("Gather", ["table", "tokens"], ["log_probs"]),
        node("Unsqueeze", ["difference", "last_axis"], ["encoder_out"]),
    ]
    return nodes, constants


def _model(nodes: list[onnx.NodeProto], constants: dict[str, npt.NDArray[Any]], *, streaming: bool) -> onnx.ModelProto:
    size = len(TOKENS)
    node = helper.make_node
    inputs = [
        helper.make_tensor_value_info("waveform", TensorProto.FLOAT, ["batch", WINDOW if streaming else "samples"]),
        helper.make_tensor_value_info("num_samples", TensorProto.INT64, ["batch"]),
    ]
    frames = CHUNK if streaming else "frames"
    outputs = [
        helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["batch", frames, size]),
        helper.make_tensor_value_info("num_frames", TensorProto.INT64, ["batch"]),
        helper.make_tensor_value_info("encoder_out", TensorProto.FLOAT, ["batch", frames, 1]),
    ]
    if streaming:
        nodes = [
            node("Equal", ["offset", "zero"], ["at_start"]),
            node("Unsqueeze", ["at_start", "second"], ["row_at_start"]),
            node("Where", ["row_at_start", "no_level", "level"], ["level_before"]),
            *nodes,
            node("Add", ["offset", "num_frames"], ["next_offset"]),
            node("Gather", ["level_of_frame", "minus_one"], ["next_level"], axis=1),
        ]
        inputs += [
            helper.make_tensor_value_info("offset", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("level", TensorProto.FLOAT, ["batch", 1]),
        ]
        outputs += [
            helper.make_tensor_value_info("next_offset", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("next_level", TensorProto.FLOAT, ["batch", 1]),
        ]
    else:
        index = nodes.index(next(n for n in nodes if n.op_type == "Concat"))
        nodes[index:index] = [
            node("Gather", ["level_of_frame", "first"], ["level_at_start"], axis=1),
            node("Mul", ["level_at_start", "no_level"], ["level_before"]),
        ]
    initializers = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, "toy", inputs, outputs, [*initializers, _external_table(size)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model


def _decoder() -> onnx.ModelProto:
    node = helper.make_node
    constants: dict[str, np.ndarray] = {
        "none": np.array(0, np.float32),
        "end": np.array([END_POINTS], np.float32),
        "third": np.array(2, np.int64),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "last_axis": np.array([2], np.int64),
    }
    nodes = [
        node("Shape", ["hypotheses"], ["shape"]),
        node("Gather", ["shape", "third"], ["length"], axis=0),
        node("Range", ["zero", "length", "one"], ["places"]),
        node("Unsqueeze", ["num_tokens", "last_axis"], ["counts"]),
        node("Less", ["places", "counts"], ["valid"]),
    ]
    for side, points in (("left", LEFT_POINTS), ("right", RIGHT_POINTS)):
        table = np.zeros(len(TOKENS), np.float32)
        for token, point in points.items():
            table[TOKENS.index(token)] = point
        constants[f"{side}_points"] = table
        nodes += [
            node("Gather", [f"{side}_points", "hypotheses"], [f"{side}_each"]),
            node("Where", ["valid", f"{side}_each", "none"], [f"{side}_valid"]),
            node("ReduceSum", [f"{side}_valid", "last_axis"], [f"{side}_sum"], keepdims=0),
            node("Add", [f"{side}_sum", "end"], [f"{side}_scores"]),
        ]
    value = helper.make_tensor_value_info
    inputs = [
        value("encoder_out", TensorProto.FLOAT, ["batch", "frames", 1]),
        value("num_frames", TensorProto.INT64, ["batch"]),
        value("hypotheses", TensorProto.INT64, ["batch", "n", "tokens"]),
        value("num_tokens", TensorProto.INT64, ["batch", "n"]),
    ]
    outputs = [value(f"{side}_scores", TensorProto.FLOAT, ["batch", "n"]) for side in ("left", "right")]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "toy decoder", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _count_frames(samples: str, result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Sub", [samples, "min_samples"], [f"{result}_beyond"]),
        helper.make_node("Div", [f"{result}_beyond", "frame"], [f"{result}_steps"]),
        helper.make_node("Add", [f"{result}_steps", "one"], [result]),
    ]


def _external_table(size: int) -> onnx.TensorProto:
    tensor = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[size, size])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(size * size * 4))):
        tensor.external_data.add(key=key, value=value)
    return tensor
