"""The protocol of another package, examples/protocol: a gateway speaks it where it is installed, and nowhere else."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.sync.client import connect

from elsewhere import Elsewhere, said, wav
from serving import kill_tree, lines_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "protocol"
MAX_LINES = 200
GATEWAY = [sys.executable, "-c", "from tritone.cli.main import app; app(prog_name='tritone')", "gateway"]


def test_the_example_is_short() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLE.rglob("*.py"))
    assert lines <= MAX_LINES


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that have the package."""
    folder = tmp_path_factory.mktemp("protocol")
    subprocess.run(["cp", "-r", EXAMPLE, folder / "source"], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", folder / "site", folder / "source"], check=True, capture_output=True)
    path = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}


@contextmanager
def serving(folder: Path, environment: dict[str, str] | None, *options: str) -> Iterator[str]:
    """A gateway in front of a model that hears loud words; the line with its addresses."""
    with Elsewhere() as there:
        file = folder / "upstreams.yaml"
        file.write_text(f'upstreams: [{{name: there, url: "{there.url}"}}]\n', encoding="utf-8")
        process = subprocess.Popen(
            [*GATEWAY, "--port", "0", "--url", "none", "--upstreams", str(file), *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        try:
            yield lines_until(process, "Serving on")[-1]
        finally:
            kill_tree(process)


@pytest.mark.slow
def test_a_gateway_speaks_it_live_and_whole(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "words.wav").write_bytes(wav(said(4, 2))[1])
    with serving(tmp_path, installed, "--lines-port", "0", "--lines-times") as line:
        (address,) = re.findall(r"http://(\S+:\d+)", line)
        asking = [sys.executable, EXAMPLE / "ask.py", tmp_path / "words.wav", address, "there"]
        done = subprocess.run(asking, capture_output=True, encoding="utf-8", timeout=120)
        assert done.stdout.splitlines() == ["live:  3.5 four two", "live:  .", "whole: four two"], done.stderr
        (own,) = re.findall(r"lines (\S+:\d+)", line)
        with connect(f"ws://{own}/?model=there") as socket:
            socket.send("what")
            assert socket.recv() == "! expected audio, 'line' or 'end', got 'what'"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{address}/lines?model=there", b"no audio", timeout=60)
        assert (refused.value.code, refused.value.read()[:2]) == (415, b"! ")


@pytest.mark.slow
def test_the_command_has_its_port_and_its_option(installed: dict[str, str]) -> None:
    said = subprocess.run([*GATEWAY, "--help-all"], env=installed, capture_output=True, encoding="utf-8", check=True)
    panel = said.stdout.partition("Protocols of applications:")[2].partition("\n\n")[0]
    assert "--lines-port <int>" in panel
    assert "--lines-times" in panel


@pytest.mark.slow
def test_without_the_package_nothing_of_it_is_left(tmp_path: Path) -> None:
    said = subprocess.run([*GATEWAY, "--help-all"], capture_output=True, encoding="utf-8", check=True)
    assert "lines" not in re.findall(r"--(\w+)", said.stdout)
    with serving(tmp_path, None) as line:
        (address,) = re.findall(r"http://(\S+:\d+)", line)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{address}/lines", b"audio", timeout=60)
