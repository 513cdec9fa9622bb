"""Pythons of this machine, and the quick tests on each of them with the newest and the lowest versions allowed.

    python tests/support/versions.py  ->  a table of Markdown, one row for each Python and resolution

Environments are made by uv, which alone resolves to the lowest versions; it keeps what it fetched, and links it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE = ("3.11", "3.12")  # Pythons that the engine runs on
OTHERS = ("3.13", "3.14")  # of which the rest is for
# What needs no engine: the rooms of the code below the server, and the gateway's parts that ask none.
WITHOUT_ENGINE = ("audio", "bundle", "corpus", "diarization", "families", "formats", "longform", "parity", "pipelines",
                  "runtime", "search", "speakers", "texts")  # fmt: skip
USABLE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
SHOWN = ("numpy", "onnxruntime", "torch", "tritonclient", "typer", "av")


def find_python(version: str) -> Path | None:
    """The first Python of a version ("3.12") that can make environments: on PATH, then pyenv's; None without one."""
    on_path = (Path(folder) / f"python{version}" for folder in os.environ.get("PATH", os.defpath).split(os.pathsep))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (*on_path, *sorted(root.glob(f"{version}.*/bin/python"))):
        if os.access(path, os.X_OK):
            seen = subprocess.run([path, "-c", USABLE], capture_output=True, text=True, encoding="utf-8", check=False)
            if seen.stdout.strip() == version:  # a shim may stand for a Python that is not there
                return path
    return None


def make_environment(folder: Path, python: Path, *arguments: str | Path) -> Path:
    """An environment in an empty folder, and in it what `uv pip install` takes as arguments; returns its Python."""
    uv = shutil.which("uv", path=Path(sys.executable).parent) or "uv"
    # Not in the project's folder: the constraints of its lock would narrow every resolution.
    subprocess.run([uv, "venv", "--quiet", "--python", python, folder], check=True, cwd=folder.parent)
    made = folder / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", made, *arguments], check=True, cwd=folder.parent)
    return made


def run(python: Path, version: str, workers: int) -> tuple[str, str]:
    """The quick tests in an environment: what pytest counts, and the versions of `SHOWN`."""
    served = ROOT / "tests" / "parity" / "test_served.py"
    others = [*(str(ROOT / "tests" / each) for each in WITHOUT_ENGINE), f"--ignore={served}"]
    tests = [] if version in ENGINE else others
    options = ["-n", str(workers), "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    started = time.monotonic()
    with subprocess.Popen(
        [python, "-m", "pytest", *options, *tests], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            print(line, end="", file=sys.stderr, flush=True)
            last = line
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for count, kind in COUNT.findall(last):
        counts["failed" if kind.startswith("error") else kind] += int(count)
    code = f"from importlib.metadata import version\nfor each in {SHOWN}: print(each, version(each), end=', ')"
    shown = subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8", check=True).stdout.rstrip(", ")
    numbers = " | ".join(f"{counts[kind]:,}" for kind in counts)
    return f"{numbers} | {(time.monotonic() - started) / 60:.0f}", shown


def rows(arguments: argparse.Namespace) -> Iterator[str]:
    """The rows of the table, each as soon as it is known."""
    yield f"{date.today()}, {os.cpu_count()} cores, `make test-versions`"
    yield ""
    yield "| Python | versions | passed | failed | skipped | minutes | with |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for version in arguments.python or (*ENGINE, *OTHERS):
        python = find_python(version)
        for resolution in arguments.resolution or ("highest", "lowest-direct"):
            if python is None:
                yield f"| {version} | {resolution} | not run: no such Python here | | | | |"
                continue
            folder = arguments.folder / f"{version}-{resolution}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            packages = ("--resolution", resolution, "--editable", f"{ROOT}[export,dev]")
            try:
                counts, shown = run(make_environment(folder, python, *packages), version, arguments.workers)
            except subprocess.CalledProcessError as error:
                yield f"| {version} | {resolution} | not run: exit code {error.returncode} of uv | | | | |"
                continue
            yield f"| {version} | {resolution} | {counts} | {shown} |"
            shutil.rmtree(folder)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--python", action="append", metavar="VERSION", help="e.g. 3.12; if not given all")
    parser.add_argument("--resolution", action="append", choices=["highest", "lowest-direct"], help="if not given both")
    parser.add_argument("--workers", type=int, default=2, help="processes that share the tests (default: 2)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions", help="of the environments")
    for row in rows(parser.parse_args()):
        print(row, flush=True)


if __name__ == "__main__":
    main()
