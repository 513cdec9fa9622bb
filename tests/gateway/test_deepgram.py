"""Deepgram's protocol through its official client, and what that never sends."""

import http.client
import inspect
import io
import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from deepgram import DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment
from deepgram.listen.v1.client import V1Client
from deepgram.listen.v1.media.raw_client import RawMediaClient
from deepgram.listen.v2.client import V2Client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as open_socket

from toy import CONTEXT, SAMPLE_RATE, toy_waveform
from tritone.client.models import ModelInfo
from tritone.errors import InputError
from tritone.gateway import GatewayOptions
from tritone.gateway.callers import new_key
from tritone.gateway.protocols.deepgram.answers import Numbers, alternatives, whole
from tritone.gateway.protocols.deepgram.flux import Thresholds
from tritone.gateway.protocols.deepgram.request import IGNORED, READ, REFUSED, SWITCHES, ListenRequest
from tritone.gateway.server import GatewayServer
from tritone.server import TritonServer
from tritone.transcript import Span, Transcript

TEXT = "hello world"
TIMEOUT_S = 60.0


@contextmanager
def client_of(gateway: GatewayServer, key: str = "any") -> Iterator[DeepgramClient]:
    address = f"127.0.0.1:{gateway.port}"
    environment = DeepgramClientEnvironment(
        base=f"http://{address}", production=f"ws://{address}", agent=f"ws://{address}", agent_rest=f"http://{address}"
    )
    with httpx.Client(timeout=TIMEOUT_S) as connections:
        yield DeepgramClient(api_key=key, environment=environment, httpx_client=connections)


@pytest.fixture(scope="module")
def client(gateway: GatewayServer) -> Iterator[DeepgramClient]:
    with client_of(gateway) as found:
        yield found


def pcm(text: str) -> bytes:
    samples = toy_waveform(text)
    return bytes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def recording(text: str = TEXT) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, toy_waveform(text), SAMPLE_RATE, subtype="PCM_16", format="WAV")
    return file.getvalue()


def test_a_recording_has_words_and_times(client: DeepgramClient) -> None:
    found = client.listen.v1.media.transcribe_file(
        request=recording(), model="toy", utterances=True, smart_format=True, tag="call", language="en-US"
    )
    [channel] = found.results.channels
    best = channel.alternatives[0]
    assert best.transcript.lower().rstrip(".") == TEXT
    assert [word.word for word in best.words] == ["hello", "world"]
    assert best.words[0].start < best.words[0].end <= best.words[1].start
    [utterance] = found.results.utterances
    assert (utterance.start, utterance.end) == (best.words[0].start, best.words[1].end)
    [paragraph] = best.paragraphs.paragraphs
    assert (paragraph.num_words, len(paragraph.sentences)) == (2, 1)
    assert found.metadata.duration == pytest.approx(toy_waveform(TEXT).size / SAMPLE_RATE, abs=0.001)
    assert (found.metadata.models, found.metadata.tags) == (["toy"], ["call"])


def test_each_channel_has_a_transcript_of_its_own(client: DeepgramClient) -> None:
    file, (first, second) = io.BytesIO(), (toy_waveform(text) for text in ("hello", "you"))
    both = np.stack([first, np.pad(second, (0, first.size - second.size))], axis=1)
    soundfile.write(file, both, SAMPLE_RATE, subtype="PCM_16", format="WAV")
    found = client.listen.v1.media.transcribe_file(
        request=file.getvalue(), model="toy", multichannel=True, utterances=True
    )
    texts = [each.alternatives[0].transcript for each in found.results.channels]
    assert (texts[0], texts[1][:3], found.metadata.channels) == ("hello", "you", 2)
    assert {each.channel for each in found.results.utterances} == {0, 1}


def test_samples_without_a_header_are_what_the_address_says(client: DeepgramClient) -> None:
    raw = {"encoding": "linear16", "request_options": {"additional_query_parameters": {"sample_rate": SAMPLE_RATE}}}
    found = client.listen.v1.media.transcribe_file(request=pcm(TEXT), model="toy", **raw)
    assert found.results.channels[0].alternatives[0].transcript == TEXT


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"model": "nova-3"}, "there is no"),
        ({"redact": "pci"}, "redact: nothing is redacted here"),
        ({"callback": "http://127.0.0.1/"}, "callback: answers go to who asks"),
        ({"keywords": "word:loud"}, "keywords: 'word:loud'"),
        ({"encoding": "amr-nb"}, "encoding must be one of"),
        ({"summarize": "v2"}, "summarize: nothing is summarized"),
        ({"measurements": True}, "measurements: names of units"),
        ({"multichannel": True, "diarize": True}, "each channel is a speaker"),
        ({"request_options": {"additional_query_parameters": {"smart_fromat": "true"}}}, "'smart_fromat' is no param"),
    ],
)
def test_what_cannot_be_done_is_refused_and_says_why(client: DeepgramClient, more: dict[str, Any], part: str) -> None:
    with pytest.raises(ApiError) as refused:
        client.listen.v1.media.transcribe_file(request=recording(), **{"model": "toy", **more})
    assert refused.value.status_code in (400, 404)
    assert part in refused.value.body["err_msg"]
    assert refused.value.body["request_id"]


def test_recordings_are_not_fetched_from_addresses(client: DeepgramClient) -> None:
    with pytest.raises(ApiError) as refused:
        client.listen.v1.media.transcribe_url(url="http://127.0.0.1/secret", model="toy")
    assert (refused.value.status_code, "send the audio itself" in refused.value.body["err_msg"]) == (400, True)


@pytest.mark.parametrize(("body", "status"), [(b"", 400), (b"no audio at all", 415), (recording()[:30], 400)])
def test_a_body_that_is_no_audio_is_refused(gateway: GatewayServer, body: bytes, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=TIMEOUT_S)
    connection.request("POST", "/v1/listen?model=toy", body, {"content-type": "audio/wav"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    assert (answer.status, found["request_id"]) == (status, answer.headers["dg-request-id"])


def streamed(client: DeepgramClient, data: bytes, step: int, **options: Any) -> list[Any]:
    """What the official client hears: audio in pieces, then the end of the stream."""
    found: list[Any] = []
    with client.listen.v1.connect(model="live", **options) as socket:
        socket.on(EventType.MESSAGE, found.append)
        listening = threading.Thread(target=socket.start_listening)
        listening.start()
        socket.send_keep_alive()
        for start in range(0, len(data), step):
            socket.send_media(data[start : start + step])
        socket.send_close_stream()
        listening.join(TIMEOUT_S)
        assert not listening.is_alive()
    return found


LINEAR = {"encoding": "linear16", "sample_rate": SAMPLE_RATE}


def final_text(found: list[Any]) -> str:
    finals = [each for each in found if each.type == "Results" and each.is_final]
    return " ".join(filter(None, (each.channel.alternatives[0].transcript for each in finals)))


@pytest.mark.parametrize("step", [333, 6400])
def test_a_stream_is_heard_as_it_comes(client: DeepgramClient, step: int) -> None:
    found = streamed(client, pcm(TEXT), step, interim_results=True, **LINEAR)
    *results, last = found
    assert final_text(found) == TEXT
    assert any(not each.is_final for each in results)
    assert [each.type for each in results] == ["Results"] * len(results)
    assert (last.type, last.channels, last.duration) == (
        "Metadata",
        1,
        pytest.approx(len(pcm(TEXT)) / 2 / SAMPLE_RATE, abs=0.001),
    )
    assert [word.word for word in results[-1].channel.alternatives[0].words] == TEXT.split()


def test_texts_that_change_come_only_where_they_are_asked_for(client: DeepgramClient) -> None:
    found = streamed(client, pcm(TEXT), 3200, **LINEAR)
    assert [each.type for each in found] == ["Results", "Metadata"]


def test_pauses_end_utterances_with_their_events(client: DeepgramClient) -> None:
    # The levels of these letters add up to the toy's number of tokens, so that zeros after them are silence.
    audio = pcm("one")[: -2 * CONTEXT] + bytes(4 * SAMPLE_RATE) + pcm("neo")
    found = streamed(client, audio, 3200, vad_events=True, utterance_end_ms=1000, **LINEAR)
    assert [each.type for each in found if each.type != "Metadata"] == [
        *("SpeechStarted", "Results", "UtteranceEnd", "SpeechStarted", "Results")
    ]
    assert final_text(found) == "one neo"
    first, second = (each for each in found if each.type == "Results")
    assert (first.speech_final, second.speech_final) == (True, False)
    assert second.start >= first.start + first.duration - 0.001
    [ended] = (each for each in found if each.type == "UtteranceEnd")
    assert ended.last_word_end == first.channel.alternatives[0].words[-1].end


def test_finalize_writes_what_was_heard_and_goes_on(client: DeepgramClient) -> None:
    found: list[Any] = []
    with client.listen.v1.connect(model="live", **LINEAR) as socket:
        socket.send_media(pcm("hi"))
        socket.send_finalize()
        found.append(socket.recv())
        socket.send_media(pcm("you"))
        socket.send_close_stream()
        found += [socket.recv(), socket.recv()]
    assert [(each.type, getattr(each, "from_finalize", None)) for each in found] == [
        ("Results", True),
        ("Results", False),
        ("Metadata", None),
    ]
    assert final_text(found) == "hi you"


def test_a_file_is_streamed_without_saying_what_it_is(client: DeepgramClient) -> None:
    assert final_text(streamed(client, recording(), 1000)) == TEXT


def test_a_stream_without_audio_ends_with_its_metadata(client: DeepgramClient) -> None:
    assert [each.type for each in streamed(client, b"", 1, **LINEAR)] == ["Metadata"]


def test_telephone_audio_is_heard(client: DeepgramClient) -> None:
    codes = io.BytesIO()
    soundfile.write(codes, toy_waveform(TEXT), SAMPLE_RATE, subtype="ULAW", format="RAW")
    found = streamed(client, codes.getvalue(), 160, encoding="mulaw", sample_rate=SAMPLE_RATE)
    assert final_text(found) == TEXT


@pytest.mark.parametrize(
    ("query", "message", "part"),
    [
        ("model=live&encoding=linear16", bytes(3200), "needs sample_rate"),
        ("model=live&encoding=linear16&sample_rate=1", bytes(3200), "sample_rate is 1"),
        ("model=live&encoding=linear16&sample_rate=16000", '{"type": "Configure"}', "expected audio"),
        ("model=live&encoding=linear16&sample_rate=16000", "{", "must be a JSON object"),
        ("model=nobody", bytes(3200), "there is no"),
        ("model=live&multichannel=true&channels=2", bytes(3200), "multichannel"),
    ],
)
def test_a_stream_says_why_it_ends(gateway: GatewayServer, query: str, message: str | bytes, part: str) -> None:
    with open_socket(f"ws://127.0.0.1:{gateway.port}/v1/listen?{query}", open_timeout=TIMEOUT_S) as socket:
        with suppress(ConnectionClosed):
            socket.send(message)
        found = json.loads(socket.recv(TIMEOUT_S))
        assert (found["type"], part in found["description"]) == ("Error", True), found


@pytest.fixture
def locked(triton: TritonServer, tmp_path: Any) -> Iterator[tuple[GatewayServer, str]]:
    key, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: someone, sha256: {digest}}}]", encoding="utf-8")
    options = GatewayOptions(triton=f"http://{triton.http_address}", port=0, keys=file)
    with GatewayServer(options).background() as running:
        yield running, key


def test_keys_are_those_of_the_client(locked: tuple[GatewayServer, str]) -> None:
    server, key = locked
    with client_of(server, key) as known:
        assert known.listen.v1.media.transcribe_file(request=recording(), model="toy").results.channels
        assert final_text(streamed(known, pcm(TEXT), 3200, **LINEAR)) == TEXT
    url = f"ws://127.0.0.1:{server.port}/v1/listen?model=live&encoding=linear16&sample_rate={SAMPLE_RATE}"
    with open_socket(url, subprotocols=["token", key]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "token"
        socket.send('{"type": "CloseStream"}')
        assert json.loads(socket.recv(TIMEOUT_S))["type"] == "Metadata"
    with client_of(server, "sk-unknown") as stranger, pytest.raises(ApiError) as refused:
        stranger.listen.v1.media.transcribe_file(request=recording(), model="toy")
    assert refused.value.status_code == 401


def test_speakers_are_numbered_as_they_are_met_and_marks_are_apart() -> None:
    words = (
        Span("Well,", 0.0, 0.2, 0.9, "speaker 2"),
        Span("no.", 0.3, 0.5, 0.8, "speaker 2"),
        Span("Yes!", 0.5, 0.9, 0.7, "speaker 1"),
    )
    found = Transcript("Well, no. Yes!", words=words, audio_s=1.0, language="de")
    wanted = ListenRequest.read([("punctuate", "true"), ("paragraphs", "true"), ("detect_language", "true")])
    [best] = alternatives(found, wanted, Numbers())
    assert [(each["word"], each["punctuated_word"], each["speaker"]) for each in best["words"]] == [
        ("well", "Well,", 0),
        ("no", "no.", 0),
        ("yes", "Yes!", 1),
    ]
    answer = whole([found], wanted, request_id="1", sha256="0", model="m")
    channel = answer["results"]["channels"][0]
    assert channel["detected_language"] == "de"
    assert [each["speaker"] for each in channel["alternatives"][0]["paragraphs"]["paragraphs"]] == [0, 1]


def test_a_language_is_named_detected_or_refused() -> None:
    told = ModelInfo(name="told", kind="offline", languages=("auto", "en-US", "de-DE"))
    whisper = ModelInfo(name="w", kind="offline", has_prompt=True, finds_language=True, languages=("en", "de"))

    def asked(info: ModelInfo, *items: tuple[str, str]) -> Any:
        return ListenRequest.read(items).ask(info).search

    assert asked(told, ("language", "de")) == {"language": "de-DE"}
    assert asked(told, ("detect_language", "true")) == asked(told, ("language", "multi")) == {"language": "auto"}
    assert asked(whisper, ("detect_language", "true"), ("language_hint", "de")) == {"allowed_languages": "de"}
    assert asked(ModelInfo(name="one", kind="offline"), ("detect_language", "true"), ("language", "de")) == {}
    with pytest.raises(InputError, match="'told' knows no language 'sv'; it knows en-US, de-DE"):
        asked(told, ("language", "sv"))
    with pytest.raises(InputError, match="does not detect languages; name one of en, de"):
        asked(ModelInfo(name="c", kind="offline", languages=("en", "de")), ("detect_language", "true"))


@pytest.mark.parametrize(
    ("items", "check"),
    [
        ([("keyterm", "tritone"), ("keyterm", "two words")], lambda found: len(found.favoured) == 2),
        ([("keywords", "a:2"), ("keywords", "b")], lambda found: found.favoured["a"] == 2 * found.favoured["b"]),
        ([("endpointing", "false")], lambda found: found.endpointing_ms == 0),
        ([("endpointing", "300")], lambda found: found.endpointing_ms == 300),
        ([("redact", "false"), ("callback", "")], lambda found: not found.diarize),
        ([("diarize_model", "latest")], lambda found: found.diarize),
        ([("extra", "a:b"), ("version", "latest")], lambda found: found.extra == {"a": "b"}),
        ([("detect_language", "true")], lambda found: (found.detect_language, found.hints) == (True, ())),
        (
            [("detect_language", "de"), ("detect_language", "fr")],
            lambda found: (found.detect_language, found.hints) == (True, ("de", "fr")),
        ),
    ],
)
def test_parameters_are_read(items: list[tuple[str, str]], check: Callable[[ListenRequest], bool]) -> None:
    assert check(ListenRequest.read(items))


@pytest.mark.parametrize(
    ("call", "also"),
    [
        (RawMediaClient.transcribe_file, ()),
        (V1Client.connect, ()),
        (V2Client.connect, Thresholds.__dataclass_fields__),
    ],
)
def test_every_parameter_of_the_official_client_is_known(call: Callable[..., Any], also: Collection[str]) -> None:
    """One that changes nothing here stands in the page on this protocol."""
    names = set(inspect.signature(call).parameters) - {"self", "request", "authorization", "request_options"}
    assert names <= {*READ, *SWITCHES, *REFUSED, *IGNORED, *also}
    page = (Path(__file__).parents[2] / "docs" / "applications" / "gateway-deepgram.md").read_text(encoding="utf-8")
    missing = {each for each in {*READ[1:], *SWITCHES, *REFUSED, *IGNORED} if f"`{each}`" not in page}
    assert missing == set()


@pytest.mark.parametrize(
    "item",
    [("punctuate", "maybe"), ("sample_rate", "-1"), ("utt_split", "nan"), ("endpointing", "1e9"), ("channels", "99")],
)
def test_values_that_cannot_be_used_are_refused(item: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=item[0]):
        ListenRequest.read([item])
