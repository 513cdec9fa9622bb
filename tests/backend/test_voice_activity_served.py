"""A voice activity detector behind a real Triton: whole recordings and streams, by our client and without it."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from typer.testing import CliRunner

import tritone
from serving import quiet_options
from tritone.audio.files import read_audio
from tritone.cli.main import app
from tritone.client import Client
from tritone.corpus.clips import SHIPPED_CLIPS
from tritone.errors import BundleError, InputError, StreamError
from tritone.repository import EnsembleOptions, ModelOptions, build_repository, read_repository
from tritone.server import TritonServer

FLOAT_NOISE = 2e-6


@pytest.fixture(scope="module")
def server(
    silero_bundle: Path, speaker_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("vad") / "repository"
    options = ModelOptions(queue_delay_ms=0, max_audio_s=60, max_streams=4, stream_idle_timeout_s=600)
    build_repository([silero_bundle], repository, options=options)
    assert [(model.name, model.mode) for model in read_repository(repository)] == [
        ("vad", "offline"),
        ("vad-streaming", "streaming"),
    ]
    build_repository([speaker_bundle], repository)
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module", params=["grpc", "http"])
def client(server: TritonServer, request: pytest.FixtureRequest) -> Iterator[Client]:
    address = server.grpc_address if request.param == "grpc" else f"http://{server.http_address}"
    with Client(address) as found:
        yield found


@pytest.fixture(scope="module")
def detector(silero_bundle: Path) -> tritone.Detector:
    return tritone.load(silero_bundle, threads=1)


@pytest.fixture(scope="module")
def files() -> list[Path]:
    return sorted(SHIPPED_CLIPS.glob("*.flac"))[:3]


def test_served_recordings_have_the_segments_and_probabilities_of_the_detector(
    client: Client, detector: tritone.Detector, files: list[Path]
) -> None:
    for found, wanted in zip(client.detect(files, probabilities=True), detector.detect(files), strict=True):
        assert found.segments == wanted.segments
        np.testing.assert_allclose(found.probabilities, wanted.probabilities, atol=FLOAT_NOISE)
    alone = client.detect(files[0], options={"padding_s": 0.1, "threshold": 0.7})
    assert list(alone.segments) == detector.segments(files[0], padding_s=0.1, threshold=0.7)
    assert alone.probabilities is None


def test_a_request_that_cannot_be_answered_has_its_own_error(client: Client, files: list[Path]) -> None:
    bad, good = client.detect([np.full(16000, 1e9, np.float32), files[0]])
    assert isinstance(bad.error, InputError)
    assert good.ok
    with pytest.raises(InputError, match="unknown request parameter 'volume'; known are threshold, end_threshold"):
        client.detect(files[0], options={"volume": 11})
    with pytest.raises(InputError, match="empty audio: the waveform has no samples"):
        client.detect(np.zeros(0, np.float32))
    with pytest.raises(InputError, match="'vad' is not offline but for voice activity"):
        client.transcribe(files[0], model="vad")
    with pytest.raises(InputError, match=r"no offline speech model is ready there.*vad-streaming .activity-streaming"):
        client.transcribe(files[0])


def test_a_served_stream_has_the_segments_and_probabilities_of_one_in_process(
    client: Client, detector: tritone.Detector, files: list[Path]
) -> None:
    audio = np.concatenate([part for file in files for part in (read_audio(file, 16000), np.zeros(8000, np.float32))])
    options = {"threshold": 0.6, "min_silence_s": 0.2}
    with detector.stream(options=options) as here:
        wanted = [here.accept(audio), here.finish()]
    with client.detect_stream(options=options, probabilities=True, chunk_ms=90) as stream:
        found = [stream.accept(part) for part in np.array_split(audio, 7)] + [stream.finish()]
    assert [each for answer in found for each in answer.segments] == [
        each for answer in wanted for each in answer.segments
    ]
    assert len([each for answer in found for each in answer.segments]) >= len(files)
    np.testing.assert_allclose(
        np.concatenate([each.probabilities for each in found]),
        np.concatenate([each.probabilities for each in wanted]),
        atol=FLOAT_NOISE,
    )
    assert found[-1].is_final
    assert found[-1].audio_s == wanted[-1].audio_s


def test_a_stream_tells_that_speech_has_begun_and_refuses_what_it_cannot_do(client: Client, files: list[Path]) -> None:
    audio = read_audio(files[0], 16000)
    with client.detect_stream(chunk_ms=20, probabilities=True) as stream:
        first = stream.accept(audio[:400])  # less than a frame
        assert first.speaking_since_s is None
        assert first.probabilities.shape == (0,)
        answer = stream.accept(audio[400:16000])
        assert answer.speaking_since_s is not None
        assert len(answer.probabilities) == 31
        assert len(stream.finish().probabilities) == 1
        with pytest.raises(StreamError, match="is over"):
            stream.accept(audio)
    with (
        client.detect_stream(options={"max_segment_s": 5}) as refused,
        pytest.raises(InputError, match=r"max_segment_s: streams report speech before .* was not opened"),
    ):
        refused.accept(audio)


def test_any_client_of_triton_can_ask_for_rows_of_16_bit_audio(
    server: TritonServer, detector: tritone.Detector, files: list[Path]
) -> None:
    rows = [np.round(read_audio(file, 16000) * 32768).astype(np.int16) for file in files]
    lengths = [len(row) for row in rows]
    block = np.zeros((len(rows), max(lengths)), np.int16)
    for target, row in zip(block, rows, strict=True):
        target[: len(row)] = row
    pcm = triton.InferInput("PCM", block.shape, "INT16")
    pcm.set_data_from_numpy(block)
    lens = triton.InferInput("WAV_LENS", (len(rows), 1), "INT32")
    lens.set_data_from_numpy(np.array(lengths, np.int32)[:, None])
    raw = triton.InferenceServerClient(server.grpc_address)
    result = raw.infer("vad", [pcm, lens], parameters={"min_silence_s": "0.5"}, client_timeout=60)
    probabilities, segments = result.as_numpy("PROBABILITIES"), result.as_numpy("SEGMENTS")
    assert segments.shape == (len(rows), 1)
    for row, text, found in zip(rows, segments[:, 0], probabilities, strict=True):
        wanted = detector.detect(row.astype(np.float32) / 32768, options={"min_silence_s": 0.5})
        assert json.loads(text)["segments"] == [{"start_s": s.start_s, "end_s": s.end_s} for s in wanted.segments]
        np.testing.assert_allclose(found[: len(wanted.probabilities)], wanted.probabilities, atol=FLOAT_NOISE)
        assert not found[len(wanted.probabilities) :].any()
    raw.close()


def test_options_of_other_kinds_are_refused_when_a_repository_is_built(silero_bundle: Path, tmp_path: Path) -> None:
    for arguments, told in (
        (
            {"options": ModelOptions(search="prefix-beam")},
            "voice activity detector, and --search is for models that wr",
        ),
        ({"options": ModelOptions(window_s=2.0)}, "voice activity detector, and --window-s is for speaker models"),
        ({"layout": EnsembleOptions()}, "voice activity detector, of which there are no ensembles"),
    ):
        with pytest.raises(BundleError, match=told):
            build_repository([silero_bundle], tmp_path / "repository", **arguments)


def test_recordings_are_diarized_by_served_models_as_in_this_process(
    server: TritonServer, silero_bundle: Path, speaker_bundle: Path, files: list[Path]
) -> None:
    def diarize(*arguments: str | Path) -> list[str]:
        given = ["diarize", *files, "--num-speakers", 2, "--format", "rttm", *arguments]
        result = CliRunner().invoke(app, [*map(str, given)])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    here = diarize("--model", speaker_bundle, "--vad", silero_bundle)
    assert {line.split()[7] for line in here} == {"speaker1", "speaker2"}
    assert diarize("--url", server.grpc_address, "--vad", "vad-streaming") == here
