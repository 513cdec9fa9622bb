"""A tiny transducer bundle whose answers can be worked out by hand.

A frame is 640 samples (40 ms), and there is one where at least 160 samples of it are. Its level is
`round(64 * mean(its first 160 samples))`, and the token it asks for `(level - level of the frame before) mod 40`:
a stream that got another stream's state says something else. What a frame asks for is what the joiner says, with
probability 0.95 whatever came before, but for two tokens that are never said:

* `<unk>` asks for doubt: the blank has the logit 0, `e` -1, all others -20.
* `<sos/eos>` asks the predictor. The logits of letters and digits are 0, of others -20, and the predictor adds: 3 for
  the letter after the last one (`a` after the blank, a digit or no token), 6 for `s` if the oldest token of the context
  is none, 6 for `9` if it is `q`. So the first token of a stream is `s` if its context starts with "no token", and it
  would be `a` if it started with blanks only. After `k` comes `l`, after `q` and one more letter comes `9`.

The streaming graph is `DELAY` frames late, says blanks first, and tells the last frames of the audio only because
streams are flushed. `lead_samples` zeros come before the audio.

    write_toy_transducer(path)    ->  a bundle with all four roles
    transducer_waveform("k?")     ->  audio that it transcribes to "kl": `?` asks, `~` doubts, `-` is blank
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from toy import BINS, FRAME, LEVELS, SAMPLE_RATE, TOKENS
from tritone.bundle import BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, Provenance, Role, State, Streaming, Vocabulary
from tritone.kinds.transducer.part import TransducerPart

HEARD = 160  # samples at the start of a frame that make it one
MIN_SAMPLES = 400
CHUNK = 4  # frames of a step
DELAY = 2  # frames
LEAD = 120  # samples
WINDOW = LEAD + CHUNK * FRAME + HEARD
SHIFT = CHUNK * FRAME
FLUSH = FRAME - HEARD + DELAY * FRAME  # a later step has nothing to say
SIZE = len(TOKENS)
BLANK, UNK, ASK = 0, 1, SIZE - 1
CONFIDENCE = 0.95
NEVER = -20.0
START = (-1, 0)
DIM = SIZE + 1  # logits, and whether the predictor is asked


def write_toy_transducer(
    path: Path, *, streaming: bool = True, name: str = "toy-transducer", stages: bool = False
) -> Path:
    """Write the bundle to `path` and return `path`; without `streaming` it has no streaming encoder.

    `stages`: with features, which are levels, and acoustic network apart.
    """
    with BundleWriter(path) as writer:
        writer.write_tokens(TOKENS)
        graphs: dict[Role, onnx.ModelProto] = {
            "encoder": _encoder(streaming=False),
            "predictor": _predictor(),
            "joiner": _joiner(),
        }
        if streaming:
            graphs["streaming_encoder"] = _encoder(streaming=True)
        if stages:
            graphs |= {"features": _stage(acoustic=False), "acoustic": _stage(acoustic=True)}
        for role, graph in graphs.items():
            onnx.save(graph, writer.folder / f"{role}.onnx")
        states = (
            State(name="level", shape=(1,), dtype="float32"),
            State(name="held", shape=(DELAY, DIM), dtype="float32"),
            State(name="steps", shape=(), dtype="int64"),
            State(name="told", shape=(), dtype="int64"),
        )
        writer.commit(
            Manifest(
                name=name,
                kind="transducer",
                sample_rate=SAMPLE_RATE,
                features=Features(
                    frame_length=400, frame_shift=160, snip_edges=False, sample_scale=1.0, num_mel_bins=BINS
                ),
                encoder=Encoder(subsampling_rate=4, output_dim=DIM, min_samples=MIN_SAMPLES),
                vocabulary=Vocabulary(
                    size=SIZE, units="char", blank_id=BLANK, unk_id=UNK, sos_id=ASK, eos_id=ASK, connect_symbol=""
                ),
                streaming=Streaming(
                    chunk_size=CHUNK,
                    left_chunks=0,
                    window_samples=WINDOW,
                    shift_samples=SHIFT,
                    states=states,
                    lead_samples=LEAD,
                    flush_samples=FLUSH,
                )
                if streaming
                else None,
                parts=(TransducerPart(context_size=len(START), start=START),),
                artifacts=tuple(writer.artifact(role, f"{role}.onnx") for role in graphs),
                provenance=Provenance(family="toy"),
            )
        )
    return path


def transducer_waveform(text: str) -> npt.NDArray[np.float32]:
    """Audio at `SAMPLE_RATE` with a frame for each character; see the top of this file."""
    special = {"?": ASK, "~": UNK, "-": BLANK, " ": TOKENS.index("▁")}
    tokens = [special[char] if char in special else TOKENS.index(char) for char in text]
    levels = np.cumsum(tokens) % SIZE
    return (np.repeat(levels, FRAME) / LEVELS).astype(np.float32)


def _frame_table() -> npt.NDArray[np.float32]:
    """What the encoder gives for a frame that asks for a token, (token, DIM)."""
    table = np.zeros((SIZE, DIM), dtype=np.float32)
    table[:, :SIZE] = np.log((1 - CONFIDENCE) / (SIZE - 1))
    np.fill_diagonal(table, np.log(CONFIDENCE))
    table[UNK] = NEVER
    table[UNK, [BLANK, TOKENS.index("e"), SIZE]] = 0.0, -1.0, 0.0
    table[ASK] = 0.0
    table[ASK, [BLANK, UNK, TOKENS.index("▁"), ASK]] = NEVER
    table[ASK, SIZE] = 1.0
    return table


def _predictor_tables() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """What the oldest and the newest token of a context add, (token + 1, DIM); the first row is of no token."""
    oldest, newest = np.zeros((SIZE + 1, DIM), np.float32), np.zeros((SIZE + 1, DIM), np.float32)
    first, last = TOKENS.index("a"), TOKENS.index("z")
    for token in range(-1, SIZE):
        newest[token + 1, token + 1 if first <= token < last else first] = 3.0
    oldest[0, TOKENS.index("s")] = 6.0
    oldest[TOKENS.index("q") + 1, TOKENS.index("9")] = 6.0
    return oldest, newest


def _encoder(*, streaming: bool) -> onnx.ModelProto:
    node = helper.make_node
    constants: dict[str, npt.NDArray[Any]] = {
        "table": _frame_table(),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "first": np.array([0], np.int64),
        "second": np.array([1], np.int64),
        "third": np.array([2], np.int64),
        "minus_one": np.array([-1], np.int64),
        "missing": np.array(FRAME - HEARD, np.int64),
        "frame": np.array(FRAME, np.int64),
        "heard": np.array([HEARD], np.int64),
        "block": np.array([0, -1, FRAME], np.int64),
        "more": np.array([0, 0, 0, FRAME], np.int64),
        "size": np.array(SIZE, np.int64),
        "levels": np.array(LEVELS, np.float32),
        "silence": np.array(0, np.float32),
        "lead": np.array([LEAD], np.int64),
        "lead_alone": np.array(LEAD, np.int64),
        "chunk": np.array(CHUNK, np.int64),
        "chunk_end": np.array([CHUNK], np.int64),
        "end": np.array([2**40], np.int64),
        "delay": np.array(DELAY, np.int64),
        "blank_frame": _frame_table()[BLANK],
    }
    audio = "after_lead" if streaming else "waveform"
    nodes = [
        # token = (level - level before) mod size, of each frame that the tensor has room for
        node("Shape", [audio], ["shape"]),
        node("Gather", ["shape", "second"], ["samples"]),
        node("Add", ["samples", "missing"], ["samples_and_more"]),
        node("Div", ["samples_and_more", "frame"], ["frames"]),
        node("Mul", ["frames", "frame"], ["used"]),
        node("Pad", [audio, "more", "silence"], ["padded"]),
        node("Slice", ["padded", "first", "used", "second"], ["framed"]),
        node("Reshape", ["framed", "block"], ["blocks"]),
        node("Slice", ["blocks", "first", "heard", "third"], ["starts"]),
        node("ReduceMean", ["starts"], ["means"], axes=[2], keepdims=0),
        node("Mul", ["means", "levels"], ["scaled"]),
        node("Round", ["scaled"], ["frame_levels"]),
        node("Slice", ["frame_levels", "first", "minus_one", "second"], ["all_but_last"]),
        node("Concat", ["level_before", "all_but_last"], ["before"], axis=1),
        node("Sub", ["frame_levels", "before"], ["differences"]),
        node("Cast", ["differences"], ["whole"], to=TensorProto.INT64),
        node("Mod", ["whole", "size"], ["tokens"]),
        node("Gather", ["table", "tokens"], ["rows"]),
    ]
    value = helper.make_tensor_value_info
    floats, whole = TensorProto.FLOAT, TensorProto.INT64
    inputs = [
        value("waveform", floats, ["batch", WINDOW if streaming else "samples"]),
        value("num_samples", whole, ["batch"]),
    ]
    frames = CHUNK if streaming else "frames"
    outputs = [value("encoder_out", floats, ["batch", frames, DIM]), value("num_frames", whole, ["batch"])]
    if not streaming:
        nodes = [
            node("Slice", ["waveform", "first", "second", "second"], ["some"]),
            node("Mul", ["some", "silence"], ["level_before"]),
            *nodes,
            node("Identity", ["rows"], ["encoder_out"]),
            node("Add", ["num_samples", "missing"], ["valid_and_more"]),
            node("Div", ["valid_and_more", "frame"], ["num_frames"]),
        ]
    else:
        nodes = [
            node("Slice", ["waveform", "lead", "end", "second"], ["after_lead"]),
            node("Identity", ["level"], ["level_before"]),
            *nodes,
            # The window has room for one frame more than a step says.
            node("Slice", ["rows", "first", "chunk_end", "second"], ["new"]),
            node("Sub", ["chunk", "one"], ["last"]),
            node("Gather", ["frame_levels", "last"], ["last_level"], axis=1),
            node("Unsqueeze", ["last_level", "second"], ["next_level"]),
            # valid new frames
            node("Sub", ["num_samples", "lead_alone"], ["valid"]),
            node("Add", ["valid", "missing"], ["valid_and_more"]),
            node("Max", ["valid_and_more", "zero"], ["not_negative"]),
            node("Div", ["not_negative", "frame"], ["whole_frames"]),
            node("Min", ["whole_frames", "chunk"], ["new_frames"]),
            # held frames come first: blanks in the first step
            node("Equal", ["steps", "zero"], ["at_start"]),
            node("Unsqueeze", ["at_start", "axes"], ["row_at_start"]),
            node("Where", ["row_at_start", "blank_frame", "held"], ["old"]),
            node("Concat", ["old", "new"], ["all"], axis=1),
            node("Slice", ["all", "first", "chunk_end", "second"], ["encoder_out"]),
            node("Slice", ["all", "chunk_end", "end", "second"], ["next_held"]),
            node("Sub", ["delay", "told"], ["held_frames"]),
            node("Add", ["held_frames", "new_frames"], ["there"]),
            node("Min", ["there", "chunk"], ["num_frames"]),
            node("Sub", ["there", "num_frames"], ["left"]),
            node("Sub", ["delay", "left"], ["next_told"]),
            node("Add", ["steps", "one"], ["next_steps"]),
        ]
        constants["axes"] = np.array([1, 2], np.int64)
        shapes: dict[str, tuple[int, list[str | int]]] = {
            "level": (floats, ["batch", 1]),
            "held": (floats, ["batch", DELAY, DIM]),
            "steps": (whole, ["batch"]),
            "told": (whole, ["batch"]),
        }
        inputs += [value(state, *shape) for state, shape in shapes.items()]
        outputs += [value(f"next_{state}", *shape) for state, shape in shapes.items()]
    return _model("toy encoder", nodes, inputs, outputs, constants)


def _stage(*, acoustic: bool) -> onnx.ModelProto:
    """A part of the offline encoder: waveforms to levels of frames, or these to what it says."""
    whole = _encoder(streaming=False)
    constants = {each.name: numpy_helper.to_array(each) for each in whole.graph.initializer}
    nodes = list(whole.graph.node)
    end = next(place for place, each in enumerate(nodes) if "frame_levels" in each.output) + 1
    counting = {"valid_and_more", "num_frames"}
    node, value = helper.make_node, helper.make_tensor_value_info
    num_samples = value("num_samples", TensorProto.INT64, ["batch"])
    features = value("features", TensorProto.FLOAT, ["batch", "frames", BINS])
    if acoustic:
        constants["any_bin"] = np.array(0, np.int64)
        nodes = [
            node("Gather", ["features", "any_bin"], ["frame_levels"], axis=2),
            node("Slice", ["frame_levels", "first", "second", "second"], ["some"]),
            node("Mul", ["some", "silence"], ["level_before"]),
            *nodes[end:],
        ]
        return _model("toy acoustic", nodes, [features, num_samples], list(whole.graph.output), constants)
    constants |= {"behind": np.array([1, 2], np.int64), "repeats": np.array([1, 1, BINS], np.int64)}
    constants["no_count"] = np.array(0, np.int64)
    nodes = [
        *(each for each in nodes[:end] if not {"some", "level_before", *counting} & set(each.output)),
        node("Unsqueeze", ["frame_levels", "third"], ["alone"]),
        node("Mul", ["num_samples", "no_count"], ["nothing"]),
        node("Cast", ["nothing"], ["nothing_real"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["nothing_real", "behind"], ["nothing_for_all"]),
        node("Add", ["alone", "nothing_for_all"], ["used_levels"]),
        node("Tile", ["used_levels", "repeats"], ["features"]),
    ]
    inputs = [value("waveform", TensorProto.FLOAT, ["batch", "samples"]), num_samples]
    return _model("toy features", nodes, inputs, [features], constants)


def _predictor() -> onnx.ModelProto:
    oldest, newest = _predictor_tables()
    node, value = helper.make_node, helper.make_tensor_value_info
    constants: dict[str, np.ndarray] = {
        "one": np.array(1, np.int64),
        "first": np.array(0, np.int64),
        "oldest": oldest,
        "newest": newest,
    }
    nodes = [
        node("Add", ["context", "one"], ["places"]),
        node("Gather", ["places", "first"], ["older"], axis=1),
        node("Gather", ["places", "one"], ["newer"], axis=1),
        node("Gather", ["oldest", "older"], ["from_older"]),
        node("Gather", ["newest", "newer"], ["from_newer"]),
        node("Add", ["from_older", "from_newer"], ["predictor_out"]),
    ]
    inputs = [value("context", TensorProto.INT64, ["rows", len(START)])]
    return _model("toy predictor", nodes, inputs, [value("predictor_out", TensorProto.FLOAT, ["rows", DIM])], constants)


def _joiner() -> onnx.ModelProto:
    node, value = helper.make_node, helper.make_tensor_value_info
    constants = {
        "first": np.array([0], np.int64),
        "size": np.array([SIZE], np.int64),
        "end": np.array([DIM], np.int64),
        "axis": np.array([1], np.int64),
    }
    nodes = [
        node("Slice", ["encoder_out", "first", "size", "axis"], ["heard"]),
        node("Slice", ["encoder_out", "size", "end", "axis"], ["asked"]),
        node("Slice", ["predictor_out", "first", "size", "axis"], ["expected"]),
        node("Mul", ["expected", "asked"], ["added"]),
        node("Add", ["heard", "added"], ["logits"]),
    ]
    inputs = [value(name, TensorProto.FLOAT, ["rows", DIM]) for name in ("encoder_out", "predictor_out")]
    return _model("toy joiner", nodes, inputs, [value("logits", TensorProto.FLOAT, ["rows", SIZE])], constants)


def _model(
    name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, npt.NDArray[Any]]
) -> onnx.ModelProto:
    used = {each for node in nodes for each in node.input}
    initializers = [numpy_helper.from_array(array, key) for key, array in constants.items() if key in used]
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
