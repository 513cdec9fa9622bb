"""A served model that tells speakers apart: clients, the command, and the gateway's words, through a real Triton."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tritone
from serving import quiet_options
from tritone.audio import Waveform, read_audio
from tritone.cli.main import app
from tritone.client import Client
from tritone.corpus.clips import read_clips
from tritone.diarization import SpeakerWords, with_speakers
from tritone.diarization.network import turns_in
from tritone.formats.rttm import read_rttm
from tritone.gateway import GatewayOptions
from tritone.gateway.callers import Caller
from tritone.gateway.server import GatewayServer
from tritone.gateway.speech import Ask, SpeakerOptions
from tritone.kinds.diarization.model import SpeakerDetector
from tritone.repository import build_repository
from tritone.server import TritonServer

pytestmark = pytest.mark.slow
RATE = 16000
CALLER = Caller(protocol="test")
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def server(diarization_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("who") / "repository"
    build_repository([diarization_bundle, "demo-asr"], repository)
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def model(diarization_bundle: Path) -> SpeakerDetector:
    return tritone.load_as(SpeakerDetector, diarization_bundle)


@pytest.fixture(scope="module")
def speech() -> Waveform:
    return np.concatenate([read_audio(clip.path, RATE) for clip in read_clips()])[: 8 * RATE]


def test_clients_have_the_answers_of_the_model_here(
    server: TritonServer, model: SpeakerDetector, speech: Waveform, tmp_path: Path
) -> None:
    here = model.diarize(speech).get()
    clip = next(iter(read_clips())).path
    with Client(server.grpc_address, timeout_s=TIMEOUT_S) as client:
        assert {each.name: each.kind for each in client.models()} == {
            "who": "diarization",
            "who-streaming": "diarization-streaming",
            "demo-asr": "offline",
            "demo-asr-streaming": "streaming",
        }
        short, found = client.diarize([speech[: 3 * RATE], speech], probabilities=True)
        assert found.get() == here
        assert found.probabilities is not None
        assert np.array_equal(found.probabilities, model.diarize(speech).probabilities)
        assert short.get() == model.diarize(speech[: 3 * RATE]).get()
        calm = {"min_pause_s": 0.5}
        assert client.diarize(speech, options=calm).segments == model.diarize(speech, options=calm).segments
        there, own = [], []
        with client.diarize_stream(probabilities=True, options=calm) as stream, model.stream(options=calm) as ours:
            for each, answers in ((stream, there), (ours, own)):
                answers += [each.accept(speech[start : start + 4000]) for start in range(0, len(speech), 4000)]
                answers.append(each.finish())
        for part in ("segments", "probabilities"):
            found, expected = (np.concatenate([getattr(each, part) for each in answers]) for answers in (there, own))
            assert found.tolist() == expected.tolist()
        known = {each.known_s: each.speaking for each in own}
        assert len(known) > 5
        assert all(known[each.known_s] == each.speaking for each in there if each.known_s is not None)
        with SpeakerWords(client.stream(details=True), client.diarize_stream()) as words:
            heard = [words.accept(speech[start : start + 4000]) for start in range(0, len(speech), 4000)]
            heard.append(words.finish())
        assert len({word.speaker for each in heard for word in each.words} - {""}) > 1
    result = CliRunner().invoke(
        app, ["diarize", str(clip), "--url", server.grpc_address, "--model", "who", "--format", "rttm"]
    )
    assert result.exit_code == 0
    assert [each.speaker for each in read_rttm(result.stdout)] == [
        each.speaker for each in turns_in(model.diarize(clip).segments)
    ]


def test_words_at_the_gateway_have_its_speakers(
    server: TritonServer, model: SpeakerDetector, speech: Waveform, tmp_path: Path
) -> None:
    import soundfile

    soundfile.write(tmp_path / "call.wav", speech, RATE, subtype="FLOAT")
    ask = Ask(model="demo-asr", speakers=SpeakerOptions())

    async def live(gateway: Any) -> list[Any]:
        events = []
        wanted = Ask(model="demo-asr-streaming", speakers=SpeakerOptions())
        async with await gateway.speech.open(wanted, RATE, CALLER) as stream:
            for start in range(0, len(speech), 4000):
                events += await stream.accept(speech[start : start + 4000])
            return events + await stream.finish()

    with GatewayServer(GatewayOptions(triton=server.grpc_address, port=0)).background() as running:
        assert running.loop is not None

        def run(work: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(work, running.loop).result(TIMEOUT_S)  # type: ignore[arg-type]

        found = run(running.gateway.speech.transcribe(tmp_path / "call.wav", ask, CALLER))
        turns = list(turns_in(model.diarize(tmp_path / "call.wav").segments))
        assert found.words
        assert found == with_speakers(found, turns)
        events = run(live(running.gateway))
    partials = [each.transcript for each in events if each.kind == "partial" and each.transcript.words]
    finals = [each.transcript for each in events if each.kind == "final" and each.transcript.words]
    assert len({word.speaker for each in partials for word in each.words} - {""}) > 1
    with model.stream() as stream:
        played = [*stream.accept(speech).segments, *stream.finish().segments]
    # What was said long enough before the end of a segment is labelled by all that the model heard.
    last = finals[-1]
    assert [each.speaker for each in last.words] == [
        each.speaker for each in with_speakers(last, list(turns_in(played))).words
    ]
