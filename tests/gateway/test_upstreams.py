"""Models of other servers behind the gateway, by OpenAI's official client: recordings."""

import asyncio
import base64
import io
import json
import logging
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from starlette.requests import Request
from starlette.responses import StreamingResponse

from elsewhere import WORDS, Elsewhere, Talk, client_of, heard, metrics, never, raw_server, said, wav
from toy import toy_waveform
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.server import GatewayServer
from tritone.gateway.upstreams.answers import read_transcript
from tritone.gateway.upstreams.circuit import Circuit
from tritone.gateway.upstreams.options import UpstreamOptions, read_upstreams
from tritone.gateway.upstreams.upstream import form, request_fields
from tritone.net.fetch import fetch
from tritone.net.http_server import Response
from tritone.server import TritonServer

KEY = "sk-elsewhere-0123456789"
VLLM = json.loads((Path(__file__).parents[1] / "golden" / "vllm" / "transcription.json").read_text(encoding="utf-8"))


@pytest.fixture
def there() -> Iterator[Elsewhere]:
    with Elsewhere() as found:
        yield found


def translated(client: openai.OpenAI, model: str, **fields: Any) -> str:
    with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI's own word about it
        return client.audio.translations.create(file=wav(said(1)), model=model, **fields).text


def test_a_model_elsewhere_answers_in_every_format(there: Elsewhere) -> None:
    words = UpstreamOptions(name="elsewhere", url=there.url, model="whisper-1", times="words")
    with client_of(words) as client:
        create: Callable[..., Any] = client.audio.transcriptions.create
        file = wav(said(1, 2))
        assert create(file=file, model="elsewhere").text == "one two"
        verbose = create(
            file=file, model="elsewhere", response_format="verbose_json", timestamp_granularities=["word", "segment"]
        )
        assert [(each.word, each.start, each.end) for each in verbose.words] == [("one", 0.5, 1.5), ("two", 2, 3)]
        assert [(each.text, each.avg_logprob) for each in verbose.segments] == [("one", -0.25), ("two", -0.25)]
        assert (verbose.language, verbose.duration) == ("en", 3.5)
        assert create(file=file, model="elsewhere", response_format="text") == "one two\n"
        srt = create(file=file, model="elsewhere", response_format="srt")
        assert "00:00:00,500 --> 00:00:01,500\none\n" in srt
        assert "00:00:02.000 --> 00:00:03.000\ntwo" in create(file=file, model="elsewhere", response_format="vtt")
        with create(file=file, model="elsewhere", stream=True) as stream:
            assert list(stream)[-1].text == "one two"
        assert [each.id for each in client.models.list()] == ["elsewhere"]
    assert {each.field_of("model") for each in there.seen} == {"whisper-1"}
    assert all(each.path == "/v1/audio/transcriptions" for each in there.seen)


def test_what_is_asked_for_arrives_and_nothing_else_does(there: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWHERE_KEY", KEY)
    options = UpstreamOptions(name="voxtral", url=there.url, key_env="ELSEWHERE_KEY", translates=True)
    with client_of(options) as client:
        more: dict[str, Any] = {"extra_headers": {"x-request-id": "visit-7", "x-private": "mine"}}
        client.audio.transcriptions.create(
            file=wav(said(1)), model="voxtral", language="de-DE", prompt="Anna, Zürich", temperature=0.2, **more
        )
        translated(client, "voxtral", response_format="json")
    asked, translation = there.seen
    assert asked.fields == [tuple(each) for each in VLLM["requests"]["json"]][:1] + sorted(asked.fields[1:-1]) + [
        ("response_format", "json")
    ]
    assert sorted(asked.fields) == sorted(map(tuple, VLLM["requests"]["json"]))
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["x-request-id"] == "visit-7"
    assert "x-private" not in asked.headers
    assert translation.path == "/v1/audio/translations"
    assert {name for name, _ in translation.fields} <= set(VLLM["translation_fields"])


def test_requests_and_answers_are_those_of_vllm() -> None:
    segments = UpstreamOptions(name="voxtral", url="http://vllm:8000/v1", times="segments")
    everything = {"language": "de", "prompt": "p", "temperature": 0, "task": "transcribe", "word_times": "auto"}
    assert {name for name, _ in request_fields(everything, segments)} <= set(VLLM["request_fields"])
    plain = read_transcript(json.dumps(VLLM["answers"]["json"]).encode(), "none", 2.0)
    assert (plain.text, plain.segments, plain.audio_s) == ("Guten Tag.", (), 2.0)
    assert read_transcript(json.dumps(VLLM["answers"]["translation_json"]).encode(), "none", 2.0).text == "Good day."
    timed = read_transcript(json.dumps(VLLM["answers"]["verbose_json"]).encode(), "segments", 2.0)
    assert [(each.text, each.start_s, each.end_s) for each in timed.segments] == [
        ("Guten Tag.", 0.0, 1.1),
        ("Auf Wiedersehen.", 1.1, 2.0),  # Whisper's times may go beyond the audio
    ]
    assert timed.segments[1].tokens == (50419, 9223, 50488)
    assert timed.language == "de"


def test_a_long_recording_is_cut_at_pauses_and_joined(there: Elsewhere) -> None:
    numbers = [1, 2, 3, 4, 5, 6, 7, 8] * 3
    with client_of(UpstreamOptions(name="short", url=there.url, times="segments", max_audio_s=5)) as client:
        found: Any = client.audio.transcriptions.create(
            file=wav(said(*numbers)), model="short", response_format="verbose_json"
        )
    assert found.text == " ".join(WORDS[each] for each in numbers)
    starts = [0.5 + 1.5 * each for each in range(len(numbers))]
    assert [each.start for each in found.segments] == pytest.approx(starts, abs=0.02)
    assert len(there.seen) > 5
    assert all(len(each.file) <= 2 * 5 * 16000 + 44 for each in there.seen)


def streamed(*events: str | dict[str, Any], go_on: threading.Event | None = None) -> Callable[[Request], Any]:
    """An answer in events, in parts that are cut anywhere; before the last event it waits for `go_on`."""

    async def sent() -> AsyncIterator[bytes]:
        for number, event in enumerate(events):
            if go_on is not None and number == len(events) - 1:
                assert await asyncio.to_thread(go_on.wait, 20)
            line = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            data = f"data: {line}\r\n\r\n".encode()
            for start in range(0, len(data), 7):
                yield data[start : start + 7]

    async def answer(request: Request) -> StreamingResponse:
        return StreamingResponse(sent(), media_type="text/event-stream")

    return answer


def delta(text: str) -> dict[str, str]:
    return {"type": "transcript.text.delta", "delta": text}


STREAMED: Any = {
    "openai": [delta(" Grüß"), delta(" Gott"), delta("."), {"type": "transcript.text.done", "text": "Grüß Gott."}],
    "vllm": [*VLLM["answers"]["chunks"], "[DONE]"],
}


@pytest.mark.parametrize("of", STREAMED)
def test_a_text_is_passed_on_while_it_is_written(there: Elsewhere, of: str) -> None:
    went_on = threading.Event()
    there.next.append(streamed(*STREAMED[of], go_on=went_on))
    options = UpstreamOptions(name="voxtral", url=there.url, times="segments", events=True)
    with (
        client_of(options) as client,
        client.audio.transcriptions.create(file=wav(said(1)), model="voxtral", stream=True) as stream,
    ):
        got: list[Any] = [next(stream)]
        went_on.set()
        got += stream
    assert got[0].delta.startswith("Grüß")
    assert "".join(each.delta for each in got[:-1]) == got[-1].text == "Grüß Gott."
    (asked,) = there.seen
    assert sorted(asked.fields) == [("model", "voxtral"), ("response_format", "json"), ("stream", "true")]


def test_the_texts_of_a_long_recording_are_passed_on_in_order(there: Elsewhere) -> None:
    """Those of later pieces wait for the ones before them."""
    all_asked = threading.Event()

    async def by_piece(request: Request) -> Any:
        samples, rate = soundfile.read(io.BytesIO(there.seen[-1].file), dtype="float32")
        text = " ".join(each["word"] for each in heard(samples, rate))
        is_first = text.startswith("one")
        if len(there.seen) == 4:
            all_asked.set()
        events = (delta(text[:2]), delta(text[2:]), {"type": "transcript.text.done", "text": text})
        return await streamed(*events, go_on=all_asked if is_first else None)(request)

    there.next += [by_piece] * 4
    options = UpstreamOptions(name="voxtral", url=there.url, max_audio_s=2, events=True)
    with (
        client_of(options) as client,
        client.audio.transcriptions.create(file=wav(said(1, 2, 3, 4)), model="voxtral", stream=True) as stream,
    ):
        got: list[Any] = list(stream)
    assert len(there.seen) == 4
    assert "".join(each.delta for each in got[:-1]) == got[-1].text == "one two three four"
    assert got[0].delta in ("on", "one")


def test_who_leaves_a_text_ends_its_request(there: Elsewhere) -> None:
    left = threading.Event()

    async def sent() -> AsyncIterator[bytes]:
        try:
            yield f"data: {json.dumps(delta('one'))}\n\n".encode()
            await asyncio.Event().wait()
        finally:
            left.set()

    async def answer(request: Request) -> StreamingResponse:
        return StreamingResponse(sent(), media_type="text/event-stream")

    there.next.append(answer)
    with client_of(UpstreamOptions(name="voxtral", url=there.url, events=True)) as client:
        with client.audio.transcriptions.create(file=wav(said(1)), model="voxtral", stream=True) as stream:
            assert next(stream).type == "transcript.text.delta"
        assert left.wait(20)


def test_a_server_that_sends_no_events_answers_as_ever(there: Elsewhere) -> None:
    with client_of(UpstreamOptions(name="whisper", url=there.url, events=True)) as client:
        with client.audio.transcriptions.create(file=wav(said(1, 2)), model="whisper", stream=True) as stream:
            assert list(stream)[-1].text == "one two"
        assert client.audio.transcriptions.create(file=wav(said(1)), model="whisper").text == "one"
    assert [each.field_of("stream") for each in there.seen] == ["true", None]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([delta("one"), {"error": {"message": "out of memory"}}], "failed within the text: out of memory"),
        ([delta("one"), {"type": "transcript.text.segment"}], "ended before the text did"),
        ([delta("one"), "{nothing"], "no JSON"),
        ([delta("one"), {"type": "transcript.text.delta"}], "no text as delta"),
    ],
)
def test_a_text_that_breaks_off_is_an_error_and_not_asked_for_again(
    there: Elsewhere, caplog: pytest.LogCaptureFixture, events: list[Any], message: str
) -> None:
    went_on = threading.Event()
    there.next.append(streamed(*events, go_on=went_on))
    with client_of(UpstreamOptions(name="voxtral", url=there.url, events=True)) as client:
        with client.audio.transcriptions.create(file=wav(said(1)), model="voxtral", stream=True) as stream:
            assert next(stream).type == "transcript.text.delta"
            went_on.set()
            with pytest.raises(openai.APIError, match="its protocol does not have"):
                list(stream)
        assert metrics(client)['requests_total{outcome="bad_answer",upstream="voxtral"}'] == 1
    assert message in caplog.text
    assert len(there.seen) == 1


def test_models_of_triton_and_of_others_stand_side_by_side(triton: TritonServer, there: Elsewhere) -> None:
    elsewhere = UpstreamOptions(name="elsewhere", url=there.url)
    with client_of(elsewhere, triton=f"http://{triton.http_address}", aliases=("whisper-1",)) as client:
        assert {each.id for each in client.models.list()} >= {"toy", "live", "elsewhere", "whisper-1"}
        create = client.audio.transcriptions.create
        assert create(file=wav(toy_waveform("hello")), model="whisper-1").text == "hello"  # Triton's only one
        assert create(file=wav(said(3)), model="elsewhere").text == "three"
        # Its pauses are found by Triton's model for voice activity, which hears the level.
        long = said(*[1, 2, 3, 4] * 8)
        assert create(file=wav(long), model="elsewhere").text == " ".join(["one two three four"] * 8)


def test_the_gateways_own_model_may_be_elsewhere(there: Elsewhere) -> None:
    two = (UpstreamOptions(name="a", url=there.url), UpstreamOptions(name="b", url=there.url))
    with client_of(two[0], aliases=("whisper-1",)) as client:
        assert client.audio.transcriptions.create(file=wav(said(1)), model="whisper-1").text == "one"
    with client_of(*two, model="b") as client:
        assert client.audio.transcriptions.create(file=wav(said(1)), model="").text == "one"
    with client_of(*two) as client, pytest.raises(openai.NotFoundError, match="name one of them: a, b"):
        client.audio.transcriptions.create(file=wav(said(1)), model="")
    assert [each.field_of("model") for each in there.seen] == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"extra_body": {"search": {"beam": 4}}}, "takes no beam"),
        ({"response_format": "verbose_json", "timestamp_granularities": ["word"]}, "no times of words"),
        ({"extra_body": {"allowed_languages": "de,en"}}, "allowed_languages"),
    ],
)
def test_what_its_server_has_no_meaning_for_is_refused(there: Elsewhere, fields: Any, told: str) -> None:
    with client_of(UpstreamOptions(name="m", url=there.url, times="segments")) as client:
        with pytest.raises(openai.BadRequestError, match=told):
            client.audio.transcriptions.create(file=wav(said(1)), model="m", **fields)
        with pytest.raises(openai.BadRequestError, match="does not translate"):
            translated(client, "m")
    assert there.seen == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_request_is_sent_again(there: Elsewhere, status: int) -> None:
    there.next += [Response.of_json({"error": {"message": "full"}}, status, {"retry-after": "0.05"})] * 2
    with client_of(UpstreamOptions(name="m", url=there.url)) as client:
        assert client.audio.transcriptions.create(file=wav(said(1)), model="m").text == "one"
        found = metrics(client)
    assert len(there.seen) == 3
    assert there.seen[0].file == there.seen[2].file
    assert found['requests_total{outcome="busy",upstream="m"}'] == 2
    assert found['requests_total{outcome="done",upstream="m"}'] == 1
    assert found['retries_total{upstream="m"}'] == 2


def test_a_hint_beyond_the_time_is_passed_on(there: Elsewhere) -> None:
    there.next.append(Response.of_json({"error": {"message": "full"}}, 429, {"retry-after": "3600"}))
    options = UpstreamOptions(name="m", url=there.url)
    with client_of(options) as client, pytest.raises(openai.InternalServerError) as caught:
        client.audio.transcriptions.create(file=wav(said(1)), model="m")
    assert caught.value.status_code == 503
    assert float(caught.value.response.headers["retry-after"]) >= 3600
    assert len(there.seen) == 1


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        ("400", 400, "invalid_request"),
        ("404", 500, "internal_error"),
        ("401", 500, "internal_error"),
        ("500", 502, "bad_answer"),
    ],
)
def test_errors_of_vllm_are_told_by_whose_they_are(there: Elsewhere, status: str, expected: int, code: str) -> None:
    there.next.append(Response.of_json(VLLM["errors"][status], int(status)))
    with client_of(UpstreamOptions(name="m", url=there.url)) as client, pytest.raises(openai.APIStatusError) as caught:
        client.audio.transcriptions.create(file=wav(said(1)), model="m")
    assert (caught.value.status_code, caught.value.code) == (expected, code)
    assert ("verbose_json" in str(caught.value)) == (status == "400")
    assert len(there.seen) == 1


HTML = Response(200, b"<!doctype html><title>Sign in</title>", {"content-type": "text/html"})


@pytest.mark.parametrize(
    "answer",
    [
        HTML,
        Response(200, b""),
        Response(200, b"[" * 100_000),
        Response(200, b"\xff\xfe"),
        Response.of_json(["text"]),
        Response.of_json({"words": []}),
        Response.of_json({"text": None}),
        Response(200, b'{"text": "half a pair: \\ud83d"}'),
        Response.of_json({"text": "a"}),  # segments were asked for
        Response.of_json({"text": "a", "segments": "none"}),
        Response.of_json({"text": "a", "segments": [{"text": "a", "start": "0", "end": 1}]}),
        Response.of_json({"text": "a", "segments": [{"text": "a", "start": 2, "end": 1}]}),
        Response(200, b'{"text": "a", "segments": [{"text": "a", "start": 0, "end": NaN}]}'),
        Response(200, b'{"text": "a", "segments": [{"text": "a", "start": 0, "end": 1%s}]}' % (b"0" * 400)),
        Response(418, b"teapot"),
    ],
)
def test_an_answer_that_is_none_is_a_502(there: Elsewhere, answer: Response) -> None:
    there.next.append(answer)
    with client_of(UpstreamOptions(name="m", url=there.url, times="segments")) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.audio.transcriptions.create(file=wav(said(1)), model="m")
        assert (caught.value.status_code, caught.value.code) == (502, "bad_answer")
        assert client.audio.transcriptions.create(file=wav(said(1)), model="m").text == "one"
    assert len(there.seen) == 2  # it may have worked on it: nothing is sent again


def test_a_redirect_is_not_followed(there: Elsewhere) -> None:
    there.next.append(Response(307, b"", {"location": f"{there.url}/audio/transcriptions"}))
    with client_of(UpstreamOptions(name="m", url=there.url)) as client, pytest.raises(openai.InternalServerError):
        client.audio.transcriptions.create(file=wav(said(1)), model="m")
    assert len(there.seen) == 1


def test_an_answer_that_never_comes_is_a_504(there: Elsewhere) -> None:
    there.next.append(never)
    with client_of(UpstreamOptions(name="m", url=there.url, timeout_s=0.3)) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.audio.transcriptions.create(file=wav(said(1)), model="m")
        assert (caught.value.status_code, caught.value.code) == (504, "timeout")
    assert len(there.seen) == 1


def _endless(head: bytes, part: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(head)
        while True:
            connection.sendall(part)

    return talk


def _drops(connection: socket.socket) -> None:
    connection.recv(1)


def _half(connection: socket.socket) -> None:
    connection.recv(1)
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"text": "o')


def _greets(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    connection.recv(1)


@pytest.mark.parametrize(
    "talk",
    [
        _endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
        _endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        _endless(b"HTTP/1.1 200 OK\r\n", b"a: " + b"x" * 65536 + b"\r\n"),
        _drops,
        _half,
        _greets,
    ],
    ids=["endless", "endless chunks", "endless head", "drops", "half", "no HTTP"],
)
def test_a_server_that_misbehaves_on_the_wire_is_a_502(talk: Talk) -> None:
    with raw_server(talk) as url, client_of(UpstreamOptions(name="m", url=url, timeout_s=30)) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.audio.transcriptions.create(file=wav(said(1)), model="m")
        assert (caught.value.status_code, caught.value.code) == (502, "bad_answer")


def test_nobody_there_opens_the_circuit_and_an_answer_closes_it(there: Elsewhere) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = UpstreamOptions(name="m", url=f"http://127.0.0.1:{port}/v1", retries=1, failures=2, rest_s=1.5)
    with client_of(options) as client:
        root = str(client.base_url).removesuffix("/v1/")

        def ask() -> str:
            return client.audio.transcriptions.create(file=wav(said(1)), model="m").text

        assert fetch(f"{root}/health/ready", timeout_s=20).body == b"ready\nupstream m: circuit closed\n"
        with pytest.raises(openai.InternalServerError) as caught:
            ask()
        assert (caught.value.status_code, caught.value.code) == (503, "unreachable")
        with pytest.raises(openai.InternalServerError) as caught:
            ask()
        assert (caught.value.status_code, caught.value.code) == (503, "upstream_down")
        assert caught.value.response.headers["retry-after"]
        assert b"circuit open" in fetch(f"{root}/health/ready", timeout_s=20).body
        found = metrics(client)
        assert found['requests_total{outcome="unreachable",upstream="m"}'] >= 2
        assert found['retries_total{upstream="m"}'] >= 1
        there_again = Elsewhere()
        there_again.port = port
        with there_again:
            until_answered(ask)
            assert metrics(client)['circuit{state="closed",upstream="m"}'] == 1


def until_answered(ask: Callable[[], str]) -> None:
    """Ask until the circuit lets a request through, as a client does that heeds Retry-After."""
    for _ in range(100):
        try:
            assert ask() == "one"
            return
        except openai.InternalServerError as error:
            threading.Event().wait(min(0.2, float(error.response.headers.get("retry-after", 0.1))))
    raise AssertionError("the circuit stays open")


def test_a_circuit_opens_rests_and_tries_once() -> None:
    now, states = [0.0], []
    circuit = Circuit(2, 10.0, on_state=states.append, clock=lambda: now[0])
    for _ in range(2):
        assert circuit.enter() == 0
        circuit.failed()
    assert circuit.enter() == 10.0
    now[0] = 9.0
    assert circuit.enter() == pytest.approx(1.0)
    now[0] = 10.0
    assert circuit.enter() == 0
    assert circuit.enter() > 0, "one request alone is let through"
    circuit.left()  # whoever sent it went away
    assert circuit.enter() == 0
    circuit.failed()
    assert circuit.enter() == 10.0
    now[0] = 20.0
    assert circuit.enter() == 0
    circuit.succeeded()
    circuit.failed()
    assert circuit.enter() == 0, "the failures before are forgotten"
    assert states == ["open", "half-open", "open", "half-open", "closed"]


def test_many_at_once_wait_for_their_turn(there: Elsewhere) -> None:
    options = UpstreamOptions(name="m", url=there.url, max_requests=3)
    with client_of(options) as client, ThreadPoolExecutor(24) as pool:

        def ask(number: int) -> str:
            return client.audio.transcriptions.create(file=wav(said(number % 8 + 1)), model="m").text

        assert list(pool.map(ask, range(72))) == [WORDS[each % 8 + 1] for each in range(72)]
    assert there.at_once <= 3


def test_a_client_that_goes_away_takes_its_request_with_it(there: Elsewhere) -> None:
    gone = threading.Event()

    async def waits(request: Any) -> Any:
        answer = await never(request)
        gone.set()
        return answer

    there.next.append(waits)
    with client_of(UpstreamOptions(name="m", url=there.url, max_requests=1)) as client:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).audio.transcriptions.create(file=wav(said(1)), model="m")
        assert gone.wait(20)
        assert client.audio.transcriptions.create(file=wav(said(1)), model="m").text == "one"  # its turn is free


def test_the_key_is_in_no_answer_and_no_log(there: Elsewhere, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n", encoding="ascii")
    told = {"error": {"message": f"no such language with {KEY}"}}
    there.next += [Response.of_json(told, status) for status in (400, 401, 500, 503)]
    options = UpstreamOptions(name="m", url=there.url, key_file=file, retries=0)
    with caplog.at_level(logging.DEBUG), client_of(options) as client:
        for _ in range(4):
            with pytest.raises(openai.APIStatusError) as caught:
                client.audio.transcriptions.create(file=wav(said(1)), model="m")
            assert KEY not in caught.value.response.text
        file.write_text("another-key", encoding="ascii")
        client.audio.transcriptions.create(file=wav(said(1)), model="m")
    assert KEY not in repr(options)
    ours = [each for each in caplog.records if each.name.startswith("tritone")]
    assert ours
    assert not any(KEY in each.getMessage() for each in ours)
    assert [each.headers["authorization"] for each in there.seen[-2:]] == [f"Bearer {KEY}", "Bearer another-key"]


@pytest.mark.parametrize("status", [400, 401, 500])
@pytest.mark.parametrize(
    "written",
    [" ".join, lambda key: f"{280 * 'x'} {key}", lambda key: base64.b64encode(key.encode()).decode(), "\u200b".join],
    ids=["spaced", "at the cut", "base64", "zero-width"],
)
def test_of_an_error_that_quotes_the_key_status_and_code_go_on(
    there: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    written: Callable[[str], str],
    status: int,
) -> None:
    monkeypatch.setenv("SPEECH_KEY", KEY)
    error = {"message": f"no such key: {written(KEY)}", "code": "invalid_api_key"}
    there.next.append(Response.of_json({"error": error}, status))
    options = UpstreamOptions(name="m", url=there.url, key_env="SPEECH_KEY")
    with client_of(options) as client, pytest.raises(openai.APIStatusError) as caught:
        client.audio.transcriptions.create(file=wav(said(1)), model="m")
    shown = caught.value.response.text if status == 400 else caplog.text
    assert f"({status})" in shown
    assert "(code invalid_api_key)" in shown
    assert "no such key" not in caught.value.response.text + caplog.text


def test_a_code_that_is_the_key_is_no_code(there: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEECH_KEY", "token_abcdefgh")
    error = {"message": "it is token_abcdefgh", "code": "token_abcdefgh"}
    there.next.append(Response.of_json({"error": error}, 400))
    options = UpstreamOptions(name="m", url=there.url, key_env="SPEECH_KEY")
    with client_of(options) as client, pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(file=wav(said(1)), model="m")
    assert "abcd" not in caught.value.response.text


def test_an_error_that_quotes_the_last_key_is_not_shown_either(there: Elsewhere, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY, encoding="ascii")

    async def changes(request: Request) -> Response:
        file.write_text("another-key", encoding="ascii")
        return Response.of_json({"error": {"message": f"unknown: {KEY}"}}, 400)

    there.next.append(changes)
    options = UpstreamOptions(name="m", url=there.url, key_file=file)
    with client_of(options) as client, pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(file=wav(said(1)), model="m")
    assert KEY[:8] not in caught.value.response.text


def test_events_that_quote_the_key_are_in_no_answer_and_no_log(
    there: Elsewhere, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPEECH_KEY", KEY)
    there.next.append(streamed(delta("one"), {"error": {"message": f"not {KEY[::-1]}", "type": "auth_error"}}))
    options = UpstreamOptions(name="m", url=there.url, key_env="SPEECH_KEY", events=True)
    with client_of(options) as client, pytest.raises(openai.APIError):
        list(client.audio.transcriptions.create(file=wav(said(1)), model="m", stream=True))
    assert "failed within the text" in caplog.text
    assert "(code auth_error)" in caplog.text
    assert KEY[::-1] not in caplog.text


def test_an_answer_that_has_no_end_leaves_the_gateway_free(there: Elsewhere) -> None:
    """Its time limit holds, and others are answered meanwhile."""
    asked = threading.Event()

    def talk(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(4000):
            connection.sendall(b"400\r\n" + 1024 * b" " + b"\r\n")
            asked.set()
        while connection.recv(1 << 20):
            pass

    with raw_server(talk) as url, client_of(UpstreamOptions(name="m", url=url, events=True, timeout_s=3)) as client:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(lambda: client.audio.transcriptions.create(file=wav(said(1)), model="m", stream=True))
            assert asked.wait(60)
            health = fetch(f"{str(client.base_url).removesuffix('/v1/')}/health/live", timeout_s=20)
            assert health.status == 200
            with pytest.raises(openai.InternalServerError) as caught:
                asking.result(60)
        assert (caught.value.status_code, caught.value.code) == (504, "timeout")


def test_a_refused_recording_is_not_named_by_where_it_was_kept(there: Elsewhere) -> None:
    with client_of(UpstreamOptions(name="m", url=there.url)) as client:
        with pytest.raises(openai.APIStatusError, match="the file is not audio") as caught:
            client.audio.transcriptions.create(file=("a.wav", bytes(3 << 20)), model="m")
        assert tempfile.gettempdir() not in caught.value.response.text


def test_limits_of_keys_and_of_the_gateway_hold_for_models_elsewhere(there: Elsewhere, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("anybody: {audio_s_per_hour: 3}\n", encoding="utf-8")
    limits = GatewayLimits(max_audio_s=20)
    with client_of(UpstreamOptions(name="m", url=there.url), keys=file, limits=limits) as client:
        with pytest.raises(openai.BadRequestError, match="more than 20 s"):
            client.audio.transcriptions.create(file=wav(np.zeros(21 * 16000, np.float32)), model="m")
        assert client.audio.transcriptions.create(file=wav(said(1, 2)), model="m").text == "one two"
        with pytest.raises(openai.RateLimitError, match="3 s of audio"):
            client.audio.transcriptions.create(file=wav(said(1)), model="m")
    assert len(there.seen) == 1


def test_the_file_of_upstreams_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "upstreams.yaml"
    file.write_text(
        "upstreams:\n"
        '  - {name: a, url: "http://vllm:8000/v1", model: org/Model, languages: [de, en], realtime: vllm, retries: 0}\n'
        '  - {name: b, url: "https://api.example/v1", key_file: key, times: words, max_audio_s: 60}\n',
        encoding="utf-8",
    )
    (tmp_path / "key").write_text(KEY, encoding="ascii")
    first, second = read_upstreams(file)
    assert (first.model, first.languages, first.realtime, first.retries) == ("org/Model", ("de", "en"), "vllm", 0)
    assert (second.read_key(), second.max_audio_s, second.times) == (KEY, 60, "words")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("upstreams: []", "a list `upstreams:`"),
        ("models: []", "a list `upstreams:`"),
        ("upstreams: [{name: a}]", "upstream 1: must be a mapping with at least name and url"),
        ("upstreams: [{name: a, url: 'http://x/v1', colour: red}]", "colour, which is not known"),
        ("upstreams: [{name: a, url: x}]", "url must be like http"),
        ("upstreams: [{name: a, url: 'http://me:secret@x/v1'}]", "key_env or key_file"),
        ("upstreams: [{name: 'a b', url: 'http://x/v1'}]", "name must be"),
        ("upstreams: [{name: a, url: 'http://x/v1', times: many}]", "times must be one of none, segments, words"),
        ("upstreams: [{name: a, url: 'http://x/v1', retries: two}]", "retries must be a whole number"),
        ("upstreams: [{name: a, url: 'http://x/v1', timeout_s: .inf}]", "timeout_s must be a number of at least"),
        ("upstreams: [{name: a, url: 'http://x/v1', max_audio_s: 1}]", "max_audio_s must be a number of at least 2"),
        ("upstreams: [{name: a, url: 'http://x/v1', key_env: NOT_SET_ANYWHERE}]", "the variable NOT_SET_ANYWHERE"),
        ("upstreams: [{name: a, url: 'http://x/v1', key_file: nowhere}]", "cannot be read"),
        ("upstreams: [{name: a, url: 'http://x/v1', transcriptions: false}]", "nothing to ask"),
        ("upstreams: [{name: a, url: 'http://x/v1', ca: ca.pem}]", "ca is for an url with https"),
        ("upstreams: [{name: a, url: 'http://x/v1', realtime: vllm, rate: 5}]", "rate"),
        ("- [", "not valid YAML"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "upstreams.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=told) as caught:
        read_upstreams(file)
    assert "secret" not in str(caught.value)


def test_names_of_upstreams_are_their_own() -> None:
    one = UpstreamOptions(name="a", url="http://x/v1")
    with pytest.raises(ValueError, match="several upstreams are called a"):
        GatewayOptions(upstreams=(one, one))
    with pytest.raises(ValueError, match="no Triton to ask"):
        GatewayServer(GatewayOptions(triton="none"))


def test_a_form_holds_what_looks_like_its_end() -> None:
    kind, body = form([("prompt", 'a\r\n--x--\r\nContent-Disposition: form-data; name="file"')], b"RIFF")
    boundary = kind.rpartition("=")[2].encode()
    whole = b"".join(body)
    assert whole.count(b"--" + boundary) == 3
    assert len(boundary) == 32
