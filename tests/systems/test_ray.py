"""Commands on a Ray cluster of several nodes, which die in the middle of it: the same bytes as without them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from ray_nodes import RayNodes, ray_nodes

pytestmark = pytest.mark.slow
RATE = 16000
MANY = 1600  # recordings: so many lines fill a pipe that nobody reads, and the command waits in the middle


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with ray_nodes(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of noise of several lengths, one file that is none, and their wav.scp."""
    folder = tmp_path_factory.mktemp("recordings-with-a-long-name")
    chance = np.random.default_rng(1)
    for number in range(40):
        length = int(chance.integers(2000, 12000))
        soundfile.write(folder / f"{number}.wav", chance.normal(0, 0.1, length).astype(np.float32), RATE)
    (folder / "7.wav").write_text("not audio")
    lines = [f"u{number:04d} {folder / f'{number % 40}.wav'}\n" for number in range(MANY)]
    (folder / "wav.scp").write_text("".join(lines))
    return folder


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from tritone.cli.main import app; app()", *map(str, arguments)]


def run(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments), capture_output=True, timeout=300, env={**os.environ, **(environment or {})}
    )


def test_transcripts_are_the_same_when_a_node_dies_in_the_middle(cluster: RayNodes, recordings: Path, toy_bundle: Path):
    arguments = ["transcribe", "--bundle", toy_bundle, "--wavscp", recordings / "wav.scp", "--json", "--details"]
    alone = run(*arguments)
    assert alone.returncode == 1, alone.stderr  # one file is no audio
    with subprocess.Popen(
        command(*arguments, "--ray", cluster.address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what is read ahead would be lost to `communicate`
        env={**os.environ, **cluster.environment},
    ) as process:
        first = process.stdout.readline()
        cluster.kill(cluster.others[0])
        out, err = process.communicate(timeout=300)
    assert (first + out).splitlines() == alone.stdout.splitlines(), err.decode()[-3000:]
    assert process.returncode == 1
    cluster.add()
