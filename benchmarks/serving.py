"""The numbers of serving, as ratios from one run.

    python -m benchmarks.serving [--bundle demo-asr|DIR] [--only grpc,pipeline] [--output FILE.json]

Prints every repeat, and writes the JSON with its conditions and the page beside it (FILE.md). Runs on CPU cores 0 to
`--cores` - 1, ends by itself after some minutes, and exits 1 when a bar is not met.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.first_request import first_over_median
from benchmarks.measure import ROOT, Finding, Setup, save, to_markdown
from benchmarks.memory import memory_growth
from benchmarks.streams import concurrent_streams
from benchmarks.throughput import grpc_over_pipeline, pipeline_over_onnxruntime
from tritone.bundle import Bundle

MEASURES: dict[str, Callable[[Bundle, Setup], Finding]] = {
    "grpc": grpc_over_pipeline,
    "pipeline": pipeline_over_onnxruntime,
    "first": first_over_median,
    "memory": memory_growth,
    "streams": concurrent_streams,
}
OUTPUT = ROOT / "docs" / "performance" / "serving.json"
TITLE = "What serving costs"
INTRODUCTION = """\
Ratios from one run each, all sides on the same machine, in turn, on the same audio, after a warm-up. Client, load
generator and server share the cores. "others %" is how much of the cores foreign processes took during a repeat: above
a few percent a figure is only indicative. Written by `python -m benchmarks.serving`; raw rows are in
[serving.json](serving.json)."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default="demo-asr", help="shipped bundle or folder (default: demo-asr)")
    parser.add_argument("--only", default=",".join(MEASURES), help=f"some of {','.join(MEASURES)}")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores for everything together (default: 2)")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in MEASURES]:
        parser.error(f"--only {','.join(unknown)}: choose from {','.join(MEASURES)}")
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < arguments.cores:
        parser.error(f"--cores {arguments.cores}: this process may use {len(usable)}")
    os.sched_setaffinity(0, usable[: arguments.cores])  # the server inherits it
    bundle = Bundle.open(arguments.bundle)
    findings = []
    for name in names:
        findings.append(MEASURES[name](bundle, Setup.here(bundle.manifest.name)))
        print(findings[-1], flush=True)
        page = to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION)
        arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if all(finding.is_met for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
