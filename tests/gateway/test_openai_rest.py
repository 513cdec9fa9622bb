"""OpenAI's REST door through the official client, and the raw forms that it never sends."""

import http.client
import io
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import soundfile

from toy import CONFIDENCE, SAMPLE_RATE, toy_waveform
from tritone.gateway.server import GatewayServer

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
        ({"prompt": "so"}, "prompt", "keywords"),
        ({"temperature": 0.7}, "temperature", "must be 0 for model 'toy'"),
        ({"temperature": 3}, "temperature", "from 0 to 1"),
        ({"response_format": "mp3"}, "response_format", "one of json, text"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities", "verbose_json"),
        ({"include": ["logprobs"], "response_format": "text"}, "include", "json alone"),
        ({"stream": True, "response_format": "srt"}, "stream", "not srt"),
        ({"known_speaker_names": ["anna"]}, "known_speaker_names", "not possible here"),
        ({"languages": ["de", "en"]}, "languages", "several"),
        ({"chunking_strategy": {"type": "server_vad", "threshold": 0.5}}, "chunking_strategy", "'auto'"),
        ({"extra_body": {"colour": "red"}}, "colour", "is unknown"),
        ({"extra_body": {"search": {"beam": 3, "colour": 1}}}, None, "colour"),
        ({"file": ("a.wav", b"")}, "file", "missing or empty"),
        ({"file": ("a.wav", b"nothing that is audio")}, None, ""),
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
