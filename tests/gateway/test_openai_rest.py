"""OpenAI's REST protocol through the official client, and the raw forms that it never sends."""

import asyncio
import http.client
import io
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile

from toy import CONFIDENCE, CONTEXT, SAMPLE_RATE, toy_waveform
from tritone.client.models import ModelInfo
from tritone.errors import ServerBusyError
from tritone.gateway import GatewayOptions
from tritone.gateway.ask import search_of
from tritone.gateway.callers import new_key
from tritone.gateway.protocols.openai.request import TranscriptionRequest
from tritone.gateway.protocols.openai.rest import events_of
from tritone.gateway.refusal import FieldError
from tritone.gateway.server import GatewayServer
from tritone.gateway.speech import Speech
from tritone.server import TritonServer
from tritone.transcript import Span, Transcript

TEXT = "hello world"


@pytest.fixture(scope="module")
def client(gateway: GatewayServer) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{gateway.port}/v1"
    with openai.OpenAI(base_url=url, api_key="any", timeout=60, max_retries=0) as found:
        yield found


def recording(text: str = TEXT, subtype: str = "PCM_24", format: str = "WAV") -> tuple[str, bytes]:
    file = io.BytesIO()
    soundfile.write(file, toy_waveform(text), SAMPLE_RATE, subtype=subtype, format=format)
    return "speech.wav", file.getvalue()


def test_json_is_the_default(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(file=recording(), model="toy", language="en", temperature=0)
    assert found.text == TEXT
    assert found.usage is not None
    assert found.usage.type == "duration"
    assert found.usage.seconds == pytest.approx(toy_waveform(TEXT).size / SAMPLE_RATE, abs=0.001)


def test_log_probabilities_are_those_of_tokens(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(file=recording("ab"), model="toy", include=["logprobs"])
    assert found.logprobs is not None
    assert [each.token for each in found.logprobs] == ["a", "b"]
    assert [each.bytes for each in found.logprobs] == [[97], [98]]
    assert found.logprobs[0].logprob == pytest.approx(-0.0513, abs=0.001), f"the logarithm of {CONFIDENCE}"


def test_verbose_json_has_the_times_that_are_asked_for(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(
        file=recording(), model="toy", response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert found.words is not None
    assert found.segments is not None
    assert [word.word for word in found.words] == ["hello", "world"]
    assert found.words[0].start < found.words[0].end <= found.words[1].start
    assert [segment.text for segment in found.segments] == [TEXT]
    assert found.segments[0].avg_logprob == pytest.approx(-0.0513, abs=0.001)
    assert found.segments[0].end == found.words[1].end
    assert found.duration == pytest.approx(toy_waveform(TEXT).size / SAMPLE_RATE, abs=0.001)
    usual = client.audio.transcriptions.create(file=recording(), model="toy", response_format="verbose_json")
    assert (usual.words, len(usual.segments or [])) == (None, 1)


def test_subtitles_and_plain_text(client: openai.OpenAI) -> None:
    def formatted(response_format: Any) -> str:
        return client.audio.transcriptions.create(file=recording(), model="toy", response_format=response_format)

    assert formatted("text") == f"{TEXT}\n"
    assert formatted("srt").splitlines()[0] == "1"
    assert " --> " in formatted("srt")
    assert formatted("srt").splitlines()[2] == TEXT
    assert formatted("vtt").startswith("WEBVTT\n")


def test_a_stream_of_events_ends_with_the_whole_text(client: openai.OpenAI) -> None:
    with client.audio.transcriptions.create(file=recording(), model="toy", stream=True, include=["logprobs"]) as stream:
        events = list(stream)
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert "".join(event.delta for event in events[:-1]) == TEXT  # type: ignore[union-attr]
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert done.text == TEXT
    assert [each.token for each in done.logprobs or []] == list(TEXT.replace(" ", "▁"))


def test_a_long_recording_has_a_delta_for_each_part(client: openai.OpenAI) -> None:
    second = np.zeros(SAMPLE_RATE, np.float32)
    said = [np.concatenate((toy_waveform(word)[:-CONTEXT], second)) for word in ("one", "neo")]
    file = io.BytesIO()
    soundfile.write(file, np.concatenate(said * 8), SAMPLE_RATE, subtype="PCM_24", format="WAV")
    recorded = ("long.wav", file.getvalue())
    whole = client.audio.transcriptions.create(file=recorded, model="toy").text
    with client.audio.transcriptions.create(file=recorded, model="toy", stream=True) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole == events[-1].text  # type: ignore[union-attr]
    assert whole.replace(" ", "") == "oneneo" * 8


def test_a_large_file_goes_through_the_disk(client: openai.OpenAI) -> None:
    name, data = recording()
    padded = data + b"LIST" + (2**21).to_bytes(4, "little") + bytes(2**21)  # a chunk that readers leave out
    assert client.audio.transcriptions.create(file=(name, padded), model="toy").text == TEXT


def test_texts_are_written_as_the_request_asks(client: openai.OpenAI) -> None:
    body = {"texts": {"punctuate": True}, "search": {"timestamps": True}}
    assert client.audio.transcriptions.create(file=recording(), model="toy", extra_body=body).text == "Hello world."


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} >= {"toy", "live"}
    assert client.models.retrieve("toy").owned_by == "tritone"
    with pytest.raises(openai.NotFoundError, match="there is no model 'nobody'"):
        client.models.retrieve("nobody")


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"temperature": 3}, "temperature", "from 0 to 1"),
        ({"response_format": "mp3"}, "response_format", "one of json, text"),
        ({"include": ["logprobs"], "response_format": "text"}, "include", "json alone"),
        ({"stream": True, "response_format": "srt"}, "stream", "not srt"),
        ({"known_speaker_names": ["anna"]}, "known_speaker_names", "not possible here"),
        ({"languages": ["de", "en"]}, "allowed_languages", "does not detect languages"),
        ({"extra_body": {"allowed_languages": "de,en"}}, "allowed_languages", "does not detect languages"),
        ({"chunking_strategy": {"type": "server_vad", "threshold": 5}}, "chunking_strategy[threshold]", "0 to 1"),
        ({"chunking_strategy": {"type": "other"}}, "chunking_strategy", "'auto'"),
        ({"extra_body": {"vad_filter": "perhaps"}}, "vad_filter", "one of true"),
        ({"extra_body": {"colour": "red"}}, "colour", "is unknown"),
        ({"extra_body": {"search": {"beam": 3, "colour": 1}}}, None, "colour"),
        ({"file": ("a.wav", b"")}, "file", "missing or empty"),
        ({"extra_body": {"speakers": {"num_speakers": "x"}}, "response_format": "diarized_json"}, None, "whole number"),
    ],
)
def test_what_cannot_be_done_is_an_error_with_its_field(
    client: openai.OpenAI, fields: dict[str, Any], param: str | None, told: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(**{"file": recording(), "model": "toy", **fields})
    assert caught.value.type == "invalid_request_error"
    assert param in (None, caught.value.param)
    assert told in str(caught.value)


def test_what_has_no_influence_is_named_in_a_header(client: openai.OpenAI) -> None:
    create = client.audio.transcriptions.with_raw_response.create
    fields: dict[str, Any] = {
        "timestamp_granularities": ["segment"],  # with json, as Vercel's AI SDK sends it
        "prompt": "so",
        "temperature": 0.7,
        "language": "en",
        "chunking_strategy": {"type": "server_vad", "threshold": 0.5},
    }
    for stream in (False, True):
        answer = create(file=recording(), model="toy", stream=stream, **fields)
        told = answer.headers["x-tritone-ignored"].split("; ")
        assert sorted(each.partition(":")[0] for each in told) == [
            "chunking_strategy",
            "language",
            "prompt",
            "temperature",
            "timestamp_granularities",
        ]
        answer.http_response.read()
    assert "x-tritone-ignored" not in create(file=recording(), model="toy").headers


def test_reasons_are_true_of_the_model_and_the_gateway() -> None:
    whisper = ModelInfo(name="whisper", kind="offline", decodes=True, has_prompt=True)
    wanted = TranscriptionRequest.read([("vad_filter", "true"), ("prompt", "so"), ("temperature", "0.7")])
    assert wanted.ask(whisper, has_vad=True).speech_only
    assert wanted.notices(whisper, has_vad=True) == {}
    assert not wanted.ask(whisper).speech_only
    assert wanted.notices(whisper) == {"x-tritone-ignored": "vad_filter: no model for voice activity is served here"}
    for info, advice in (
        (ModelInfo(name="a", kind="offline", has_search=True), ", keywords[] favours words"),
        (ModelInfo(name="b", kind="offline"), ""),
    ):
        (notice,) = TranscriptionRequest.read([("prompt", "so")]).notices(info).values()
        assert notice == f"prompt: the model takes none{advice}"


def test_errors_have_the_documented_fields_wherever_they_come_from(client: openai.OpenAI) -> None:
    for path in ("/audio/nothing", "/models/none", "/nothing"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.get(path, cast_to=object)
        assert set(caught.value.response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_model_that_is_not_served_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.audio.transcriptions.create(file=recording(), model="whisper-1")
    assert caught.value.code == "model_not_found"
    assert "toy" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{}", "application/json"),
        (b"", "multipart/form-data"),
        (b"--x\r\nno form", "multipart/form-data; boundary=x"),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\ntext\r\n--x--\r\n',
            "multipart/form-data; boundary=x",
        ),
        (
            b"".join(
                b'--x\r\nContent-Disposition: form-data; name="search[%d]"\r\n\r\n1\r\n' % index
                for index in range(2000)
            )
            + b"--x--\r\n",
            "multipart/form-data; boundary=x",
        ),
    ],
)
def test_a_body_that_is_no_form_is_refused(gateway: GatewayServer, body: bytes, kind: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    try:
        connection.request("POST", "/v1/audio/transcriptions", body, {"content-type": kind})
        answer = connection.getresponse()
        error = json.loads(answer.read())["error"]
    finally:
        connection.close()
    assert (answer.status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] in ("body", "file")


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # OpenAI's own route is on its way out
def test_translations_need_a_model_that_translates(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not translate"):
        client.audio.translations.create(file=recording(), model="toy")


@contextmanager
def another(options: GatewayOptions, key: str = "any") -> Iterator[openai.OpenAI]:
    """A client of a gateway of its own."""
    with GatewayServer(options).background() as running:
        url = f"http://127.0.0.1:{running.port}/v1"
        with openai.OpenAI(base_url=url, api_key=key, timeout=60, max_retries=0) as found:
            yield found


def test_keys_and_limits_have_the_errors_that_the_client_knows(triton: TritonServer, tmp_path: Path) -> None:
    key, digest = new_key()
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n  - {{name: me, sha256: {digest}, requests_per_minute: 3}}\n", encoding="utf-8")
    options = GatewayOptions(triton=triton.grpc_address, port=0, keys=keys, aliases=("whisper-1",))
    with another(options, key) as client:
        assert client.audio.transcriptions.create(file=recording(), model="whisper-1").text == TEXT
        assert client.models.retrieve("whisper-1").id == "whisper-1"
        with pytest.raises(openai.AuthenticationError) as denied:
            client.with_options(api_key="wrong").models.list()
        assert denied.value.code == "invalid_api_key"
        client.models.list()
        with pytest.raises(openai.RateLimitError) as limited:
            client.models.list()
        assert limited.value.code == "rate_limit_exceeded"
        assert float(limited.value.response.headers["retry-after"]) > 0


def test_a_triton_that_does_not_answer_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with another(GatewayOptions(triton="127.0.0.1:9", port=0)) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.audio.transcriptions.create(file=recording(), model="toy")
        assert (caught.value.status_code, caught.value.type) == (503, "server_error")
        assert "127.0.0.1" not in str(caught.value)


def test_the_client_for_event_loops(gateway: GatewayServer) -> None:
    async def transcribe() -> list[str]:
        url = f"http://127.0.0.1:{gateway.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", timeout=60, max_retries=0) as client:
            calls = (client.audio.transcriptions.create(file=recording(text), model="toy") for text in ("one", "two"))
            return [found.text for found in await asyncio.gather(*calls)]

    assert asyncio.run(transcribe()) == ["one", "two"]


def test_an_error_after_the_first_event_is_an_event(triton: TritonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def parts(*_: Any, growing: bool) -> AsyncGenerator[Transcript, None]:
        yield Transcript(text="one")
        raise ServerBusyError("no room")

    monkeypatch.setattr(Speech, "parts", parts)
    options = GatewayOptions(triton=triton.grpc_address, port=0)
    with (
        another(options) as client,
        client.audio.transcriptions.create(file=recording(), model="toy", stream=True) as stream,
    ):
        events = iter(stream)
        assert next(events).type == "transcript.text.delta"
        with pytest.raises(openai.APIError, match="no room now"):
            next(events)


def test_words_have_speakers_where_they_are_asked_for(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(
        file=recording(), model="toy", response_format="diarized_json", extra_body={"speakers": {"num_speakers": 1}}
    )
    assert [(each.text, each.type) for each in found.segments] == [(TEXT, "transcript.text.segment")]
    assert found.segments[0].speaker
    assert found.task == "transcribe"
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.audio.transcriptions.create(
            file=recording(),
            model="toy",
            response_format="diarized_json",
            extra_body={"speakers": {"model": "nobody"}},
        )


def test_each_channel_is_a_speaker_where_that_is_asked_for(client: openai.OpenAI) -> None:
    audio = np.stack([toy_waveform("hello world"), toy_waveform("seven eights")], axis=1)
    file = io.BytesIO()
    soundfile.write(file, audio, SAMPLE_RATE, format="WAV", subtype="FLOAT")
    call = ("call.wav", file.getvalue())

    def answered(response_format: Any, **more: Any) -> Any:
        return client.audio.transcriptions.create(
            file=call, model="toy", response_format=response_format, extra_body={"channels": "each"}, **more
        )

    found = [(each.speaker, each.text) for each in answered("diarized_json").segments]
    assert sorted(found) == [("channel1", "hello world"), ("channel2", "seven eights")]
    assert "<v channel2>seven eights</v>" in answered("vtt")
    assert [each.type for each in answered("json", stream=True)] == ["transcript.text.delta", "transcript.text.done"]
    with pytest.raises(openai.BadRequestError, match="each makes every channel a speaker"):
        answered("json", include=["logprobs"])


def test_a_diarised_stream_has_segments_with_speakers() -> None:
    async def parts() -> AsyncGenerator[Transcript, None]:
        yield Transcript(text="yes no", words=(Span("yes", 0.0, 0.5, 1.0, "A"), Span("no", 0.5, 1.0, 1.0, "B")))
        yield Transcript(text="so", words=(Span("so", 2.0, 2.5, 1.0, "A"),))

    async def collected() -> list[dict[str, Any]]:
        wanted = TranscriptionRequest(response_format="diarized_json", stream=True)
        return [event async for event in events_of(parts(), wanted)]

    found = asyncio.run(collected())
    assert [event["delta"] for event in found if "delta" in event] == ["yes no", " so"]
    segments = [(each["id"], each["text"], each["speaker"]) for each in found if "speaker" in each]
    assert segments == [("seg_0", "yes", "A"), ("seg_1", "no", "B"), ("seg_2", "so", "A")]
    assert found[-1] == {"type": "transcript.text.done", "text": "yes no so"}


def test_whisper_models_take_language_prompt_and_temperature() -> None:
    able = dict.fromkeys(("decodes", "has_prompt", "finds_language", "translates", "has_word_times"), True)
    whisper = ModelInfo(name="w", kind="offline", **able)
    fields = [("language", "de"), ("prompt", "so"), ("keywords[]", "Anna"), ("temperature", "0.4")]
    fields += [("response_format", "verbose_json"), ("timestamp_granularities[]", "word"), ("search[beam]", "5")]
    found = TranscriptionRequest.read(fields).ask(whisper, translate=True)
    assert found.search == {
        **{"language": "de", "prompt": "so, Anna", "temperature": 0.4},
        **{"task": "translate", "beam": "5"},
    }
    assert search_of(found, whisper) == {**found.search, "word_times": True}
    assert TranscriptionRequest.read([("temperature", "0"), ("language", "")]).ask(whisper).search == {}
    both = [
        ("languages[]", "de"),
        ("languages[]", "fr-FR"),
        ("allowed_languages", "it, de"),
        ("allowed_languages[]", "nl"),
    ]
    assert TranscriptionRequest.read(both).ask(whisper).search == {"allowed_languages": "it,de,nl,fr"}
    canary = ModelInfo(name="c", kind="offline", decodes=True, translates=True, languages=("en", "de", "fr"))
    asked = TranscriptionRequest.read([("language", "fr-FR"), ("prompt", "so"), ("timestamp_granularities[]", "word")])
    assert asked.ask(canary, translate=True).search == {"language": "fr", "task": "translate"}
    assert "prompt" in asked.notices(canary)["x-tritone-ignored"]
    for fields, name in (([("language", "xx")], "language"), ([("allowed_languages", "de,xx")], "allowed_languages")):
        with pytest.raises(FieldError, match="knows no language 'xx'; it knows en, de, fr") as refused:
            TranscriptionRequest.read(fields).ask(canary)
        assert refused.value.param == name
    ctc = ModelInfo(name="c", kind="offline")
    found = TranscriptionRequest.read([("keywords[]", "Anna"), ("language", "de")]).ask(ctc)
    assert found.search == {"hotwords": '{"Anna": 5.0}'}
