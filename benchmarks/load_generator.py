"""What the checks of the load generator share: their page, their windows, their options."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import ROOT, Finding, save, to_markdown
from tritone.loadtest.options import WindowPlan

OUTPUT = ROOT / "docs" / "performance" / "load-generator.json"
TITLE = "The load generator, checked"
INTRODUCTION = """\
How far the figures of `tritone bench` can be trusted: whether NVIDIA's perf_analyzer finds the same on the same running
server (written by `python -m benchmarks.agreement`), and how much load the generator can make at all (by `python -m
benchmarks.ceiling`). Generators and server share the cores. "others %" is how much of the cores foreign processes took:
above a few percent a figure is only indicative. Raw rows are in [load-generator.json](load-generator.json), what
perf_analyzer measures and how to get it in [perf-analyzer.md](../perf-analyzer.md)."""
WINDOWS = WindowPlan(warmup_s=1.0, window_s=2.0, max_windows=6)


def add_options(parser: argparse.ArgumentParser, repeats: int = 5) -> None:
    """The options that all checks have."""
    parser.add_argument("--perf-analyzer", type=Path, help="the program perf_analyzer (default: on PATH)")
    parser.add_argument("--protocols", default="grpc,http", help="some of grpc,http (default: both)")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"of every comparison (default: {repeats})")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    parser.add_argument("--cores", type=int, default=2, help="CPU cores for everything together (default: 2)")


def use_cores(parser: argparse.ArgumentParser, cores: int) -> None:
    """Run this process and its children on the first cores only."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < cores:
        parser.error(f"--cores {cores}: this process may use {len(usable)}")
    os.sched_setaffinity(0, usable[:cores])


def write(findings: Sequence[Finding], output: Path) -> None:
    """Add findings to the JSON file and write the page beside it."""
    page = to_markdown(save(findings, output), TITLE, INTRODUCTION)
    output.with_suffix(".md").write_text(page, encoding="utf-8")
