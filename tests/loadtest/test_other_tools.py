"""NVIDIA's perf_analyzer itself, on a real server with the files that `tritone bench input` writes for it.

It is looked for beside the interpreter, where `make test-all` puts it, on PATH, or where PERF_ANALYZER says;
without it the tests are skipped.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import quiet_options
from toy import SAMPLE_RATE, toy_waveform
from tritone.loadtest.plans.perf_input import PerfInput, write_inputs
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer
from tritone.server.installation import find_installation

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "serving" / "perf-analyzer.md"
WORDS = ["one", "two three", "four five six"]


@pytest.fixture(scope="module")
def served(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("others") / "repository"
    build_repository([toy_bundle], repository, options=ModelOptions(queue_delay_ms=0))
    with TritonServer(repository, quiet_options()) as server:
        yield server


@pytest.fixture(scope="module", params=[False, True], ids=["samples", "base64"])
def inputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[PerfInput]:
    folder = tmp_path_factory.mktemp("inputs")
    waveforms = map(toy_waveform, WORDS)
    return write_inputs(waveforms, folder, sample_rate=SAMPLE_RATE, chunk_s=0.1, as_base64=request.param)


def perf_analyzer(folder: Path, *arguments: str) -> str:
    """What it prints, with the libraries that it needs and that the engine's wheel has under names of its own."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    binary = os.environ.get("PERF_ANALYZER") or shutil.which("perf_analyzer", path=places)
    if not binary:
        pytest.skip("there is no perf_analyzer: `make .venv/bin/perf_analyzer` fetches it, or PERF_ANALYZER names it")
    installed = find_installation().library_folders
    for name, stem in (("libb64.so.0d", "libb64"), ("libcudart.so.12", "libcudart")):
        found = next((each for place in installed for each in sorted(place.glob(f"{stem}-*.so*"))), None)
        if found is not None and not (folder / name).exists():
            (folder / name).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, (folder, *installed)))
    usual = ("-p", "500", "-r", "3", "-s", "1000000", "--percentile", "95")  # any three windows will do
    done = subprocess.run(
        [binary, *arguments, *usual], env=environment, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    if arguments == ("--help",):
        return done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_names_options_that_perf_analyzer_has(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Its options and ours")[2].partition("\n## ")[0]
    theirs = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {option for cell in theirs for option in re.findall(r"`(--?[a-z][\w-]*)", cell)}
    told = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", perf_analyzer(tmp_path, "--help")))
    assert len(named) > 25
    assert named - told == set()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_perf_analyzer_sends_whole_utterances_from_our_file(
    served: TritonServer, inputs: list[PerfInput], protocol: str, tmp_path: Path
) -> None:
    address = served.grpc_address if protocol == "grpc" else served.http_address
    arguments = ("-m", "toy", "-u", address, "-i", protocol, "--input-data", str(inputs[0].path))
    told = perf_analyzer(tmp_path, *arguments, "--concurrency-range", "2")
    (count,) = re.findall(r"^\s*Request count: (\d+)", told, re.MULTILINE)
    assert int(count) > 10


def test_perf_analyzer_sends_streams_from_our_file(
    served: TritonServer, inputs: list[PerfInput], tmp_path: Path
) -> None:
    arguments = ("-m", "toy-streaming", "-u", served.grpc_address, "-i", "grpc", "--input-data", str(inputs[1].path))
    told = perf_analyzer(tmp_path, *arguments, "--concurrency-range", "3")
    (requests,) = re.findall(r"^\s*Request count: (\d+)", told, re.MULTILINE)
    (sequences,) = re.findall(r"^\s*Sequence count: (\d+)", told, re.MULTILINE)
    assert int(sequences) > 3
    assert int(requests) / int(sequences) == pytest.approx(inputs[1].requests / len(WORDS), rel=0.3)
