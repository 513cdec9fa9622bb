"""Files of phones, browsers and cameras by every protocol that takes recordings, and what cannot be read of them."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest
import riva.client
import soundfile
import websockets.sync.client as websockets

from containers import contained, unreadable
from toy import SAMPLE_RATE, toy_waveform
from tritone.gateway.server import GatewayServer

TEXT = "hello world"
RECORDED = {
    "m4a": contained(toy_waveform(TEXT), SAMPLE_RATE, "ipod", "alac"),
    "mov": contained(toy_waveform(TEXT), SAMPLE_RATE, "mov", "pcm_s16le"),
    "mp4": contained(toy_waveform(TEXT), SAMPLE_RATE, "mp4", "alac"),
    "mkv": contained(toy_waveform(TEXT), SAMPLE_RATE, "matroska", "flac"),
}
UNREADABLE = unreadable(np.tile(toy_waveform(TEXT), 5), SAMPLE_RATE)
KNOWN = ("WAV", "MP3", "M4A", "WebM")  # some of the formats that a refusal names


@pytest.fixture(scope="module")
def ask(gateway: GatewayServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def riva_asr(turning: GatewayServer) -> Iterator[riva.client.ASRService]:
    auth = riva.client.Auth(uri=f"127.0.0.1:{turning.ports['riva']}")
    yield riva.client.ASRService(auth)
    auth.channel.close()


def openai(ask: httpx2.Client, data: bytes) -> httpx2.Response:
    return ask.post("/v1/audio/transcriptions", data={"model": "toy"}, files={"file": ("a.bin", data)})


def deepgram(ask: httpx2.Client, data: bytes) -> httpx2.Response:
    return ask.post("/v1/listen", params={"model": "toy"}, content=data)


def page(ask: httpx2.Client, data: bytes) -> httpx2.Response:
    return ask.post("/page/transcribe", params={"options": json.dumps({"model": "toy"})}, content=data)


def config() -> riva.client.RecognitionConfig:
    return riva.client.RecognitionConfig(model="toy", language_code="en-US")


@pytest.mark.parametrize("post", [openai, deepgram, page])
@pytest.mark.parametrize("name", RECORDED)
def test_what_people_record_is_transcribed(
    ask: httpx2.Client, post: Callable[[httpx2.Client, bytes], httpx2.Response], name: str
) -> None:
    answer = post(ask, RECORDED[name])
    assert (answer.status_code, TEXT in answer.text) == (200, True), answer.text


def test_rivas_client_may_send_any_container_as_a_recording(riva_asr: riva.client.ASRService) -> None:
    for data in RECORDED.values():
        found = riva_asr.offline_recognize(data, config())
        assert found.results[0].alternatives[0].transcript.strip() == TEXT


@pytest.mark.parametrize(
    ("post", "message"),
    [
        (openai, lambda body: body["error"]["message"]),
        (deepgram, lambda body: body["err_msg"]),
        (page, lambda body: body["error"]["message"]),
    ],
)
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_the_senders_error_in_the_protocols_own_form(
    ask: httpx2.Client, post: Callable[[httpx2.Client, bytes], httpx2.Response], message: Any, name: str
) -> None:
    data, is_format, said = UNREADABLE[name]
    answer = post(ask, data)
    assert (answer.status_code, said in message(answer.json())) == (415 if is_format else 400, True), answer.text
    assert all(each in message(answer.json()) for each in KNOWN) == is_format
    assert "/tmp" not in answer.text


@pytest.mark.parametrize("name", UNREADABLE)
def test_rivas_client_is_told_in_the_terms_of_grpc(riva_asr: riva.client.ASRService, name: str) -> None:
    data, is_format, said = UNREADABLE[name]
    with pytest.raises(grpc.RpcError) as refused:
        riva_asr.offline_recognize(data, config())
    assert (refused.value.code(), said in refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert all(each in refused.value.details() for each in KNOWN) == is_format


def test_files_that_lie_on_disk_are_not_named(ask: httpx2.Client) -> None:
    answer = openai(ask, b"no sound, " * 200_000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_format")
    assert answer.json()["error"]["message"].startswith("the file is not audio")


@pytest.mark.parametrize(
    ("form", "data"),
    [("webm", b"no sound" * 300), ("mp4", bytes(3000)), ("ogg", b"OggS" + bytes(3000)), ("mp3", b"")],
)
def test_a_stream_that_cannot_be_read_has_an_unsupported_format(gateway: GatewayServer, form: str, data: bytes) -> None:
    with websockets.connect(f"ws://127.0.0.1:{gateway.port}/v1/stream", open_timeout=60) as client:
        client.send(json.dumps({"type": "start", "model": "live", "format": form}))
        answer = json.loads(client.recv(60))
        if answer["type"] == "ready":
            client.send(data)
            client.send('{"type": "end"}')
            answer = json.loads(client.recv(60))
    assert (answer["type"], answer["code"]) == ("error", "unsupported_format")
    assert all(each in answer["message"] for each in ("webm", "mp4", "ogg"))


def spoken(*parts: float | str) -> tuple[str, bytes]:
    """A WAV of texts, with seconds of silence between them."""
    silent = [np.zeros(round(each * SAMPLE_RATE), np.float32) if isinstance(each, float) else each for each in parts]
    wave = np.concatenate([toy_waveform(each, 4) if isinstance(each, str) else each for each in silent])
    file = io.BytesIO()
    soundfile.write(file, wave, SAMPLE_RATE, subtype="PCM_16", format="WAV")
    return "a.wav", file.getvalue()


def filtered(ask: httpx2.Client, *parts: float | str, **fields: str) -> httpx2.Response:
    data = {"model": "toy", "vad_filter": "true", "response_format": "verbose_json", **fields}
    return ask.post("/v1/audio/transcriptions", data=data, files={"file": spoken(*parts)})


def test_a_vad_filter_leaves_silence_out_and_times_as_they_are(ask: httpx2.Client) -> None:
    silence = filtered(ask, 6.0)
    assert (silence.status_code, silence.json()["text"]) == (200, "")
    assert silence.json()["duration"] == pytest.approx(6.0, abs=0.01)
    assert "x-tritone-ignored" not in silence.headers
    answer = filtered(ask, 3.0, "one", 4.0, "two", **{"timestamp_granularities[]": "word"})
    first, second = answer.json()["words"]
    lasts_s = len(toy_waveform("one", 4)) / SAMPLE_RATE
    assert [first["word"], second["word"]] == ["one", "two"]
    assert first["start"] == pytest.approx(3.0, abs=0.1)
    assert second["start"] == pytest.approx(7.0 + lasts_s, abs=0.1)
