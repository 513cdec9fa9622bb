"""What conversions of two ONNX graphs cost and gain on a CPU: size, drift on real inputs, processor time of a call.

    python -m benchmarks.conversions --minilm DIR [--output docs/performance/conversions] [--repeats 15]

The graphs are `all-MiniLM-L6-v2` (a folder of sentence-transformers, exported by torch.onnx.export; inputs are
sentences of docs/) and examples/handwriting (a convolutional classifier; inputs are letters in fonts that training did
not see).
Each converted graph runs right after its original, in one thread of one process, and the ratio of the two processor
times is taken; the median of all ratios is what counts. Static int8 is calibrated on other inputs than those compared.
Writes <output>.json and <output>.md. Needs the extra `export`, transformers and tokenizers.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritone.errors import TritoneError
from tritone.families.convert.calls import InputFiles, cast
from tritone.families.convert.check import Limits, check_precision
from tritone.families.convert.convert import convert_onnx
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table
from tritone.runtime import open_graph
from tritone.runtime.shapes import Shapes

ROOT = Path(__file__).resolve().parents[1]
LETTERS = ROOT / "examples" / "handwriting"
ROWS, TOKENS, CALLS = 8, 32, 6
COLUMNS = (
    Column("form", "form"),
    Column("megabytes", "MB", digits=2),
    Column("ratio", "time ÷ original", digits=2),
    Column("low", "lowest", digits=2),
    Column("high", "highest", digits=2),
    Column("cosine", "least cosine", digits=5),
    Column("largest", "largest change", digits=4),
    Column("agreement", "top-1 equal", digits=1, scale=100, unit="%"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A form of a graph. `ratio`: median of its processor time divided by the original's, `low` and `high` of them."""

    graph: str
    form: str
    megabytes: float
    ratio: float
    low: float
    high: float
    cosine: float | None = None
    largest: float | None = None
    agreement: float | None = None


def forms(shapes: Shapes, calibration: InputFiles) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is converted to: a name, and arguments of `convert_onnx`."""
    yield "opset 13", {"opset": 13}
    yield "opset 21", {"opset": 21}
    yield f"fixed {shapes}", {"shapes": shapes}
    yield "fp16", {"target": "fp16"}
    yield "int8-weights", {"target": "int8-weights"}
    yield "int8-dynamic", {"target": "int8-dynamic"}
    yield "int8-static", {"target": "int8-static", "calibration": calibration}
    yield "int8-static, symmetric", {"target": "int8-static", "calibration": calibration, "symmetric": True}


def measure(graph: str, source: Path, calls: Path, options: Mapping[str, dict[str, Any]], repeats: int) -> list[Row]:
    """Convert a graph to each form, compare and time it."""
    original = open_graph(source, "cpu", 1)
    files = InputFiles(paths=[calls])
    inputs = list(files.calls(original.inputs))
    rows = [Row(graph=graph, form="original", megabytes=source.stat().st_size / 1e6, ratio=1, low=1, high=1)]
    for name, given in options.items():
        path = source.with_name(f"{re.sub('[^a-z0-9]+', '-', name)}.onnx")
        try:
            done = convert_onnx(source, path, inputs=files, **given)
        except (TritoneError, ValueError) as error:
            print(f"{graph}, {name}: {error}", file=sys.stderr)
            continue
        side = f"{path},runtime=reference" if name == "fp16" and done.rounded else str(path)
        drift = check_precision(str(source), side, files, Limits()).drift[0]
        converted = open_graph(path, "cpu", 1)
        ratios = []
        for repeat in range(repeats + 1):  # the first warms up
            call = inputs[repeat % len(inputs)]
            pair = []
            for each in (original, converted):
                fed = cast(call, each.inputs)
                start = time.thread_time()
                each(fed, list(each.outputs))
                pair.append(time.thread_time() - start)
            ratios.append(pair[1] / pair[0])
        del ratios[0]
        rows.append(
            Row(
                graph=graph,
                form=name if done.rounded else f"{name}, weights alone rounded",
                megabytes=path.stat().st_size / 1e6,
                ratio=statistics.median(ratios),
                low=min(ratios),
                high=max(ratios),
                cosine=drift.cosine,
                largest=drift.largest,
                agreement=drift.agreement,
            )
        )
        print(f"{graph}, {name}: {rows[-1].ratio:.2f}", file=sys.stderr, flush=True)
    return rows


def write_minilm(folder: Path, model: Path) -> Path:
    """Export the network of a sentence-transformers folder, by the usual call."""
    import torch
    from transformers import BertModel

    class Embeddings(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = BertModel.from_pretrained(model, add_pooling_layer=False)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.network(input_ids, attention_mask=attention_mask).last_hidden_state
            return hidden

    network = Embeddings().eval()
    example = torch.ones(2, 16, dtype=torch.int64)
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "batch", 1: "length"} for name in (*names, "last_hidden_state")}
    path = folder / "minilm.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example, example),
            str(path),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    return path


def write_sentences(folder: Path, model: Path) -> tuple[Path, Path]:
    """Calls of sentences of the documents: those to compare on, and those to calibrate with."""
    from tokenizers import Tokenizer

    text = " ".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
    found = [each.strip() for each in re.split(r"[.|\n]", re.sub(r"[`*#]", "", text)) if len(each.split()) > 5]
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    count = ROWS * CALLS
    chosen = [found[index] for index in np.random.default_rng(0).permutation(len(found))[: 2 * count]]
    encoded = tokenizer.encode_batch(chosen)
    paths = (folder / "sentences.npz", folder / "calibration.npz")
    for path, part in zip(paths, (encoded[:count], encoded[count:]), strict=True):
        np.savez(
            path,
            input_ids=np.array([each.ids for each in part]).reshape(CALLS, ROWS, TOKENS),
            attention_mask=np.array([each.attention_mask for each in part]).reshape(CALLS, ROWS, TOKENS),
        )
    return paths


def write_letters(folder: Path) -> tuple[Path, Path]:
    """Calls of letters: fonts that training did not see, and to calibrate with two that it did."""
    sys.path.insert(0, str(LETTERS))
    from glyphs import FONTS, HELD_OUT, glyph  # type: ignore[import-not-found]  # a script beside the example

    paths = (folder / "letters.npz", folder / "calibration.npz")
    for path, fonts in zip(paths, (HELD_OUT, FONTS[:2]), strict=True):
        ink = np.stack([glyph(letter, font) for font in fonts for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"])
        image = np.repeat((1 - 0.8 * ink)[..., None], 3, axis=3).astype(np.float32)
        calls = len(image) // ROWS
        np.savez(path, image=image[: calls * ROWS].reshape(calls, ROWS, *image.shape[1:]))
    return paths


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minilm", type=Path, required=True, help="folder with model.safetensors and tokenizer.json")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "performance" / "conversions")
    parser.add_argument("--repeats", type=int, default=15)
    chosen = parser.parse_args()
    stamp = Stamp.here()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / "minilm", Path(name) / "handwriting"]
        for folder in folders:
            folder.mkdir()
        letters = folders[1] / "handwriting.onnx"
        letters.write_bytes((LETTERS / "handwriting.onnx").read_bytes())
        minilm = write_minilm(folders[0], chosen.minilm)
        for graph, source, (calls, calibration), shapes in (
            ("handwriting", letters, write_letters(folders[1]), f"{ROWS}x128x128x3"),
            ("MiniLM", minilm, write_sentences(folders[0], chosen.minilm), f"{ROWS}x{TOKENS}"),
        ):
            options = dict(forms(Shapes.parse(shapes), InputFiles(paths=[calibration])))
            rows += measure(graph, source, calls, options, chosen.repeats)
    chosen.output.with_suffix(".json").write_text(
        json.dumps({"stamp": asdict(stamp), "rows": [asdict(row) for row in rows]}, indent=1) + "\n", encoding="utf-8"
    )
    tables = [
        Table(graph, COLUMNS, [asdict(row) for row in rows if row.graph == graph]).to_markdown()
        for graph in ("handwriting", "MiniLM")
    ]
    page = (
        "# Conversions on a CPU\n\nProcessor time of one call with 8 rows, of one thread, paired with the original's; "
        "drift on the same calls. What follows from it is in [conversions.md](../models/conversions.md).\n\n"
        + "\n".join(tables)
        + f"\n{stamp.summary()}\n"
    )
    chosen.output.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
