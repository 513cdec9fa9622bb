"""A tiny voice in Piper's form, whose speech is arithmetic, and a program that speaks the command line of espeak-ng.

write_toy_voice(folder)   ->  folder/voice.onnx, with voice.onnx.json beside it
write_espeak(folder)      ->  a program espeak-ng, whose phonemes of a text are its letters

A phoneme of number n sounds as `SAMPLES` times n / 512, plus 0.25 times the number of a speaker; slower speech has more
samples.
"""

import json
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SAMPLE_RATE = 22050
SAMPLES = 100  # of a number, at the usual speed
LETTERS = "_^$ " + string.ascii_lowercase + string.digits + ".,;:?!" + "ˈːəʊɹɔɪɛæŋθðʃʒʌɑɜɡɐ"
IDS = {each: [number] for number, each in enumerate(LETTERS)}
ESPEAK = r"""#!/bin/sh
case "$*" in
  *"-v nobody"*) echo "Error: The specified espeak-ng voice does not exist." >&2; exit 1;;
esac
while IFS= read -r line; do
  case "$line" in
    *hangs*) exec sleep 600;;
    *crashes*) kill -SEGV $$;;
    "") echo;;
    *) printf '%s\n' "$line" | tr 'A-Z' 'a-z' | tr -cd 'a-z0-9 \n';;
  esac
done
"""
"""It hangs and crashes where a text says so."""


def write_toy_voice(folder: Path, speakers: Sequence[str] = (), **changes: Any) -> Path:
    """Write a voice; `changes` are of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "voice.onnx"
    onnx.save(_graph(has_speakers=bool(speakers)), path)
    config = {
        "audio": {"sample_rate": SAMPLE_RATE, "quality": "toy"},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0.0, "length_scale": 1, "noise_w": 0.0},
        "phoneme_type": "espeak",
        "phoneme_map": {},
        "phoneme_id_map": IDS,
        "num_symbols": 256,
        "num_speakers": max(1, len(speakers)),
        "speaker_id_map": {name: number for number, name in enumerate(speakers)},
        "language": {"code": "en_US"},
    }
    path.with_name("voice.onnx.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return path


def write_espeak(folder: Path) -> Path:
    """Write the program into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "espeak-ng"
    program.write_text(ESPEAK, encoding="utf-8")
    program.chmod(0o755)
    return folder


def require_espeak() -> None:
    """Skip a test on a machine without the real program."""
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed; apt-get install espeak-ng")


def sound(phonemes: str, *, slower: float = 1.0, speaker: int = 0) -> npt.NDArray[np.float32]:
    """The speech of phonemes, (samples,): each number with a pad behind it, between the marks of both ends."""
    ids = [IDS["^"][0], 0, *(number for each in phonemes for number in (IDS[each][0], 0)), IDS["$"][0]]
    levels = np.array(ids, np.float32) / np.float32(512) + np.float32(0.25 * speaker)
    return np.repeat(levels, round(SAMPLES * slower))


def _graph(*, has_speakers: bool) -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Cast", ["input"], ["numbers"], to=TensorProto.FLOAT),
        node("Div", ["numbers", "of"], ["levels"]),
        node("Gather", ["scales", "one"], ["slower"]),
        node("Mul", ["slower", "samples"], ["wanted"]),
        node("Round", ["wanted"], ["rounded"]),
        node("Cast", ["rounded"], ["repeats"], to=TensorProto.INT64),
        node("Unsqueeze", ["levels", "two"], ["column"]),
        node("Concat", ["ones", "repeats"], ["shape"], axis=0),
        node("Expand", ["column", "shape"], ["repeated"]),
        node("Reshape", ["repeated", "flat"], ["plain" if has_speakers else "output"]),
    ]
    # What changes nothing, so that every input is used.
    nodes.insert(0, node("Identity", ["input_lengths"], ["counted"]))
    constants = {
        "of": np.array(512, np.float32),
        "samples": np.array(SAMPLES, np.float32),
        "one": np.array([1]),
        "two": np.array([2]),
        "ones": np.array([1, 1]),
        "flat": np.array([1, 1, 1, -1]),
    }
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.INT64, ["batch_size", "phonemes"]),
        helper.make_tensor_value_info("input_lengths", TensorProto.INT64, ["batch_size"]),
        helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3]),
    ]
    if has_speakers:
        inputs.append(helper.make_tensor_value_info("sid", TensorProto.INT64, ["batch_size"]))
        constants["quarter"] = np.array(0.25, np.float32)
        nodes += [
            node("Cast", ["sid"], ["who"], to=TensorProto.FLOAT),
            node("Mul", ["who", "quarter"], ["raised"]),
            node("Add", ["plain", "raised"], ["output"]),
        ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch_size", 1, 1, "samples"])
    graph = helper.make_graph(
        nodes, "voice", inputs, [output], [numpy_helper.from_array(value, name) for name, value in constants.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
