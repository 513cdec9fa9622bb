"""The load tests whose tables and plots are in docs/performance: one command a set.

    python -m benchmarks.published --list
    python -m benchmarks.published demo-cpu            # measures, writes docs/performance/demo-cpu
    python -m benchmarks.published demo-cpu --keep DIR    # on one machine: keeps the JSON of each run
    python -m benchmarks.published demo-cpu --from DIR    # on another: makes the page of it

Every run is a `tritone bench` command, printed before it starts, so a single figure can be made again by hand.
`benchmarks.gpu` measures GPUs.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import ROOT
from benchmarks.models.random_bundle import RANDOM_BUNDLES
from tritone.bundle.manifest import Runtime

OUTPUT = ROOT / "docs" / "performance"
KEPT = ("report.json", "report.md", "plots")
TRITONE = str(Path(sys.executable).parent / "tritone")
JASPER_SECONDS = "2,7,16.7"  # of NVIDIA's published Jasper tables
CONFORMERS = {
    # sizes of WeNet's published recipes: AISHELL-1 (46 M parameters with its decoder), WenetSpeech (120 M)
    "conformer-256": {"width": 256, "heads": 4, "linear_units": 2048, "kernel": 15, "vocab_size": 4233},
    "conformer-512": {"width": 512, "heads": 8, "linear_units": 2048, "kernel": 15, "vocab_size": 5537},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One `tritone bench` command: its labels and its arguments."""

    arguments: str
    labels: dict[str, str] = field(default_factory=dict)

    def command(self, bundle: str, report: Path) -> list[str]:
        labels = [part for name, value in self.labels.items() for part in ("--label", f"{name}={value}")]
        return [TRITONE, "bench", "--model", bundle, *shlex.split(self.arguments), *labels, "--report", str(report)]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A page of docs/performance. `model` is a shipped bundle or one of CONFORMERS, exported for `runtimes`."""

    title: str
    model: str
    runs: Sequence[Run]
    runtimes: tuple[Runtime, ...] = ("onnxruntime",)


SETS = {
    "demo-cpu": Published(
        title="demo-asr on two CPU cores",
        model="demo-asr",
        runs=(
            Run(arguments=f"--concurrency 1,2,4,8,16 --seconds {JASPER_SECONDS}", labels={"batching": "dynamic"}),
            Run(
                arguments=f"--concurrency 1 --batch-size 1,2,4,8 --seconds {JASPER_SECONDS} --build queue_delay_ms=0",
                labels={"batching": "static"},
            ),
            Run(arguments="--rate 5,10,20,40 --seconds 7 --arrivals poisson"),
            Run(arguments="--streaming --streams 25,50,100,200 --chunk-ms 640 --seconds 20"),
        ),
    ),
    "conformer-256-cpu": Published(
        title="Conformer of 12 layers, width 256 (AISHELL-1's size), random weights, on two CPU cores",
        model="conformer-256",
        runtimes=("onnxruntime", "torch"),
        runs=(
            *(
                Run(
                    arguments=f"--build runtime={runtime} --concurrency 1,4,8 --seconds 2,10 --measure-s 6",
                    labels={"runtime": runtime},
                )
                for runtime in ("onnxruntime", "torch")
            ),
            Run(arguments="--streaming --streams 5,10,20 --chunk-ms 640 --seconds 20"),
        ),
    ),
    "conformer-512-cpu": Published(
        title="Conformer of 12 layers, width 512 (WenetSpeech's size), random weights, on two CPU cores",
        model="conformer-512",
        runs=(
            Run(arguments="--concurrency 1,4 --seconds 2,10 --measure-s 10 --max-windows 5"),
            Run(arguments="--streaming --streams 2,4,8 --chunk-ms 640 --seconds 20"),
        ),
    ),
}


def measure(name: str, folder: Path, bundles: Path) -> list[Path]:
    """Run all load tests of a set; their reports lie in `folder`. What failed is told and left out."""
    published = SETS[name]
    bundle = _bundle(published, bundles)
    reports = []
    for index, run in enumerate(published.runs, 1):
        report = folder / f"{name}-{index}.json"
        command = run.command(bundle, report)
        print(f"[{index}/{len(published.runs)}] {shlex.join(['tritone', *command[1:]])}", flush=True)
        code = subprocess.run(command, check=False).returncode
        if code:
            print(f"ended with exit code {code}", flush=True)
        if report.is_file():
            reports.append(report)
    return reports


def publish(name: str, reports: Sequence[Path], output: Path) -> None:
    """Join reports into the page of a set: table, plots, raw figures."""
    folder = output / name
    with tempfile.TemporaryDirectory(prefix="published-") as scratch:
        command = [TRITONE, "bench", "report", *map(str, reports), "--title", SETS[name].title, "--output", scratch]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for kept in KEPT:
            shutil.move(Path(scratch) / kept, folder / kept)
    print(f"wrote {folder}")


def _bundle(published: Published, bundles: Path) -> str:
    if published.model not in CONFORMERS:
        return published.model
    from benchmarks.models.random_bundle import kept_bundle
    from benchmarks.models.wenet import ModelSize, random_bundle

    path = bundles / f"{published.model}-{'-'.join(published.runtimes)}"
    size = ModelSize(blocks=12, **CONFORMERS[published.model])
    options = {"name": published.model, "runtimes": published.runtimes}
    return str(kept_bundle(path, lambda: random_bundle(size, path, **options)).path)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a set of docs/performance again.")
    parser.add_argument("name", nargs="*", metavar="SET", help="sets to measure")
    parser.add_argument("--list", action="store_true", help="list the sets")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where their pages go")
    parser.add_argument("--keep", type=Path, help="keep each run's JSON here and write no page")
    parser.add_argument("--from", dest="source", type=Path, help="make the page from JSON kept there; measure nothing")
    parser.add_argument("--bundles", type=Path, default=RANDOM_BUNDLES)
    given = parser.parse_args()
    if given.list:
        for name, published in SETS.items():
            print(f"{name}\t{published.title}")
        return
    if unknown := sorted(set(given.name) - set(SETS)):
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(SETS)}")
    for name in given.name:
        if given.source:
            publish(name, sorted(given.source.glob(f"{name}-*.json")), given.output)
        elif given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            measure(name, given.keep, given.bundles)
        else:
            with tempfile.TemporaryDirectory(prefix="published-") as folder:
                publish(name, measure(name, Path(folder), given.bundles), given.output)


if __name__ == "__main__":
    main()
