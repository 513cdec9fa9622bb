"""How accurate the demo model is by search, precision and history; docs/performance/accuracy.md shows it.

    python -m benchmarks.accuracy            every row on the public test sets
    python -m benchmarks.accuracy --tune     before it: choose the weights of the searches on AN4's development part

The demo checkpoint (of the history, see `training.files`) is exported once in all precisions. Then every test set goes
through the pipelines in this process, offline and in chunks, with every search. A row is noted as soon as it is there;
`--resume` goes on after an interruption with the rows of the same model, language model and options.
Writes FILE.json and FILE.md.
"""

import argparse
import gzip
import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.pipelines import Step, open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.report.stamp import Stamp
from tritone.search.options import SearchOptions

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "performance" / "accuracy.json.gz"
WEIGHTS = ROOT / "docs" / "performance" / "accuracy-weights.json"  # what --tune chose
WORK = ROOT / "training" / "runs" / "accuracy"  # the exported bundle and the journal; not part of the repository
LM = ROOT / "training" / "lm"

PRECISIONS = ("fp32", "fp16", "int8")
CHUNK_SIZE = 16  # encoder frames a step, 640 ms
SHIPPED_LEFT = 5  # chunks of history that the demo bundle has unless somebody asks for others
LEFT_CHUNKS = (None, -1, 8, SHIPPED_LEFT, 4, 2, 1, 0)  # None: whole utterances
FEW_LEFT_CHUNKS = (None, SHIPPED_LEFT, 0)  # of the digits, where there is little to see
BEAM = 10
STREAMS = 64  # at once
AN4_NOTE = (
    "Speakers are in no training part. The language model knows AN4's training transcripts alone; 25 of the 130 test "
    "sentences occur there word for word (commands, common names, one city and its zip codes), and two words of the "
    "test do not. An utterance lasts 2.7 s on the average, four chunks, so that longer histories see no more."
)
LONG_NOTE = (
    "Four recordings of 40 to 54 s, each all utterances of a test speaker with pauses, recognised without endpoints: "
    "far longer than anything in training, and not the single sentences that the language model knows and the weights "
    "were chosen on. Intervals over four recordings mean little."
)
FSDD_NOTE = "Isolated digits joined with pauses; the six speakers are in the training part too."
SEARCHES: Mapping[str, tuple[str, bool]] = {  # mode, and whether the language model takes part
    "greedy": ("greedy", False),
    "prefix beam": ("prefix-beam", False),
    "prefix beam + LM": ("prefix-beam", True),
    "rescoring": ("rescoring", False),
    "rescoring + LM": ("rescoring", True),
}


@dataclass(frozen=True)
class Spoken:
    """An utterance: its name, waveform (float32, at the model's rate) and what is said in it."""

    id: str
    waveform: Waveform
    text: str


@dataclass(frozen=True)
class Corpus:
    """Utterances, the language model that fits them, and the histories (see `LEFT_CHUNKS`) and precisions to try."""

    name: str
    title: str
    lm: Path
    utterances: Sequence[Spoken]
    left_chunks: Sequence[int | None] = LEFT_CHUNKS
    note: str = ""
    precisions: Sequence[str] = PRECISIONS


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row: which set, precision and search; `left_chunks` of history in streams, None for whole utterances."""

    set: str
    precision: str
    left_chunks: int | None
    search: str

    @property
    def mode(self) -> str:
        if self.left_chunks is None:
            return "offline"
        return f"streaming, {'all' if self.left_chunks < 0 else self.left_chunks} left"


Recognize = Callable[[Sequence[Waveform], SearchOptions], list[str]]
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help=f"choose weights on AN4 dev and write {WEIGHTS.name}")
    parser.add_argument("--resume", action="store_true", help="keep the exported bundle and the rows that are there")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the corpora")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for the bundle and the journal")
    parser.add_argument("--bundle", type=Path, help="a bundle with all precisions, instead of a new export")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="some of them (default: all)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="FILE.json.gz; the page is written beside it")
    arguments = parser.parse_args()
    precisions = tuple(arguments.precisions.split(","))
    if unknown := set(precisions) - set(PRECISIONS):
        parser.error(f"--precisions: {', '.join(sorted(unknown))} is none of {', '.join(PRECISIONS)}")
    stamp = Stamp.here(shlex.join(["python", "-m", "benchmarks.accuracy", *sys.argv[1:]]))
    if arguments.bundle is not None:
        bundle = Bundle.open(arguments.bundle)
    else:
        bundle = exported(arguments.work / "bundle", keep=arguments.resume)
    if arguments.tune:
        from benchmarks.accuracy.tuning import tune

        tune(bundle, development_set(arguments.data), stamp, WEIGHTS)
        return
    weights = json.loads(WEIGHTS.read_text(encoding="utf-8"))["chosen"]
    sets = public_sets(arguments.data)
    cases = [
        Case(set=each.name, precision=precision, left_chunks=left, search=search)
        for each in sets
        for precision, left, search in product(precisions, each.left_chunks, SEARCHES)
        if precision in each.precisions
    ]
    journal = arguments.work / "rows.jsonl"
    if not arguments.resume:
        journal.unlink(missing_ok=True)
    rows = list(measured(bundle, sets, cases, weights, journal))

    from benchmarks.accuracy.page import report, to_markdown

    content = report(rows, sets, stamp, weights)
    figures = json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n"
    arguments.output.write_bytes(gzip.compress(figures.encode(), mtime=0))
    page = arguments.output.with_suffix("").with_suffix(".md")
    page.write_text(to_markdown(content), encoding="utf-8")
    print(page)


def exported(folder: Path, *, keep: bool = False) -> Bundle:
    """The demo checkpoint as a bundle of all precisions; with `keep` the one that lies there."""
    if not (keep and (folder / "manifest.json").is_file()):
        from training.files import demo_checkpoint

        checkpoint = demo_checkpoint()
        beside = checkpoint.parent
        command = [
            *[Path(sys.executable).parent / "tritone", "export", "wenet"],
            *["--checkpoint", checkpoint, "--config", beside / "train.yaml"],
            *["--tokens", beside / "units.txt", "--cmvn", beside / "global_cmvn"],
            *["--streaming", "--weights", "int8", "--tail-padding-ms", "200", "--name", "demo-asr"],
            *["--precision", ",".join(PRECISIONS), "--output", folder],
        ]
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(part) for part in command], check=True)
    return Bundle.open(folder)


def public_sets(data: Path) -> list[Corpus]:
    """The public test sets of the tables."""
    from training.score import listed_set, tarred_set

    an4 = _spoken(tarred_set(data / "an4", "an4.tar"))
    long = _spoken(listed_set(data / "an4" / "long_test"))
    strings = _spoken(listed_set(data / "fsdd" / "strings"))
    return [
        Corpus("an4_test", "AN4 test", LM / "an4-3gram.arpa", an4, note=AN4_NOTE),
        Corpus("an4_long", "AN4 long recordings", LM / "an4-3gram.arpa", long, note=LONG_NOTE, precisions=("fp32",)),
        Corpus("fsdd_strings", "FSDD digit strings", LM / "digits.arpa", strings, FEW_LEFT_CHUNKS, FSDD_NOTE),
    ]


def development_set(data: Path) -> Corpus:
    """AN4's development part, whose speakers are neither in training nor in the test."""
    from training.score import tarred_set

    return Corpus("an4_dev", "AN4 dev", LM / "an4-3gram.arpa", _spoken(tarred_set(data / "an4", "an4.tar", "dev")))


def _spoken(utterances: Sequence[Any]) -> list[Spoken]:
    return [Spoken(each.id, each.waveform.astype(np.float32) / 32768.0, each.text) for each in utterances]


def open_recognizer(bundle: Bundle, precision: str, left_chunks: int | None, lm: Path) -> Recognize:
    """Open a pipeline; what it gives takes waveforms and options to texts."""
    search = SearchSettings(lm=lm)
    if left_chunks is None:
        offline = open_offline(bundle, placement=Placement(precision=precision), search=search)
        return lambda waveforms, options: [
            each.text for each in offline.recognize(waveforms, [options] * len(waveforms))
        ]
    streaming = open_streaming(
        bundle,
        placement=Placement(precision=precision),
        chunk_size=CHUNK_SIZE,
        left_chunks=left_chunks,
        capacity=STREAMS,
        search=search,
    )

    def recognize(waveforms: Sequence[Waveform], options: SearchOptions) -> list[str]:
        # Streams of one length end together; whole streams at once give what chunk after chunk gives.
        order = sorted(range(len(waveforms)), key=lambda index: len(waveforms[index]))
        texts = [""] * len(waveforms)
        for start in range(0, len(order), STREAMS):
            chosen = order[start : start + STREAMS]
            steps = [Step(streaming.open(options), waveforms[index], final=True) for index in chosen]
            for index, transcript in zip(chosen, streaming.advance(steps), strict=True):
                texts[index] = transcript.whole_text
        return texts

    return recognize


def options_of(search: str, weights: Mapping[str, Mapping[str, float]]) -> SearchOptions:
    """How a search of the tables is asked for."""
    mode, with_lm = SEARCHES[search]
    chosen = dict(weights.get(search, {}))
    if not with_lm:
        chosen["lm_weight"] = 0.0
    return SearchOptions(mode=mode, beam=BEAM, timestamps=False, **chosen)  # type: ignore[arg-type]


def measured(
    bundle: Bundle,
    sets: Sequence[Corpus],
    cases: Sequence[Case],
    weights: Mapping[str, Mapping[str, float]],
    journal: Path,
    open_: Callable[..., Recognize] = open_recognizer,
) -> Iterator[Row]:
    """The texts of every case, from the journal where it has them."""
    by_name = {each.name: each for each in sets}
    held = _read_journal(journal)
    opened: tuple[Any, Recognize | None] = (None, None)
    manifest = _sha256(bundle.path / "manifest.json")
    for case in cases:
        spoken, options = by_name[case.set], options_of(case.search, weights)
        lm = spoken.lm if SEARCHES[case.search][1] else None
        basis = {
            "case": asdict(case),
            "options": asdict(options),
            "model": manifest,
            "lm": lm and _sha256(lm),
            "utterances": _fingerprint(spoken.utterances),
        }
        key = hashlib.sha256(json.dumps(basis, sort_keys=True).encode()).hexdigest()
        if key not in held:
            place = (case.set, case.precision, case.left_chunks)
            if opened[0] != place:
                opened = place, open_(bundle, case.precision, case.left_chunks, spoken.lm)
            recognize = opened[1]
            assert recognize is not None
            start = time.perf_counter()
            texts = recognize([each.waveform for each in spoken.utterances], options)
            held[key] = {
                "key": key,
                "case": asdict(case),
                "texts": dict(zip((each.id for each in spoken.utterances), texts, strict=True)),
                "wall_s": round(time.perf_counter() - start, 2),
            }
            journal.parent.mkdir(parents=True, exist_ok=True)
            with journal.open("a", encoding="utf-8") as file:
                # The line before may have been cut off, so each begins on a new one.
                file.write("\n" + json.dumps(held[key], ensure_ascii=False))
            wrong = sum(each.text != text for each, text in zip(spoken.utterances, texts, strict=True))
            print(f"{case.set} {case.precision} {case.mode}, {case.search}: {wrong} of {len(texts)} wrong", flush=True)
        yield {**held[key], "case": case, "options": options}


def _read_journal(path: Path) -> dict[str, Row]:
    held: dict[str, Row] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # an empty line, or the last one of a run that was killed
                continue
            held[row["key"]] = row
    return held


def _fingerprint(utterances: Sequence[Spoken]) -> str:
    digest = hashlib.sha256()
    for each in utterances:
        digest.update(f"{each.id}\t{each.text}\t".encode() + each.waveform.tobytes())
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
