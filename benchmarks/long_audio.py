"""Long recordings beside the short ones that they are joined of: errors, throughput, and memory by length.

    python -m benchmarks.long_audio --data DIR --vad BUNDLE [--split test] [--hours 3] [--rounds 3] [--only wer,speed]

`--data` is the folder of a corpus: a tar of audio and metadata.jsonl with `path` (inside the tar), `text`, `split`.
Recordings are joined with pauses of 0.4 to 1.6 s (`benchmarks/joined.py`), as they are and in random order. With voice
activity (`--vad`) and without, all in this process: word error rates of the joined recording and of its parts; seconds
of audio recognised in a second of both, pauses included, in turn; the largest memory of `tritone transcribe` with a
recording of three minutes and with one of `--hours`, the same parts over and over.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import tritone
from benchmarks.joined import Joined, JoinOptions, Part, write_joined
from benchmarks.published import TRITONE
from tritone.audio import read_audio
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.score import score_utterance

RATE = 16000
SHORT_S = 180.0
MAX_WER_RATIO, MAX_WER_MORE = 1.05, 0.3  # of the parts' WER, and points
MIN_THROUGHPUT, MAX_MEMORY = 0.9, 1.5
WAYS = ("windows", "vad")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A finding and its bar."""

    what: str
    found: str
    bar: str
    ok: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bundle", default="demo-asr")
    parser.add_argument("--vad", type=Path, required=True, help="the bundle of a detector, of `tritone export silero`")
    parser.add_argument("--split", default="test")
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="wer,speed,memory")
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="long-audio-") as scratch:
        folder = Path(scratch)
        texts = extract(asked.data, asked.split, folder / "parts")
        paths = sorted(texts)
        random.Random(0).shuffle(paths)
        if "wer" in asked.only or "speed" in asked.only:
            whole = folder / "joined.flac"
            known = write_joined(whole, parts(paths, texts), sample_rate=RATE, options=JoinOptions())
            print(f"{len(paths)} parts, {known.duration_s:.0f} s joined, load {_load()}", flush=True)
            rows += accuracy_and_speed(asked, paths, texts, whole, known)
        if "memory" in asked.only:
            rows += memory(asked, paths, texts, folder)
    for row in rows:
        print(f"{'ok  ' if row.ok else 'MISS'} {row.what}: {row.found} (bar {row.bar})")
    return 0 if all(row.ok for row in rows) else 1


def extract(data: Path, split: str, folder: Path) -> dict[Path, str]:
    """The recordings of a split, and what is said in each."""
    with (data / "metadata.jsonl").open(encoding="utf-8") as lines:
        wanted = {row["path"]: row["text"] for row in map(json.loads, lines) if row["split"] == split}
    (archive,) = data.glob("*.tar")
    texts = {}
    with tarfile.open(archive) as tar:
        for index, (name, text) in enumerate(sorted(wanted.items())):
            member = tar.extractfile(name)
            assert member is not None
            path = folder / f"{index:05d}{Path(name).suffix}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(member.read())
            texts[path] = text
    return texts


def parts(paths: Sequence[Path], texts: dict[Path, str], least_s: float = 0.0) -> Iterator[Part]:
    """The parts once, or again and again until they have so many seconds."""
    have_s = 0.0
    for index, path in enumerate(cycle(paths) if least_s else paths):
        samples = read_audio(path, RATE)
        yield Part(id=f"{index}", samples=samples, text=texts[path])
        have_s += len(samples) / RATE + 1.0
        if least_s and have_s >= least_s:
            return


def accuracy_and_speed(
    asked: argparse.Namespace, paths: Sequence[Path], texts: dict[Path, str], whole: Path, known: Joined
) -> list[Row]:
    normalizer = Normalizer(Normalization())
    models = {
        "windows": tritone.load(asked.bundle, max_audio_s=60.0),
        "vad": tritone.load(asked.bundle, max_audio_s=60.0, vad=asked.vad),
    }

    def errors(pairs: Sequence[tuple[str, str]]) -> tuple[int, int]:
        counts = [score_utterance("", said, heard, normalizer).words for said, heard in pairs]
        return (
            sum(each.substitutions + each.deletions + each.insertions for each in counts),
            sum(each.hits + each.substitutions + each.deletions for each in counts),
        )

    names = [str(path) for path in paths]
    speech_s = sum(len(read_audio(path, RATE)) for path in paths) / RATE
    models["windows"].transcribe(names[:8])  # warm
    models["vad"].transcribe(str(whole))
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    texts_of: dict[str, str] = {}
    short: list[str] = []
    for _ in range(asked.rounds if "speed" in asked.only else 1):
        started = time.perf_counter()
        results = list(models["windows"].transcribe_iter(names))
        usual_s = time.perf_counter() - started
        short = [each.text for each in sorted(results, key=lambda each: each.index)]
        for way in WAYS:
            started = time.perf_counter()
            (result,) = models[way].transcribe_iter([str(whole)])
            took_s = time.perf_counter() - started
            texts_of[way] = result.text
            ratios[way].append(known.duration_s / took_s / (speech_s / usual_s))
        shown = ", ".join(f"{way} {ratios[way][-1]:.2f}" for way in WAYS)
        print(
            f"parts {speech_s / usual_s:.0f} x real time; of that: {shown}; load {os.getloadavg()[0]:.1f}", flush=True
        )
    wrong, words = errors([(texts[path], heard) for path, heard in zip(paths, short, strict=True)])
    bar = MAX_WER_RATIO * 100 * wrong / words + MAX_WER_MORE
    rows = []
    for way in WAYS:
        found = 100 * errors([(known.text, texts_of[way])])[0] / words
        said = f"{found:.2f} %, parts {100 * wrong / words:.2f} %, {words} words"
        rows.append(Row(what=f"WER, {way}", found=said, bar=f"{bar:.2f} %", ok=found <= bar))
        if "speed" in asked.only:
            middle = statistics.median(ratios[way])
            spread = f"{middle:.2f} ({min(ratios[way]):.2f} to {max(ratios[way]):.2f})"
            rows.append(
                Row(what=f"throughput, {way}", found=spread, bar=f"{MIN_THROUGHPUT}", ok=middle >= MIN_THROUGHPUT)
            )
    return rows


def memory(asked: argparse.Namespace, paths: Sequence[Path], texts: dict[Path, str], folder: Path) -> list[Row]:
    files = {}
    for name, seconds in (("short", SHORT_S), ("long", 3600 * asked.hours)):
        files[name] = folder / f"{name}.flac"
        write_joined(files[name], parts(paths, texts, seconds), sample_rate=RATE)
    rows = []
    for way in WAYS:
        peaks = {}
        for name, path in files.items():
            started = time.perf_counter()
            peaks[name] = peak_mb(asked, path, way)
            print(f"{way}, {name}: {peaks[name]:.0f} MB, {time.perf_counter() - started:.0f} s", flush=True)
        ratio = peaks["long"] / peaks["short"]
        rows.append(Row(what=f"memory, {way}", found=f"{ratio:.2f}", bar=f"{MAX_MEMORY}", ok=ratio <= MAX_MEMORY))
    return rows


def peak_mb(asked: argparse.Namespace, path: Path, way: str) -> float:
    """The largest resident memory of `tritone transcribe` with this file, in MB."""
    command = [TRITONE, "transcribe", "--model", asked.bundle, str(path)]
    command += ["--vad", str(asked.vad)] if way == "vad" else []
    # A process of its own, so that the largest of all children is that of this one.
    script = "import resource, subprocess, sys\nsubprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
    script += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", script, *command], check=True, capture_output=True, encoding="utf-8")
    return int(done.stdout) / 1024


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
