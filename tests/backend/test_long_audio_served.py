"""Recordings that are longer than a served model takes, with a served voice activity model and without."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from serving import quiet_options
from tritone.audio import read_audio
from tritone.cli.main import app
from tritone.client import Client
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.errors import InputError
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

pytestmark = pytest.mark.slow
RATE = 16000
PAUSE = np.zeros(round(0.8 * RATE), np.float32)


@pytest.fixture(scope="module")
def server(silero_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("long") / "repository"
    build_repository(["demo-asr", silero_bundle], repository, modes="offline", options=ModelOptions(max_audio_s=8))
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def clips() -> list[np.ndarray]:
    return [read_audio(path, RATE) for path in sorted(SHIPPED_CLIPS.glob("*.flac"))[:5]]


@pytest.fixture(scope="module")
def recording(clips: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([each for clip in clips for each in (PAUSE, clip, PAUSE)])


def test_long_recordings_have_the_texts_of_their_parts(
    server: TritonServer, clips: list[np.ndarray], recording: np.ndarray, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "long.flac", recording, RATE)
    inputs = [tmp_path / "long.flac", clips[0], tmp_path / "none.wav", recording]
    with Client(server.grpc_address, timeout_s=120.0) as client, Client(f"http://{server.http_address}") as http:
        assert client.model("demo-asr").max_audio_s == 8.0
        texts = [each.text for each in client.transcribe(clips, "demo-asr")]
        for found, vad in ((client, None), (client, ""), (http, "vad")):
            results = found.transcribe(inputs, "demo-asr", vad=vad, details=vad is None)
            assert [each.ok for each in results] == [True, True, False, True]
            assert results[1].text == texts[0]
            for result in (results[0], results[3]):
                assert [each.text for each in result.get().segments] == texts
                assert result.text == " ".join(texts)
                assert result.audio_s == pytest.approx(len(recording) / RATE)
                assert [each.text for each in result.words] == (result.text.split() if vad is None else [])
        with pytest.raises(InputError, match="no ready model 'other'"):
            client.transcribe(recording, "demo-asr", vad="other")


def test_the_command_takes_long_recordings_too(
    server: TritonServer, clips: list[np.ndarray], recording: np.ndarray, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "long.wav", recording, RATE)
    with Client(server.grpc_address) as client:
        text = " ".join(each.text for each in client.transcribe(clips, "demo-asr"))
    given = ["transcribe", "--url", server.grpc_address, "--model", "demo-asr", str(tmp_path / "long.wav")]
    for more in ([], ["--vad", ""]):
        done = CliRunner().invoke(app, [*given, *more])
        assert (done.exit_code, done.stdout) == (0, f"{text}\n")
