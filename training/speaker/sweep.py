"""Several runs of `training.speaker.train` at once on one GPU, and which of them is best on the development speakers.

    python -m training.speaker.sweep first --material /tmp/material.pt --output /tmp/runs --minutes 8

A round of sweep.yaml names runs and what each changes in the settings file. With `from: best`, it changes the settings
of the best run that the output folder holds. Each run leaves a folder there, and its settings beside it.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
# What counts: error rates of the development sets. LibriSpeech's pieces of one recording are the easiest pairs.
WEIGHTS = {"an4": 1.0, "librispeech_mini": 1.0, "speech_commands": 0.5}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put in, section by section; `model_args` are replaced as a whole."""
    result = dict(copy.deepcopy(base))
    for name, value in changes.items():
        inside = isinstance(value, Mapping) and name != "model_args" and isinstance(result.get(name), Mapping)
        result[name] = merged(result[name], value) if inside else copy.deepcopy(value)
    return result


def score(folder: Path) -> float:
    """Weighted mean of a run's development error rates in percent; infinite without any."""
    file = folder / "dev.json"
    rates = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    known = {name: weight for name, weight in WEIGHTS.items() if name in rates}
    if not known:
        return float("inf")
    return float(sum(weight * rates[name] for name, weight in known.items()) / sum(known.values()))


def best_run(output: Path) -> Path:
    """The folder of the best run with development speakers of its own.

    Raises:
        FileNotFoundError: no run has been scored.
    """
    folders = [
        file.with_suffix("")
        for file in output.glob("*.yaml")
        if not yaml.safe_load(file.read_text(encoding="utf-8")).get("train_on_dev")
        and score(file.with_suffix("")) < float("inf")
    ]
    if not folders:
        raise FileNotFoundError(f"{output} holds no run that was scored; run a round without `from: best` first")
    return min(folders, key=score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("round", help="name of a round in the file")
    parser.add_argument("--rounds", type=Path, default=HERE / "sweep.yaml")
    parser.add_argument("--config", type=Path, default=HERE.parent / "demo-speaker.yaml")
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0, help="of each run; they run side by side")
    parser.add_argument("--steps", type=int, help="at most, of each run")
    parser.add_argument("--archive", type=Path, help="folder for one tar a run, without resume.pt")
    parser.add_argument("--device")
    arguments = parser.parse_args()

    plan = yaml.safe_load(arguments.rounds.read_text(encoding="utf-8"))[arguments.round]
    base: Mapping[str, Any] = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    arguments.output.mkdir(parents=True, exist_ok=True)
    if plan.get("from") == "best":
        best = best_run(arguments.output)
        print(f"settings of {best.name}, development error {score(best):.2f} %", flush=True)
        base = yaml.safe_load(best.with_suffix(".yaml").read_text(encoding="utf-8"))
    processes: dict[str, subprocess.Popen[bytes]] = {}
    for name, changes in plan["runs"].items():
        settings = merged(base, changes or {})
        file = arguments.output / f"{name}.yaml"
        file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-m", "training.speaker.train", "--config", file, "--material", arguments.material]
        command += ["--output", arguments.output / name, "--minutes", str(arguments.minutes)]
        command += ["--steps", str(arguments.steps)] if arguments.steps else []
        command += ["--device", arguments.device] if arguments.device else []
        command += ["--train-on-dev"] if settings.get("train_on_dev") else []
        # Runs that start together would read and allocate together.
        time.sleep(1.0 if processes else 0.0)
        processes[name] = subprocess.Popen([str(part) for part in command])
    failed = [name for name, process in processes.items() if process.wait() != 0]
    for name in processes:
        folder = arguments.output / name
        if (folder / "dev.json").is_file():
            print(
                f"{name:16s} {score(folder):6.2f}  "
                f"{json.dumps(json.loads((folder / 'dev.json').read_text(encoding='utf-8')))}"
            )
            if arguments.archive is not None:
                _archive(folder, arguments.archive / f"{name}.tar")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _archive(folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w") as archive:
        archive.add(folder.with_suffix(".yaml"), f"{folder.name}.yaml")
        for file in sorted(folder.iterdir()):
            if file.name != "resume.pt" and file.suffix != ".partial":
                archive.add(file, f"{folder.name}/{file.name}")


if __name__ == "__main__":
    main()
