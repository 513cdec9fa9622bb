"""Whisper on a processor beside faster-whisper, from tiny to small: one table, in about a quarter of an hour.

    python -m benchmarks.whisper_cpu MODELS ../shared/data/librispeech_mini --python FASTER_WHISPER_VENV/bin/python

MODELS is a folder with `tiny.en` and `base` as Systran distributes them (folders of CTranslate2). Of base's file one of
small's size is made with random numbers, since speed does not depend on what a network has learnt; its texts end after
32 tokens. Each model is exported, then `benchmarks.whisper_speed` measures it, greedily, with one recording after the
other and eight at once, in int8 and float32. Nothing else should run meanwhile. `--only MODEL` measures anew one of
them; the page has the others as they are in the JSON beside it.
"""

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Setup
from tritone.families.whisper.ctranslate2 import FLOAT16, MODEL, REVISION, SPEC, TYPES, VERSION, read_tensors
from tritone.families.whisper.export import export_whisper

RANDOM, TEMPLATE = "small-random", "base"
# Sizes of base, and those of small in their places: width, keys and values, queries too, hidden, heads, layers.
WIDER = {512: 768, 1024: 1536, 1536: 2304, 2048: 3072}
HEADS, LAYERS, TEMPLATE_LAYERS = 12, 12, 6
SPREAD = 0.02  # of random weights
MORE = {  # options of `whisper_speed`
    "tiny.en": ["--repeats", "4"],
    "base": ["--repeats", "3"],
    RANDOM: ["--repeats", "3", "--clips", "3", "--max-tokens", "32"],
}
CASES = {"one": "one after the other", "together": "eight together"}
PRECISIONS = ("int8", "fp32")
PYTHON = "FASTER_WHISPER/bin/python"  # of the environment with faster-whisper, in the page


def write_random(template: Path, folder: Path) -> None:
    """A folder of CTranslate2 with random numbers of small's size; what is not numbers is that of `template`."""
    folder.mkdir()
    for path in template.iterdir():
        if path.name != MODEL:
            shutil.copy(path, folder)
    tensors = read_tensors(template / MODEL)
    random = np.random.default_rng(7)
    made: dict[str, np.ndarray] = {}
    for name, array in tensors.items():
        side, _, rest = name.partition("/")
        number, _, part = rest.partition("/")
        names = [name]
        if number.startswith("layer_") and number != "layer_norm":
            first = int(number.removeprefix("layer_"))
            names = [f"{side}/layer_{layer}/{part}" for layer in range(first, LAYERS, TEMPLATE_LAYERS)]
        for each in names:
            if not array.shape:
                made[each] = np.array(HEADS, array.dtype) if rest == "num_heads" else array
                continue
            shape = tuple(WIDER.get(size, size) for size in array.shape)
            if each.endswith(("/gamma", "/beta", "/bias")):
                made[each] = np.full(shape, float(each.endswith("/gamma")), np.float16)
            else:
                made[each] = random.normal(0, SPREAD, shape).astype(np.float16)
    alias, target = "decoder/projection/weight", "decoder/embeddings/weight"
    made.pop(alias, None)
    codes = {np.dtype(dtype): code for code, dtype in TYPES.items() if code <= FLOAT16}
    with (folder / MODEL).open("wb") as file:
        file.write(struct.pack("<I", VERSION) + _text(SPEC) + struct.pack("<II", REVISION, len(made)))
        for name, array in made.items():
            sizes = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
            file.write(_text(name) + sizes + struct.pack("<BI", codes[array.dtype], array.nbytes) + array.tobytes())
        file.write(struct.pack("<I", 1) + _text(alias) + _text(target))


def _text(text: str) -> bytes:
    content = text.encode() + b"\0"
    return struct.pack("<H", len(content)) + content


def measure(name: str, arguments: argparse.Namespace, work: Path) -> list[Any]:
    """The findings of a model."""
    checkpoint = arguments.models / name
    if name == RANDOM:
        checkpoint = work / name
        write_random(arguments.models / TEMPLATE, checkpoint)
    bundle, output = work / f"my-{name}", work / f"{name}.json"
    trained = name != RANDOM  # what a random network says in int8 is another thing than in float32
    export_whisper(checkpoint=checkpoint, output=bundle, precisions=PRECISIONS[::-1], check=trained, force=not trained)
    command = [sys.executable, "-m", "benchmarks.whisper_speed", str(bundle), str(arguments.folder), *MORE[name]]
    command += ["--model", str(checkpoint), "--python", arguments.python, "--only", ",".join(CASES), "--beams", "1"]
    subprocess.run([*command, "--precisions", ",".join(PRECISIONS), "--output", str(output)], check=False)
    text = output.read_text(encoding="utf-8")
    for place, name_of_it in {f"{work}/": "", f"{arguments.models}/": "", arguments.python: PYTHON}.items():
        text = text.replace(place, name_of_it)  # where things lay on this machine is of no use elsewhere
    findings: list[Any] = json.loads(text)
    return findings


def page(measured: Mapping[str, list[Any]]) -> str:
    """The table, and below it every repeat."""
    lines = [TITLE, INTRODUCTION, "| model, precision | requests | processor seconds | wall clock | target | |"]
    lines += ["| --- | --- | ---: | ---: | ---: | --- |"]
    repeats: list[str] = []
    for name, findings in measured.items():
        by_key = {each["key"]: each for each in findings}
        for case, words in CASES.items():
            for precision in PRECISIONS:
                cpu, wall = (by_key[f"{case} {precision}, beam 1 {kind}"] for kind in ("cpu", "wall"))
                notes = " ".join(cpu["notes"])
                ratios = f"{cpu['value']:.2f} | {wall['value']:.2f} | {wall['bar']:g}"
                met = "met" if wall["met"] else "**not met**"
                lines.append(f"| {name}, {precision} | {words} | {ratios} | {met} |")
                columns = list(cpu["rows"][0])
                repeats += ["", f"## {name}, {precision}, {words}", "", f"| {' | '.join(columns)} |"]
                repeats += [f"|{' ---: |' * len(columns)}"]
                repeats += [f"| {' | '.join(f'{row[each]:g}' for each in columns)} |" for row in cpu["rows"]]
                repeats += ["", notes]
        stamp = Setup.read(findings[0]["setup"]).stamp
        repeats += [
            "",
            f"{stamp.date}, commit {stamp.commit or 'unknown'}; {stamp.machine()}; load before {stamp.load}.",
        ]
    return "\n".join([*lines, *repeats]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="folder of the folders tiny.en and base")
    parser.add_argument("folder", type=Path, help="of recordings, see benchmarks.whisper_speed")
    parser.add_argument("--python", required=True, help="of an environment with faster-whisper, soundfile and soxr")
    parser.add_argument("--only", choices=MORE, help="one model")
    parser.add_argument("--output", type=Path, default=Path("docs/performance/whisper-cpu.json"))
    arguments = parser.parse_args()
    held = json.loads(arguments.output.read_text(encoding="utf-8")) if arguments.output.is_file() else {}
    for name in [arguments.only] if arguments.only else MORE:
        with tempfile.TemporaryDirectory(prefix="whisper-cpu-") as work:
            held[name] = measure(name, arguments, Path(work))
        arguments.output.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        measured = {each: held[each] for each in MORE if each in held}
        arguments.output.with_suffix(".md").write_text(page(measured), encoding="utf-8")
    return 0 if all(each["met"] for found in held.values() for each in found) else 1


TITLE = "# Whisper from tiny to small on a CPU\n"
INTRODUCTION = """\
faster-whisper's time ÷ ours, on the same machine and cores with as many threads, in turn, greedy at temperature 0,
after a warm-up: above 1 this project takes less. One after the other: recordings of LibriSpeech, each by itself, in
process. Together: eight requests at once to a server here, there the better of the batched pipeline and workers.
The target is for the wall clock. small-random has random numbers and ends each text after 32 tokens, without times, so
its texts are not compared. How many words both have wrong on hundreds of recordings is in
[accuracy-whisper](accuracy-whisper.md). "others %" is how much of the cores foreign processes took during a repeat.

    python -m benchmarks.whisper_cpu MODELS ../shared/data/librispeech_mini --python FASTER_WHISPER/bin/python
"""


if __name__ == "__main__":
    sys.exit(main())
