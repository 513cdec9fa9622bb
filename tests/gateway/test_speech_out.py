"""Speech out: OpenAI's `/v1/audio/speech` by its official client, and the raw forms that it never sends."""

import asyncio
import base64
import http.client
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import openai
import pytest
import riva.client
import riva.client.proto.riva_tts_pb2 as tts
import soundfile
from openai.types.audio.speech_create_params import SpeechCreateParams
from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from serving import quiet_options
from toy_voice import sound, write_espeak, write_toy_voice
from tritone.audio.encoder import FORMATS, MIME_TYPES
from tritone.audio.files import resample
from tritone.families.piper.export import export_piper
from tritone.gateway import GatewayOptions
from tritone.gateway.callers import new_key
from tritone.gateway.protocols.openai.speech import FIELDS
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
    options = GatewayOptions(triton=url, port=0, aliases=("tts-1", "alloy"), ports={"riva": 0, "wyoming": 0})
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


def test_every_field_of_the_official_clients_stands_in_the_page() -> None:
    assert set(SpeechCreateParams.__annotations__) == set(FIELDS)
    page = (Path(__file__).parents[2] / "docs" / "applications" / "speech-out.md").read_text(encoding="utf-8")
    fields = {*FIELDS, *(each.name for each in tts.SynthesizeSpeechRequest.DESCRIPTOR.fields)} - {"id"}  # sent back
    assert {each for each in fields if f"`{each}`" not in page} == set()


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


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ('"voice": "\\ud800"', 400),
        ('"model": "\\ud800"', 400),
        ('"\\ud800": 1', 400),
        ('"response_format": "\\ud800"', 400),
        ('"response_format": ["mp3"]', 400),
        ('"speed": NaN', 400),
        ('"speed": 1e999', 400),
        ('"input": "a\\ud800b"', 400),
        ('"input": "\\u0000a"', 200),
    ],
)
def test_values_that_are_no_text_or_number(speaking: GatewayServer, change: str, status: int) -> None:
    body = '{"input": "ab", "model": "ann", "voice": "ann", ' + change + "}"  # the last of two values counts
    found, answer = raw(speaking, body.encode())
    assert (found, set(answer)) == (status, set() if status == 200 else {"error"})


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


LINEAR = riva.client.AudioEncoding.LINEAR_PCM


@pytest.fixture(scope="module")
def riva_client(speaking: GatewayServer) -> Iterator[riva.client.SpeechSynthesisService]:
    auth = riva.client.Auth(uri=f"127.0.0.1:{speaking.ports['riva']}")
    yield riva.client.SpeechSynthesisService(auth)
    auth.channel.close()


def test_rivas_client_gets_a_text_as_a_whole(riva_client: riva.client.SpeechSynthesisService) -> None:
    found = riva_client.synthesize("Ab. Cd.", voice_name="two.carl", language_code="de-DE")
    samples = np.frombuffer(found.audio, "<i2") / 32768
    np.testing.assert_allclose(samples[:700], sound("ab.", speaker=1)[:700], atol=1 / 32768)
    assert (found.meta.text, found.meta.processed_text) == ("Ab. Cd.", "Ab. Cd.")
    usual = riva_client.synthesize("ab", sample_rate_hz=44100)
    assert len(usual.audio) / 2 == pytest.approx(2 * len(sound("ab")), abs=4)
    fast = riva_client.synthesize("ab", custom_configuration={"speed": "2"})
    assert len(fast.audio) / 2 == len(sound("ab", slower=0.5))


def test_rivas_client_gets_sentences_as_they_come(riva_client: riva.client.SpeechSynthesisService) -> None:
    whole = riva_client.synthesize("Ab. Cd.", voice_name="ann").audio
    parts = list(riva_client.synthesize_online("Ab. Cd.", voice_name="ann"))
    assert [each.meta.text for each in parts] == ["Ab.", "Cd."]
    assert b"".join(each.audio for each in parts) == whole
    assert len(list(riva_client.synthesize_online(["Ab. Cd.", "Ef."], voice_name="ann"))) == 3


@pytest.mark.parametrize(("encoding", "head"), [("FLAC", b"fLaC"), ("OGGOPUS", b"OggS")])
def test_rivas_client_gets_compressed_audio(
    riva_client: riva.client.SpeechSynthesisService, encoding: str, head: bytes
) -> None:
    number = riva.client.AudioEncoding.Value(encoding)
    assert riva_client.synthesize("Abc.", encoding=number).audio.startswith(head)
    parts = list(riva_client.synthesize_online("Abc. Def.", encoding=number))
    joined = b"".join(each.audio for each in parts)
    assert joined.startswith(head)
    assert len(joined) > len(parts[0].audio), "the parts are one file"


def test_rivas_client_lists_voices(riva_client: riva.client.SpeechSynthesisService) -> None:
    asked = tts.RivaSynthesisConfigRequest()
    found = {
        each.model_name: dict(each.parameters) for each in riva_client.stub.GetRivaSynthesisConfig(asked).model_config
    }
    assert found["two"] == {
        "language_code": "de-DE",
        "voice_name": "two",
        "subvoices": "ben:0,carl:1",
        "sample_rate": "22050",
    }
    assert found["ann"]["subvoices"] == ""


@pytest.mark.parametrize(
    ("asked", "status", "expected"),
    [
        ({"text": ""}, "INVALID_ARGUMENT", "nothing to speak"),
        ({"text": "<speak>a</speak>"}, "INVALID_ARGUMENT", "SSML"),
        ({"voice_name": "nobody"}, "INVALID_ARGUMENT", "no voice 'nobody'; there are ann, ben, carl"),
        ({"language_code": "fr-FR"}, "INVALID_ARGUMENT", "no such voice speaks 'fr-FR'; languages are de-DE, en-US"),
        ({"sample_rate_hz": 100}, "INVALID_ARGUMENT", "8000 to 48000"),
        ({"encoding": riva.client.AudioEncoding.MULAW}, "INVALID_ARGUMENT", "LINEAR_PCM, FLAC or OGGOPUS"),
        ({"custom_dictionary": {"a": "b"}}, "INVALID_ARGUMENT", "custom_dictionary"),
        ({"custom_configuration": {"speed": "fast"}}, "INVALID_ARGUMENT", "speed must be a number"),
        ({"custom_configuration": {"speed": "nan"}}, "INVALID_ARGUMENT", "a finite number, got nan"),
        ({"custom_configuration": {"speed": "1e999"}}, "INVALID_ARGUMENT", "a finite number, got inf"),
        ({"custom_configuration": {"pitch": "2"}}, "INVALID_ARGUMENT", "knows speed alone, got pitch"),
        ({"enable_word_time_offsets": True}, "INVALID_ARGUMENT", "enable_word_time_offsets"),
        ({"text": "x" * 300_000}, "OUT_OF_RANGE", "262144 bytes"),
    ],
)
def test_what_riva_cannot_have_is_said(
    riva_client: riva.client.SpeechSynthesisService, asked: dict[str, Any], status: str, expected: str
) -> None:
    body: dict[str, Any] = {"text": "ab", **asked}
    with pytest.raises(grpc.RpcError) as refused:
        riva_client.synthesize(**body)
    assert refused.value.code().name == status
    assert expected in refused.value.details()
    with pytest.raises(grpc.RpcError):
        list(riva_client.synthesize_online(**body))


def test_a_call_without_a_text_is_refused(riva_client: riva.client.SpeechSynthesisService) -> None:
    with pytest.raises(grpc.RpcError, match="without a message"):
        list(riva_client.synthesize_online([]))


def by_wyoming(server: GatewayServer, *asked: Eventable, last: str = "audio-stop") -> list[Event]:
    """What Home Assistant's client gets until an event of a type, or an error."""

    async def ask() -> list[Event]:
        found: list[Event] = []
        async with AsyncTcpClient("127.0.0.1", server.ports["wyoming"]) as client:
            for each in asked:
                await client.write_event(each.event())
            while (event := await client.read_event()) is not None:
                found.append(event)
                if event.type in (last, "error"):
                    break
        return found

    return asyncio.run(asyncio.wait_for(ask(), 60))


def played(events: list[Event]) -> Any:
    """The samples of an answer, after making sure that it begins and ends as it should."""
    kinds = [each.type for each in events if each.type != "synthesize-stopped"]
    assert kinds == ["audio-start", *["audio-chunk"] * (len(kinds) - 2), "audio-stop"]
    chunks = [AudioChunk.from_event(each) for each in events if each.type == "audio-chunk"]
    assert {(each.rate, each.width, each.channels) for each in chunks} <= {(22050, 2, 1)}
    return np.frombuffer(b"".join(each.audio for each in chunks), "<i2") / 32768


def test_home_assistant_finds_the_voices(speaking: GatewayServer) -> None:
    (event,) = by_wyoming(speaking, Describe(), last="info")
    (program,) = Info.from_event(event).tts
    assert program.supports_synthesize_streaming
    found = {each.name: (each.languages, [who.name for who in each.speakers or ()]) for each in program.voices}
    assert found == {"ann": (["en-US"], []), "two": (["de-DE"], ["ben", "carl"])}


@pytest.mark.parametrize(
    ("voice", "speaker"),
    [
        (None, 0),
        (SynthesizeVoice(name="ann"), 0),
        (SynthesizeVoice(name="two", speaker="carl"), 1),
        (SynthesizeVoice(language="de"), 0),
    ],
)
def test_home_assistant_gets_a_text_spoken(speaking: GatewayServer, voice: Any, speaker: int) -> None:
    samples = played(by_wyoming(speaking, Synthesize("Ab. " * 60 + "Cd.", voice=voice)))
    np.testing.assert_allclose(samples[:700], sound("ab.", speaker=speaker)[:700], atol=1 / 32768)
    pauses = 60 * round(0.2 * 22050)
    assert len(samples) == 61 * len(sound("ab.")) + pauses


def test_home_assistant_sends_a_text_as_it_is_written(speaking: GatewayServer) -> None:
    parts = ("A", "b", ". Cd", " ef.", " ", "Gh", "i")
    events = by_wyoming(
        speaking,
        SynthesizeStart(voice=SynthesizeVoice(name="ann")),
        *map(SynthesizeChunk, parts),
        Synthesize("".join(parts)),  # for servers that take no parts
        SynthesizeStop(),
        last="synthesize-stopped",
    )
    pause = np.zeros(round(0.2 * 22050))
    wanted = np.concatenate([sound("ab."), pause, sound("cd ef."), pause, sound("ghi")])
    np.testing.assert_allclose(played(events), wanted, atol=1 / 32768)
    assert played(by_wyoming(speaking, SynthesizeStart(), SynthesizeStop(), last="synthesize-stopped")).size == 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Synthesize(""), "nothing to speak"),
        (Synthesize("x" * 16385), "16,385 characters"),
        (Synthesize("ab", text_format="ssml"), "text_format must be 'text', got 'ssml'"),
        (Synthesize("ab", voice=SynthesizeVoice(name="nobody")), "there is no voice 'nobody'"),
        (Synthesize("ab", voice=SynthesizeVoice(name="two", speaker="ann")), "there is no voice 'two.ann'"),
        (Synthesize("ab", voice=SynthesizeVoice(language="fr")), "no such voice speaks 'fr'"),
        (Synthesize(["ab"]), "text must be a text"),  # type: ignore[arg-type]
        (SynthesizeChunk("ab"), "synthesize-chunk without synthesize-start"),
    ],
)
def test_what_home_assistant_cannot_have_is_said(speaking: GatewayServer, asked: Eventable, told: str) -> None:
    (event,) = by_wyoming(speaking, asked)
    assert told in Error.from_event(event).text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of the driver's process, closed with it
def test_the_page_speaks_and_can_be_stopped(speaking: GatewayServer) -> None:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make test-all fetches it"
    )
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on PATH (Debian: apt-get install chromium)")
    arguments = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{speaking.port}/")
        page.get_by_label("Voice").select_option(label="carl (de-DE)")
        page.get_by_label("Text to speak").fill("Abc. Def.")
        page.get_by_role("button", name="Speak", exact=True).click()
        page.locator("#speech-status", has_text="Spoken").wait_for(timeout=60_000)
        assert page.get_by_role("button", name="Play", exact=True).is_enabled(), "it can be heard again"
        page.get_by_label("Text to speak").fill(LONG[:4000])
        page.get_by_role("button", name="Speak", exact=True).click()
        page.locator("#speech-status", has_text="First sound after").wait_for(timeout=60_000)
        page.get_by_role("button", name="Stop", exact=True).click()
        page.locator("#speech-status", has_text="Stopped").wait_for(timeout=60_000)
        page.get_by_label("Text to speak").fill("?!")
        page.get_by_role("button", name="Speak", exact=True).click()
        assert "nothing to speak" in page.get_by_role("alert").inner_text(timeout=60_000)
        browser.close()
