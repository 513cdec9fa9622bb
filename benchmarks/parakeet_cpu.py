"""Parakeet 0.6B in int8 on two cores: its export, its memory served, and its speed beside sherpa-onnx and onnx-asr.

    python -m benchmarks.parakeet_cpu ../shared/data/librispeech_mini --python RIVALS/bin/python
        [--size parakeet-tdt-0.6b-v2] [--only prepare,one,together] [--output docs/performance/parakeet-cpu.json]

A model of the published size with random weights is written as NeMo's archive, exported with `tritone export nemo`, and
written in the layouts of the others with the operators of NeMo's export. Its joint network is balanced on speech: it
says five word pieces a second. RIVALS is an environment with sherpa-onnx and onnx-asr. Sides take turns on the same
recordings, after a warm-up; processor seconds are those of a side's whole tree of processes, so that neighbours on the
machine count little. --work keeps 2.5 GB of models from one run to the next.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.endurance.deployment import COMMAND
from benchmarks.measure import Bystanders, Finding, Setup, median_ratio, save, to_markdown
from benchmarks.models.nemo import SIZES
from benchmarks.parakeet_sides import BUNDLE, CLIPS, ONNX_ASR, RATE, SHERPA, load_clips
from benchmarks.sides import Side
from benchmarks.whisper_reference import recordings

ARCHIVE = "model.nemo"
TREE_GB = 4.0
REAL_TIME = 8.0
FASTER = {SHERPA: 1.2, ONNX_ASR: 1.0}
# by case and threads: this project's sides, and those of the others, of which the best counts
CASES: dict[str, tuple[int, tuple[str, ...], Mapping[str, tuple[str, ...]]]] = {
    "one": (2, ("here", "served"), {SHERPA: (SHERPA,), ONNX_ASR: (ONNX_ASR,)}),
    "one-thread": (1, ("here",), {SHERPA: (SHERPA,), ONNX_ASR: (ONNX_ASR,)}),
    "together": (2, ("here", "served"), {SHERPA: (f"{SHERPA} batch", f"{SHERPA} workers"), ONNX_ASR: (ONNX_ASR,)}),
}
WORDS = {
    "one": "one recording after the other, two threads",
    "one-thread": "one recording after the other, one thread",
    "together": "all recordings at once, two threads",
}


def prepare(arguments: argparse.Namespace, work: Path) -> Finding:
    """Write archive, bundle, the others' layouts and the recordings; the finding is the memory of the export."""
    archive = work / ARCHIVE
    _run(
        [
            sys.executable,
            "-m",
            "benchmarks.models.nemo",
            "--size",
            arguments.size,
            "--archive",
            "--output",
            str(archive),
        ]
    )
    # What a random network says in int8 is another thing than in float32: drift has no meaning.
    export = ["export", "nemo", str(archive), "--output", str(work / BUNDLE), "--precision", "int8", "--force"]
    took_s, peak_gb = _run([*COMMAND, *export])
    _run([sys.executable, "-m", "benchmarks.models.nemo_upstream", str(archive), str(work)])
    clips = [waveform for _, waveform in islice(recordings(arguments.folder), arguments.clips)]
    np.savez(work / CLIPS, **{f"{index:03}": clip for index, clip in enumerate(clips)})
    sizes = {
        "archive GB": archive.stat().st_size / 1e9,
        "bundle GB": sum(each.stat().st_size for each in (work / BUNDLE).iterdir()) / 1e9,
        "export s": took_s,
        "export's peak GB": peak_gb,
    }
    return Finding(
        key=f"export {arguments.size}",
        title=f"{arguments.size}: peak memory of `tritone export nemo --precision int8`, GB",
        value=peak_gb,
        bar=16.0,
        sense="at most",
        setup=Setup.here(arguments.size, "benchmarks.parakeet_cpu"),
        rows=[{name: round(value, 2) for name, value in sizes.items()}],
        notes=[
            "Checks of every graph beside the torch network are a part of it. Weights are in float16 in the archive."
        ],
    )


def _run(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; seconds, and the most memory that it had resident, in GB."""
    start = time.perf_counter()
    process = subprocess.Popen([*command])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:6])} … ended with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1e6


def measure(arguments: argparse.Namespace, work: Path, case: str) -> list[Finding]:
    """The findings of a case: times of the others ÷ ours, how many times real time ours is, its server's memory."""
    threads, ours, theirs = CASES[case]
    audio_s = sum(map(len, load_clips(work))) / RATE
    pythons = dict.fromkeys(ours, sys.executable) | {
        name: arguments.python for names in theirs.values() for name in names
    }
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        sides = [
            stack.enter_context(Side(name, _command(python, name, case, work, threads)))
            for name, python in pythons.items()
        ]
        warm = {side.name: side.work() for side in sides}
        for _ in range(arguments.repeats):
            with Bystanders() as bystanders:
                found = {side.name: side.work() for side in sides}
            row = {f"{kind} {name}": round(each[kind], 2) for kind in ("cpu", "wall") for name, each in found.items()}
            rows.append(row | {"others %": bystanders.percent})
    setup = Setup.here(arguments.size, "benchmarks.parakeet_cpu")
    common: dict[str, Any] = {"setup": setup, "rows": rows}
    words = f"{arguments.size}, int8, {WORDS[case]}"
    said = {name: sum(len(text.split()) for text in each["texts"]) for name, each in warm.items()}
    told = [f"{audio_s:.1f} s of audio; words said: " + ", ".join(f"{name} {count}" for name, count in said.items())]
    told.append("Peak of a process, MB: " + ", ".join(f"{name} {each['peak']:.0f}" for name, each in warm.items()))
    findings = []
    for one in ours:
        for rival, names in theirs.items():
            for kind, meant in (("cpu", "processor seconds"), ("wall", "wall clock")):
                value, basis = min(
                    (median_ratio(rows, f"{kind} {name}", f"{kind} {one}") for name in names), key=lambda each: each[0]
                )
                release = next(warm[name]["version"] for name in names)
                findings.append(
                    Finding(
                        key=f"{arguments.size} {case} {one} {rival} {kind}",
                        title=f"{words}, {one}, {meant}: {rival} {release}'s ÷ ours",
                        value=value,
                        bar=FASTER[rival],
                        sense="at least",
                        notes=[basis, *told],
                        **common,
                    )
                )
        busy = sorted(row[f"cpu {one}"] for row in rows)[len(rows) // 2]
        findings.append(
            Finding(
                key=f"{arguments.size} {case} {one} real time",
                title=f"{words}, {one}: x real time in processor seconds",
                value=audio_s * threads / busy,
                bar=REAL_TIME if threads == 2 else REAL_TIME / 2,
                sense="at least",
                notes=["Audio by the processor seconds of one of as many cores as there are threads.", *told],
                **common,
            )
        )
    # All of them are made of the same repeats, which one shows.
    findings[1:] = [replace(each, rows=[], notes=each.notes[:1]) for each in findings[1:]]
    if "served" in ours:
        tree = found["served"]["tree"]
        total = {kind: sum(each[kind] for each in tree.values()) / 1e3 for kind in ("pss", "rss", "peak")}
        findings.append(
            Finding(
                key=f"{arguments.size} {case} tree",
                title=f"{words}: memory of all processes of `tritone serve`, GB (sum of PSS)",
                value=total["pss"],
                bar=TREE_GB,
                sense="at most",
                setup=setup,
                rows=[
                    {"process": name.rpartition(" ")[0], **{kind: round(each[kind]) for kind in ("pss", "rss", "peak")}}
                    for name, each in tree.items()
                ],
                notes=[
                    f"MB of each process after all loads; peak is the most that it ever had resident. Sum of RSS "
                    f"{total['rss']:.2f} GB, of peaks {total['peak']:.2f} GB."
                ],
            )
        )
    return findings


def _command(python: str, side: str, case: str, work: Path, threads: int) -> list[str]:
    command = [python, "-m", "benchmarks.parakeet_sides", side, case.partition("-")[0]]
    return [*command, "--work", str(work), "--threads", str(threads)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of recordings with metadata.jsonl, the first of which are taken")
    parser.add_argument("--python", required=True, help="of an environment with sherpa-onnx and onnx-asr")
    parser.add_argument("--size", choices=[name for name, size in SIZES.items() if size.head != "ctc"], default=SIZE)
    parser.add_argument("--only", default=",".join(("prepare", *CASES)), help="some of %(default)s")
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=Path, help="folder of the models, kept; by default one that is removed")
    parser.add_argument("--output", type=Path, default=Path("docs/performance/parakeet-cpu.json"))
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="parakeet-cpu-"))
    work.mkdir(parents=True, exist_ok=True)
    met = []
    try:
        for case in arguments.only.split(","):
            findings = [prepare(arguments, work)] if case == "prepare" else measure(arguments, work, case)
            for each in findings:
                print(each, flush=True)
            met += [each.is_met for each in findings]
            page = to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION)
            arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    finally:
        if arguments.work is None:
            shutil.rmtree(work)
    return 0 if all(met) else 1


SIZE = "parakeet-tdt-0.6b-v2"
TITLE = "Parakeet 0.6B in int8 on two cores"
INTRODUCTION = """\
Random weights of the published size, the same on all sides: 24 FastConformer layers of width 1024, 8 x subsampling, two
LSTM layers of 640, joint of 640, TDT durations 0 to 4. The joint network's last layer is balanced on ten seconds of
speech: every token, and every duration, varies equally over frames, and the blank's bias is set by halving until greedy
search says five word pieces a second, about what English has. The others run graphs with the operators of NeMo's
export, quantised as sherpa-onnx's script for these models does it; texts differ, since int8 moves random networks, and
sherpa-onnx, as its script has it, goes on by a frame where the duration is 0. Sides are processes of their own that
take turns on the same recordings of LibriSpeech, greedy, after a warm-up. The machine was shared, so processor seconds
(user and system of a side's whole tree of processes, our client among them) say more than the clock; "others %" is how
much of the cores foreign processes took. Above 1 this project takes less. **The others have onnxruntime's threads spin
while they wait for each other, which their processor seconds count: what has one thread for each call ("one thread",
and the workers of "at once") is free of that, and is what to quote.** Written by
`python -m benchmarks.parakeet_cpu`."""


if __name__ == "__main__":
    sys.exit(main())
