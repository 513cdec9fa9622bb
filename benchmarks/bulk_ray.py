"""`tritone transcribe --ray` beside the command alone, and two workers beside one, as ratios from one run.

    python -m benchmarks.bulk_ray [--count 640] [--repeats 3] [--output docs/performance/bulk-ray.json]

The shipped clips, again and again, are transcribed in turn by the command alone, which has all CPUs; by one worker with
as many CPUs; and by one and two workers with one CPU each. Start-up is told apart: a rate is that from the first block
of results to the last one, as they come out of the command. `--ray local` starts a cluster each time. What has as many
threads must have the same output.
"""

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.measure import Bystanders, Finding, Setup, median_ratio, save, text_row, to_markdown
from benchmarks.published import TRITONE
from tritone import Recognizer
from tritone.corpus.clips import read_clips

BUNDLE = "demo-asr"
BLOCK = Recognizer.batch_inputs
TITLE = "Bulk work on Ray"
INTRODUCTION = "`tritone transcribe` with workers of a Ray cluster on this machine, beside the same command without it."
BARS = {"one worker": 0.9, "two workers": 1.6}


@dataclass(frozen=True)
class Run:
    """A command that ran: seconds until its first block was out, and from there to its end; and all that it wrote."""

    start_s: float
    work_s: float
    output: bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=640, help="recordings (default: 640)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="JSON file; a page is written beside it")
    given = parser.parse_args()
    cpus = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="tritone-bulk-") as folder:
        clips = read_clips()
        wavscp = Path(folder) / "wav.scp"
        wavscp.write_text(
            "".join(f"u{number} {clips[number % len(clips)].path}\n" for number in range(given.count)), encoding="utf-8"
        )
        run = partial(transcribe, wavscp)
        sides = {
            "alone": partial(run),
            f"1 worker of {cpus}": partial(run, "--workers", "1", "--cpus-per-worker", str(cpus)),
            "1 worker": partial(run, "--workers", "1"),
            "2 workers": partial(run, "--workers", "2"),
        }
        rows, wrong = [], []
        for turn in range(given.repeats):
            runs: dict[str, Run] = {}
            with Bystanders() as bystanders:
                for name in list(sides)[turn % 2 :] + list(sides)[: turn % 2]:
                    runs[name] = sides[name]()
            row: dict[str, float] = {f"{name} s": each.work_s for name, each in runs.items()}
            row |= {f"{name} start s": each.start_s for name, each in runs.items()}
            rows.append(row | {"others %": bystanders.percent})
            print(text_row(rows[-1]), flush=True)
            same = list(sides)
            wrong += [pair for pair in (same[:2], same[2:]) if runs[pair[0]].output != runs[pair[1]].output]
    if wrong:
        raise SystemExit(f"outputs differ between {wrong}")
    names = list(sides)
    setup = Setup.here(BUNDLE, "benchmarks.bulk_ray")
    findings = []
    for key, (slow, fast) in {"one worker": (names[0], names[1]), "two workers": (names[2], names[3])}.items():
        ratio, basis = median_ratio(rows, f"{slow} s", f"{fast} s")
        note = f"{given.count} recordings; the first {BLOCK} are start-up. Outputs were compared byte for byte."
        title = f"throughput of {fast} ÷ {slow}"
        bar = BARS[key]
        findings.append(
            Finding(
                key=f"bulk-ray-{key.replace(' ', '-')}",
                title=title,
                value=ratio,
                bar=bar,
                sense="at least",
                setup=setup,
                rows=rows,
                notes=[basis, note],
            )
        )
        print(findings[-1], flush=True)
    if given.output is not None:
        page = to_markdown(save(findings, given.output), TITLE, INTRODUCTION)
        given.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if all(each.is_met for each in findings) else 1


def transcribe(wavscp: Path, *ray: str) -> Run:
    """Run the command, on Ray with these options if there are any."""
    command = [TRITONE, "transcribe", "--model", BUNDLE, "--wavscp", str(wavscp), "--json", "--details"]
    command += ["--ray", "local", *ray] if ray else []
    started = time.perf_counter()
    lines: list[bytes] = []
    begun = started
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            lines.append(line)
            last = time.perf_counter()
            if len(lines) == BLOCK:
                begun = last
        errors = process.stderr.read()
    if process.returncode or len(lines) <= BLOCK:
        raise SystemExit(f"the command failed: {errors.decode()[-2000:]}")
    return Run(begun - started, last - begun, b"".join(lines))


if __name__ == "__main__":
    raise SystemExit(main())
