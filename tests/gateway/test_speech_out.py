"""Speech out: OpenAI's `/v1/audio/speech` by its official client, and the raw forms that it never sends."""

import base64
import http.client
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile

from serving import quiet_options
from toy_voice import sound, write_espeak, write_toy_voice
from tritone.audio.encoder import FORMATS, MIME_TYPES
from tritone.audio.files import resample
from tritone.families.piper.export import export_piper
from tritone.gateway import GatewayOptions
from tritone.gateway.callers import new_key
from tritone.gateway.server import GatewayServer
from tritone.repository import build_repository
from tritone.server import TritonServer

LONG = "one two three four. " * 200


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Voices: `ann`, who is alone, and `two`, whose speakers are ben and carl and speak German."""
    folder = tmp_path_factory.mktemp("voices")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{write_espeak(folder / 'bin')}:{os.environ['PATH']}")
        ann = export_piper(voice=write_toy_voice(folder / "one"), output=folder / "ann")
        german = {"language": {"code": "de_DE"}}
        two = export_piper(voice=write_toy_voice(folder / "both", ["ben", "carl"], **german), output=folder / "two")
        build_repository([ann.bundle.path, two.bundle.path], folder / "repository")
        with TritonServer(folder / "repository", quiet_options()) as running:
            yield running


@pytest.fixture(scope="module", params=["http", "grpc"])
def speaking(triton: TritonServer, request: pytest.FixtureRequest) -> Iterator[GatewayServer]:
    url = f"http://{triton.http_address}" if request.param == "http" else triton.grpc_address
    options = GatewayOptions(triton=url, port=0, aliases=("tts-1", "alloy"), ports={"riva": 0})
    with GatewayServer(options).background() as running:
        yield running


@pytest.fixture(scope="module")
def client(speaking: GatewayServer) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{speaking.port}/v1"
    with openai.OpenAI(base_url=url, api_key="any", timeout=60, max_retries=0) as found:
        yield found


def test_a_text_is_spoken_by_the_voice_that_is_named(client: openai.OpenAI) -> None:
    for model, voice, speaker in (
        ("ann", "ann", 0),
        ("two", "ben", 0),
        ("two", "carl", 1),
        ("tts-1", "carl", 1),
        ("tts-1", "alloy", 0),
        ("two", {"id": "carl"}, 1),
    ):
        found = client.audio.speech.create(model=model, voice=voice, input="ab.", response_format="wav")  # type: ignore[arg-type]
        assert found.response.headers["content-type"] == "audio/wav"
        samples = np.frombuffer(found.content[44:], "<i2") / 32768
        np.testing.assert_allclose(samples, sound("ab.", speaker=speaker), atol=1 / 32768)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_of_openai(client: openai.OpenAI, format: Any) -> None:
    pytest.importorskip("av")
    found = client.audio.speech.create(model="ann", voice="ann", input="Abc. Def.", response_format=format)
    assert found.response.headers["content-type"] == MIME_TYPES[format]
    wanted_s = (len(sound("abc.")) + len(sound("def."))) / 22050 + 0.2
    if format == "pcm":
        assert len(found.content) / 2 / 24000 == pytest.approx(wanted_s, abs=0.01)
        samples = np.frombuffer(found.content, "<i2") / 32768
        first = resample(sound("abc."), 22050, 24000)
        np.testing.assert_allclose(samples[100:1000], first[100:1000], atol=0.01)
        return
    if format in ("mp3", "opus"):
        assert soundfile.info(io.BytesIO(found.content)).duration == pytest.approx(wanted_s, abs=0.2)
    heads = {"mp3": b"\xff", "opus": b"OggS", "flac": b"fLaC", "wav": b"RIFF", "aac": b"\xff\xf1"}
    assert found.content.startswith(heads[format])


def test_mp3_is_usual_and_speed_is_heard(client: openai.OpenAI) -> None:
    usual = client.audio.speech.create(model="ann", voice="ann", input="abc")
    assert usual.response.headers["content-type"] == "audio/mpeg"
    slow = client.audio.speech.create(model="ann", voice="ann", input="abc", response_format="pcm", speed=0.25)
    fast = client.audio.speech.create(model="ann", voice="ann", input="abc", response_format="pcm", speed=4)
    assert len(slow.content) / len(fast.content) == pytest.approx(16, rel=0.05)


def test_speech_comes_sentence_by_sentence(client: openai.OpenAI) -> None:
    asked = {"model": "ann", "voice": "ann", "input": "Ab. Cd. Ef.", "response_format": "pcm"}
    with client.audio.speech.with_streaming_response.create(**asked) as streamed:  # type: ignore[arg-type]
        parts = list(streamed.iter_bytes())
    assert b"".join(parts) == client.audio.speech.create(**asked).content  # type: ignore[arg-type]
    with client.audio.speech.with_streaming_response.create(**asked, stream_format="sse") as events:  # type: ignore[arg-type]
        assert events.headers["content-type"].startswith("text/event-stream")
        found = [json.loads(line.removeprefix("data: ")) for line in events.iter_lines() if line]
    assert [each["type"] for each in found] == ["speech.audio.delta"] * 3 + ["speech.audio.done"]
    assert b"".join(base64.b64decode(each["audio"]) for each in found[:-1]) == b"".join(parts)
    assert set(found[-1]["usage"]) == {"input_tokens", "output_tokens", "total_tokens"}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"model": "nobody"}, 404, None),
        ({"voice": "nobody"}, 400, "voice"),
        ({"voice": ""}, 200, None),
        ({"input": ""}, 400, "input"),
        ({"input": "x" * 4097}, 400, "input"),
        ({"input": "?!"}, 400, None),
        ({"input": "it crashes"}, 400, None),
        ({"speed": 4.1}, 400, "speed"),
        ({"speed": True}, 400, "speed"),
        ({"response_format": "midi"}, 400, "response_format"),
        ({"stream_format": "tape"}, 400, "stream_format"),
        ({"temperature": 1}, 400, "temperature"),
        ({"model": None}, 400, "model"),
        ({"voice": {"id": "ann", "more": 1}}, 400, "voice"),
        ({"instructions": "whisper"}, 200, None),
    ],
)
def test_what_cannot_be_spoken_has_an_error_of_openais_form(
    client: openai.OpenAI, change: dict[str, Any], status: int, param: str | None
) -> None:
    body = {"model": "ann", "voice": "ann", "input": "ab", **change}
    if status == 200:
        found = client.audio.speech.with_raw_response.create(**body)
        assert ("instructions" in found.headers.get("x-tritone-ignored", "")) == ("instructions" in change)
        return
    with pytest.raises(openai.APIStatusError) as refused:
        client.audio.speech.create(**{k: v for k, v in body.items() if k != "temperature"}, extra_body=change)
    assert refused.value.status_code == status
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


def raw(server: GatewayServer, body: bytes, key: str = "") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection.request("POST", "/v1/audio/speech", body, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data) if answer.status != 200 else {}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"input": 3, "model": "ann", "voice": "ann"}', b"[" * 9000]
)
def test_bodies_that_are_no_request(speaking: GatewayServer, body: bytes) -> None:
    assert raw(speaking, body)[0] == 400


def test_a_body_without_end_is_refused(speaking: GatewayServer) -> None:
    status, answer = raw(speaking, b'{"input": "' + b"x" * 1_000_000)
    assert (status, answer["error"]["code"]) == (413, "too_large")


def test_an_error_in_the_middle_ends_the_answer(client: openai.OpenAI, speaking: GatewayServer) -> None:
    asked = {"model": "ann", "voice": "ann", "input": "Ab. It crashes.", "response_format": "pcm"}
    with (
        client.audio.speech.with_streaming_response.create(**asked, stream_format="sse") as events,  # type: ignore[arg-type]
    ):
        found = [json.loads(line.removeprefix("data: ")) for line in events.iter_lines() if line]
    assert found[0]["type"] == "speech.audio.delta"
    assert "espeak-ng failed" in found[1]["error"]["message"]
    connection = http.client.HTTPConnection("127.0.0.1", speaking.port, timeout=60)
    connection.request("POST", "/v1/audio/speech", json.dumps(asked))
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        connection.getresponse().read()
    connection.close()


def test_a_client_that_leaves_keeps_nobody_waiting(client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(model="ann", voice="ann", input=LONG[:4000]) as left:
        next(left.iter_bytes())
    assert client.audio.speech.create(model="ann", voice="ann", input="ab").content


def test_voices_and_models_are_listed(client: openai.OpenAI) -> None:
    assert {"ann", "two"} <= {each.id for each in client.models.list()}
    listed = client.get("/audio/voices", cast_to=object)
    assert listed == {  # type: ignore[comparison-overlap]
        "voices": [
            {"id": "ann", "name": "ann", "model": "ann", "language": "en-US"},
            {"id": "ben", "name": "ben", "model": "two", "language": "de-DE"},
            {"id": "carl", "name": "carl", "model": "two", "language": "de-DE"},
        ]
    }


def test_a_key_has_an_hour_of_speech_and_no_more(triton: TritonServer, tmp_path: Path) -> None:
    key, digest = new_key()
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n  - {{name: ann, sha256: {digest}, audio_s_per_hour: 0.05}}\n", encoding="utf-8")
    options = GatewayOptions(triton=f"http://{triton.http_address}", port=0, keys=keys)
    with GatewayServer(options).background() as server:
        body = json.dumps({"model": "ann", "voice": "ann", "input": "abc " * 20}).encode()
        assert raw(server, body)[0] == 401
        statuses = [raw(server, body, key)[0] for _ in range(3)]
        assert statuses[0] == 200
        assert statuses[-1] == 429, "speech counts as audio does"


def test_a_gateway_without_pyav_says_which_formats_it_has(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(openai.BadRequestError, match="writes no aac; ask for mp3, opus, flac, wav or pcm"):
        client.audio.speech.create(model="ann", voice="ann", input="ab", response_format="aac")
