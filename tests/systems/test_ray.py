"""Commands on a Ray cluster of several nodes, which die in the middle of it: the same bytes as without them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tritone
from ray_nodes import RayNodes, ray_nodes
from toy_speaker import write_toy_speaker

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
    (folder / "7.wav").write_text("not audio", encoding="utf-8")
    lines = [f"u{number:04d} {folder / f'{number % 40}.wav'}\n" for number in range(MANY)]
    (folder / "wav.scp").write_text("".join(lines), encoding="utf-8")
    return folder


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from tritone.cli.main import app; app()", *map(str, arguments)]


def run(
    *arguments: str | Path, where: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*arguments), capture_output=True, timeout=300, cwd=where, env={**os.environ, **(environment or {})}
    )


def test_transcripts_are_the_same_when_a_node_dies_in_the_middle(cluster: RayNodes, recordings: Path, toy_bundle: Path):
    arguments = ["transcribe", "--model", toy_bundle, "--wavscp", recordings / "wav.scp", "--json", "--details"]
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


def test_a_killed_command_continues_to_the_archives_of_an_undisturbed_one(
    cluster: RayNodes, recordings: Path, tmp_path: Path
):
    speaker = write_toy_speaker(tmp_path / "speaker")
    arguments = ["embed", "--model", speaker, "--wavscp", recordings / "wav.scp", "--threads", "1"]
    assert run(*arguments, "--output", "alone", where=tmp_path).returncode == 1
    on_ray = [*arguments, "--output", "alone", "--ray", cluster.address]
    (tmp_path / "ray").mkdir()
    ark = tmp_path / "ray" / "alone" / "xvector_000.ark"
    with subprocess.Popen(
        command(*on_ray), cwd=tmp_path / "ray", stderr=subprocess.DEVNULL, env={**os.environ, **cluster.environment}
    ) as process:
        while process.poll() is None and not (ark.exists() and ark.stat().st_size):
            time.sleep(0.01)
        process.kill()
    again = run(*on_ray, where=tmp_path / "ray", environment=cluster.environment)
    assert again.returncode == 1, again.stderr.decode()
    for name in ("xvector_000.ark", "xvector.scp", "failures.jsonl"):
        assert (tmp_path / "ray" / "alone" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name


def test_an_interrupt_ends_the_command_and_its_workers(cluster: RayNodes, recordings: Path, toy_bundle: Path):
    arguments = ["transcribe", "--model", toy_bundle, "--wavscp", recordings / "wav.scp", "--ray", cluster.address]
    with subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, **cluster.environment},
    ) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in err
    # Workers of a job that has ended have no room taken: another command of as many finds it.
    assert run(*arguments, "--workers", "2", environment=cluster.environment).returncode == 1


def test_map_batches_of_ray_data_has_the_texts_of_the_command(
    cluster: RayNodes, recordings: Path, toy_bundle: Path, tmp_path: Path
):
    texts = tmp_path / "texts.json"  # Ray tells of itself on stdout, at any time
    script = (
        "import json, sys, ray; from tritone.systems.ray_data import TranscribeBatch\n"
        "ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "rows = ray.data.from_items([{'path': path} for path in sys.argv[4:]]).map_batches(\n"
        "    TranscribeBatch, fn_constructor_kwargs={'bundle': sys.argv[2], 'threads': 1}, batch_size=4,\n"
        "    concurrency=1, num_cpus=1).take_all()\n"
        "found = {row['path']: row['text'] or bool(row['error']) for row in rows}\n"
        "json.dump(found, open(sys.argv[3], 'w'))\n"
    )
    paths = [str(recordings / f"{number}.wav") for number in range(9)]
    done = subprocess.run(
        [sys.executable, "-c", script, cluster.address, str(toy_bundle), str(texts), *paths],
        capture_output=True,
        timeout=300,
        env={**os.environ, **cluster.environment},
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(texts.read_text(encoding="utf-8"))
    expected = tritone.load(toy_bundle, threads=1).transcribe(paths)
    assert found == {each.source: each.text or False if each.ok else True for each in expected}
