"""The family of another package, examples/family: it goes the whole road beside Tritone, and no trace of it is left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tritone
from tritone.audio import read_audio
from tritone.corpus.clips import read_clips
from tritone.server import ServerOptions

EXAMPLE = Path(__file__).parents[2] / "examples" / "family"
CLIP = read_clips()[0].path
MAX_LINES = 250
TRITONE = [sys.executable, "-c", "from tritone.cli.main import app; app(prog_name='tritone')"]
WRITE = """
import sys, torch
from pathlib import Path
from murmur.export import write_checkpoint
from murmur.network import Murmur, Sizes
torch.manual_seed(0)
tokens = ["<blank>", "\\u2581", *"abcdefghijklmnopqrstuvwxyz"]
network = Murmur(Sizes(vocab=len(tokens)))
torch.nn.init.normal_(network.head.weight, std=4.0)
write_checkpoint(Path(sys.argv[1]), network, tokens)
"""


def test_the_example_is_short() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLE.rglob("*.py"))
    assert lines <= MAX_LINES


class Installed:
    """Tritone's command in a folder, with the example's package beside it or not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        cache = {"TRITONE_CACHE": str(folder / "cache"), "PYTHONPATH": str(self.site)}
        self.environment = {**os.environ, **cache, "COLUMNS": "100"}
        source = folder / "source"
        subprocess.run(["cp", "-r", EXAMPLE, source], check=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*pip, "--target", self.site, source], check=True, capture_output=True)
        subprocess.run([sys.executable, "-c", WRITE, folder / "small.murmur"], check=True, env=self.environment)

    def run(self, *words: str, rc: int = 0) -> str:
        done = subprocess.run(
            [*TRITONE, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def bundle(installed: Installed) -> Path:
    options = ["--streaming", "--precision", "fp32,int8", "--lenient"]
    said = installed.run("export", "murmur", "--checkpoint", "small.murmur", *options, "--output", "murmur")
    assert "streaming_encoder.onnx: largest difference from the torch network" in said  # the parity check
    return installed.folder / "murmur"


@pytest.mark.slow
def test_commands_know_the_family(installed: Installed) -> None:
    assert "murmur" in installed.run("export", "--help")
    assert "tritone export murmur --checkpoint small.murmur --output my-murmur" in installed.run(
        "export", "murmur", "--help"
    )
    assert "small.murmur: a Murmur" in installed.run("inspect", "small.murmur")


@pytest.mark.slow
def test_a_stream_of_it_has_the_text_of_the_whole(bundle: Path) -> None:
    model = tritone.load(bundle)
    assert {each.precision for each in model.bundle.manifest.artifacts} == {"fp32", "int8"}
    whole = model.transcribe([CLIP])[0].get()
    stream, waveform = model.stream(), read_audio(CLIP, 16000)
    for piece in np.array_split(waveform, 7):
        stream.accept(piece)
    assert stream.finish().text == whole.text
    assert len(whole.text) > 3


@pytest.fixture
def served(installed: Installed) -> Iterator[ServerOptions]:
    ports = ServerOptions.on_free_ports()
    named = {"--http-port": ports.http_port, "--grpc-port": ports.grpc_port, "--metrics-port": ports.metrics_port}
    words = [word for name, port in named.items() for word in (name, str(port))]
    process = subprocess.Popen(
        [*TRITONE, "serve", "small.murmur", *words],
        cwd=installed.folder,
        env=installed.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        next(line for line in process.stdout if line.startswith("Serving"))
        yield ports
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.slow
def test_one_command_serves_it(served: ServerOptions, bundle: Path) -> None:
    with tritone.Client(f"localhost:{served.grpc_port}") as client:
        text = client.transcribe([CLIP])[0].get().text
    exported = (tritone.load(bundle, precision=each) for each in ("fp32", "int8"))  # the server takes the faster one
    assert text in [model.transcribe([CLIP])[0].get().text for model in exported]


@pytest.mark.slow
def test_without_the_package_nothing_of_it_is_left(installed: Installed) -> None:
    gone = {**installed.environment, "PYTHONPATH": ""}
    installed.environment, kept = gone, installed.environment
    try:
        assert "murmur" not in installed.run("export", "--help")
        assert "of a kind that no command exports" in installed.run("inspect", "small.murmur", rc=1)
    finally:
        installed.environment = kept
