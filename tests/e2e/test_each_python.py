"""The main things on the other Pythons of this machine, each in an environment of its own with locked versions.

This Python has all other tests. Where the engine does not run (3.13 and newer) the gateway asks a server of this one.
"""

import io
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from packaging.requirements import Requirement

from serving import quiet_options
from tritone.repository import build_repository
from tritone.server import TritonServer
from versions import ENGINE, OTHERS, ROOT, find_python, make_environment

pytestmark = pytest.mark.slow

CLIPS = ROOT / "src" / "tritone" / "corpus" / "clips"
CLIP, TEXT = CLIPS / "clip-01.flac", "nine one one seven eight"
CONTAINERS = {"m4a": ("ipod", "aac"), "mp4": ("mp4", "aac"), "webm": ("webm", "libopus"), "mkv": ("matroska", "aac"),
              "mp3": ("mp3", "libmp3lame"), "opus": ("ogg", "libopus")}  # fmt: skip
BY_LIBSNDFILE = ("wav", "flac", "aiff", "ogg")
LISTENING = re.compile(r"(http://127\.0\.0\.1:\d+)")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
TIMEOUT_S = 120


@dataclass(frozen=True)
class Installed:
    """Tritone in an environment of its own."""

    version: str
    python: Path

    def run(self, *command: str | Path) -> str:
        """Run a command of the environment in an empty folder; returns what it prints."""
        program = self.python.parent / str(command[0])
        done = subprocess.run(
            [program, *command[1:]],
            cwd=self.python.parents[2],
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=[each for each in (*ENGINE, *OTHERS) if each != HERE])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    version: str = request.param
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    folder = tmp_path_factory.mktemp(version)
    source = folder / "source"  # setuptools writes into it
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    locked = ROOT / "constraints.txt"
    extras = f"{source}[gateway,import]"
    return Installed(version, make_environment(folder / "made", python, "--constraint", locked, extras))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One clip in every container."""
    folder = tmp_path_factory.mktemp("containers")
    samples, rate = soundfile.read(CLIP, dtype="float32")
    for suffix in BY_LIBSNDFILE:
        soundfile.write(folder / f"clip.{suffix}", samples, rate)
    for suffix, (form, codec) in CONTAINERS.items():
        (folder / f"clip.{suffix}").write_bytes(encoded(samples, rate, form, codec))
    return sorted(folder.iterdir())


def encoded(samples: np.ndarray, rate: int, form: str, codec: str) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate, layout="mono")
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size)
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("behind") / "repository"
    build_repository(["demo-asr"], repository)
    with TritonServer(repository, quiet_options()) as running:
        yield running


def test_what_is_installed_is_what_the_lock_says(installed: Installed) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    environment = {"python_version": installed.version, "python_full_version": f"{installed.version}.0"}
    pins = {
        each.name: str(each.specifier)
        for each in requirements
        if each.marker is None or each.marker.evaluate(environment)
    }
    code = "from importlib.metadata import distributions\nfor d in distributions(): print(d.name, d.version)"
    found = dict(line.split() for line in installed.run("python", "-c", code).splitlines())
    assert {name for name in found if name.lower().replace("_", "-").replace(".", "-") not in pins} == {"tritone"}


def test_a_clip_is_read_from_every_container(installed: Installed, recordings: list[Path]) -> None:
    lines = installed.run("tritone", "transcribe", "--model", "demo-asr", *recordings).splitlines()
    assert [line.split("\t") for line in lines] == [[str(path), TEXT] for path in recordings]


def test_the_demo_runs_where_the_engine_does(installed: Installed) -> None:
    if installed.version not in ENGINE:
        pytest.skip("the engine's Python backend needs numpy 1, which has no wheels for this Python")
    # One model is enough, and of the two this has compiled searches.
    assert TEXT in installed.run("tritone", "demo", "--model", "demo-transducer")


def test_a_graph_is_exported(installed: Installed) -> None:
    graph = ROOT / "examples" / "handwriting" / "handwriting.onnx"
    exported = installed.python.parents[2] / "handwriting"
    installed.run("tritone", "export", "onnx", graph, "--output", exported)
    assert (exported / "manifest.json").is_file()


def test_the_gateway_answers(installed: Installed, server: TritonServer, recordings: list[Path]) -> None:
    command = [
        installed.python.parent / "tritone",
        "gateway",
        "--url",
        f"http://{server.http_address}",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        try:
            address = next(match[1] for line in process.stdout if (match := LISTENING.search(line)))
            m4a = next(path for path in recordings if path.suffix == ".m4a")
            parts = [b"--b", b'Content-Disposition: form-data; name="file"; filename="clip.m4a"', b"", m4a.read_bytes()]
            request = urllib.request.Request(
                f"{address}/v1/audio/transcriptions",
                b"\r\n".join([*parts, b"--b--", b""]),
                {"Content-Type": "multipart/form-data; boundary=b"},
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                assert json.load(answer)["text"] == TEXT
        finally:
            process.terminate()
            process.stdout.read()
