"""Models of other servers behind the gateway: live streams, by their Realtime API or by utterances."""

import asyncio
import base64
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.utils import accept_key

from elsewhere import Elsewhere, client_of, gateway_of, metrics, raw_server, said
from tritone.audio.pcm import to_pcm
from tritone.errors import InputError, OperatorError, ServerAnswerError, StreamLostError, TritoneError
from tritone.gateway.ask import Ask, Event, VadOptions
from tritone.gateway.callers import Caller
from tritone.gateway.server import GatewayServer
from tritone.gateway.upstreams.options import UpstreamOptions
from tritone.gateway.upstreams.realtime import RealtimeStream
from tritone.server import TritonServer
from waiting import until

TIMEOUT_S = 60.0
VLLM = json.loads((Path(__file__).parents[1] / "golden" / "vllm" / "realtime.json").read_text(encoding="utf-8"))
COMPLETED = "conversation.item.input_audio_transcription.completed"


@pytest.fixture
def there() -> Iterator[Elsewhere]:
    with Elsewhere() as found:
        yield found


def upstream(there: Elsewhere, kind: Any = "openai", **options: Any) -> UpstreamOptions:
    return UpstreamOptions(name="m", url=there.url, realtime=kind, **options)


def within(gateway: GatewayServer, work: Any) -> Any:
    assert gateway.loop is not None
    return asyncio.run_coroutine_threadsafe(work, gateway.loop).result(TIMEOUT_S)


async def spoken(
    gateway: GatewayServer, samples: Any, ask: Ask, rate: int = 16000, piece_s: float = 0.25
) -> list[Event]:
    """The events of a live stream with these samples, from which nothing came before its end but what was ready."""
    events = []
    async with await gateway.gateway.speech.open(ask, rate, Caller(headers={"x-request-id": "visit-9"})) as live:
        step = round(piece_s * rate)
        for start in range(0, len(samples), step):
            events += await live.accept(samples[start : start + step])
        events += await live.finish()
    return events


def finals(events: Sequence[Event]) -> list[str]:
    return [each.transcript.text for each in events if each.kind == "final" and each.transcript is not None]


@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_a_stream_goes_to_the_realtime_api(
    there: Elsewhere, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ELSEWHERE_KEY", "sk-key")
    options = upstream(there, kind, model="voxtral", key_env="ELSEWHERE_KEY")
    with gateway_of(options) as gateway:
        infos = {(each.name, each.kind) for each in within(gateway, gateway.gateway.speech.models())}
        assert infos == {("m", "offline"), ("m-streaming", "streaming")}
        events = within(gateway, spoken(gateway, said(1, 2, 3), Ask(model="m")))
    assert finals(events) == ["one two three"]
    assert "> Authorization" not in caplog.text
    (asked,) = there.seen
    assert asked.audio_s == pytest.approx(5.0, abs=0.01)
    assert asked.headers["authorization"] == "Bearer sk-key"
    assert asked.headers["x-request-id"] == "visit-9"
    if kind == "vllm":
        assert asked.events == VLLM["sent"]
    else:
        first, commit, again = asked.events
        hears = first["session"]["audio"]["input"]
        assert hears["format"] == {"type": "audio/pcm", "rate": 24000}
        assert hears["transcription"] == {"model": "voxtral"}
        assert hears["turn_detection"] == {"type": "server_vad"}  # nobody else divides it
        assert (commit["type"], again) == ("input_audio_buffer.commit", first)


def test_language_and_prompt_go_with_the_session(there: Elsewhere) -> None:
    with gateway_of(upstream(there)) as gateway:
        within(gateway, spoken(gateway, said(1), Ask(model="m", search={"language": "de", "prompt": "Anna"})))
        with pytest.raises(InputError, match="take no beam"):
            within(gateway, spoken(gateway, said(1), Ask(model="m", search={"beam": 3})))
    transcription = there.seen[0].events[0]["session"]["audio"]["input"]["transcription"]
    assert transcription == {"model": "m", "language": "de", "prompt": "Anna"}


@pytest.mark.parametrize("kind", ["openai", "vllm", "none"])
def test_openais_client_streams_to_a_model_elsewhere(there: Elsewhere, kind: str) -> None:
    """Each commit is an item: a connection of its own, or a request where there is no Realtime API."""
    with client_of(upstream(there, kind)) as client, client.realtime.connect(extra_query={"model": "m"}) as talk:
        heard: Any = {"format": {"type": "audio/pcm", "rate": 24000}, "turn_detection": None}
        talk.session.update(session={"type": "transcription", "audio": {"input": heard}})
        texts = []
        for words in ((1, 2), (3,)):
            data = to_pcm(said(*words, rate=24000)).tobytes()
            for start in range(0, len(data), 9600):
                talk.input_audio_buffer.append(audio=base64.b64encode(data[start : start + 9600]).decode())
            talk.input_audio_buffer.commit()
            texts.append(next(event.transcript for event in talk if event.type == COMPLETED))
        assert texts == ["one two", "three"]
        if kind != "none":
            until(lambda: metrics(client)['streams_open{upstream="m"}'] == 0)
    assert len(there.seen) == 2


def test_turns_of_the_server_become_segments(triton: TritonServer, there: Elsewhere) -> None:
    """Another gateway is the server: its model for voice activity divides the audio."""
    with gateway_of(upstream(there, "none"), triton=f"http://{triton.http_address}", stream_model="m") as behind:
        url = f"http://127.0.0.1:{behind.port}/v1"
        options = UpstreamOptions(name="there", model="m", url=url, transcriptions=False, realtime="openai")
        with gateway_of(options) as front:
            events = within(front, spoken(front, said(5, 6, 7, pause_s=1.5), Ask(model="there")))
    assert finals(events) == ["five", "six", "seven"]
    ends = [each.time_s for each in events if each.kind == "final"]
    assert ends[:2] == pytest.approx([2.5, 5.0], abs=0.3)


def test_utterances_are_divided_by_tritons_voice_activity(triton: TritonServer, there: Elsewhere) -> None:
    """`talk` takes what is loud for speech; each utterance is a request, or a stream, of its own."""
    for kind in ("none", "openai", "vllm"):
        there.seen.clear()
        with gateway_of(upstream(there, kind), triton=f"http://{triton.http_address}") as gateway:
            ask = Ask(model="m", vad=VadOptions(parameters={"min_silence_s": 0.3}, prefix_s=0.1))
            events = within(gateway, spoken(gateway, said(5, 6, 7, pause_s=1.5), ask))
        assert finals(events) == ["five", "six", "seven"], kind
        assert len(there.seen) == 3


def test_a_model_elsewhere_writes_final_texts_of_streams(triton: TritonServer, there: Elsewhere) -> None:
    with gateway_of(upstream(there, "none"), triton=f"http://{triton.http_address}") as gateway:
        ask = Ask(model="live", final_model="m", final_search={"language": "de"})
        events = within(gateway, spoken(gateway, said(3), ask))
    assert finals(events)[0] == "three"
    assert there.seen[0].field_of("language") == "de"


class Talk:
    """A stream whose server says what it is given: `take` is what its reader does."""

    def __init__(self, gateway: GatewayServer, kind: Any) -> None:
        found = gateway.gateway.speech.upstreams["m"]
        info = next(each for each in found.infos if each.kind == "streaming")
        self.stream = RealtimeStream(found, info, 16000, {}, turns=False, headers={})
        self.take: Callable[[Any], None] = self.stream._take


def test_events_are_those_of_vllm(there: Elsewhere) -> None:
    with gateway_of(upstream(there, "vllm")) as gateway:
        talk = Talk(gateway, "vllm")
        texts = []
        for event in VLLM["received"][:-1]:
            talk.take(event)
            texts.append(talk.stream._so_far().text)
        assert texts == ["", "Guten", "Guten", "Guten Tag."]
        talk.take(VLLM["received"][-1])
        assert [each.text for each in talk.stream._so_far().ended] == ["Guten Tag."]
        for event, error in zip(VLLM["errors"], (OperatorError, StreamLostError), strict=True):
            with pytest.raises(error):
                talk.take(event)


def test_a_text_that_vllm_ends_by_itself_is_followed_by_another(there: Elsewhere) -> None:
    """As when the context of its model is full."""
    with gateway_of(upstream(there, "vllm")) as gateway:

        async def talk() -> list[list[str]]:
            talk = Talk(gateway, "vllm")
            found = [await talk.stream.accept(said(1))]
            talk.take({"type": "transcription.done", "text": "to here"})
            found += [await talk.stream.accept(said(2)), await talk.stream.accept(said(3)), await talk.stream.finish()]
            return [[each.text for each in (*one.ended, one)] for one in found]

        assert within(gateway, talk()) == [[""], ["to here", ""], [""], ["one two three"]]
        kinds = [(each["type"].rpartition(".")[2], each.get("final", False)) for each in there.seen[0].events]
        assert kinds == [("update", False), ("commit", False), ("commit", False), ("commit", True)]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"type": COMPLETED, "transcript": "a"}, ServerAnswerError),
        ({"type": COMPLETED, "item_id": "i", "transcript": 3}, ServerAnswerError),
        ({"type": COMPLETED, "item_id": "i", "transcript": "a" * (5 << 20)}, ServerAnswerError),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, InputError),
        ({"type": "error", "error": {"type": "server_error", "message": None}}, StreamLostError),
        ({"type": "error", "error": None}, StreamLostError),
        ({"type": "error"}, StreamLostError),
    ],
)
def test_events_that_are_none_end_the_stream(there: Elsewhere, event: Any, error: type[TritoneError]) -> None:
    with gateway_of(upstream(there)) as gateway:
        talk = Talk(gateway, "openai")
        with pytest.raises(error):
            talk.take(event)
        talk.take({"type": "what.comes.next"})
        talk.take({})
        assert talk.stream._so_far().text == ""


def test_a_connection_that_drops_loses_the_stream_and_is_not_made_again(there: Elsewhere) -> None:
    there.drops = True
    with gateway_of(upstream(there, failures=2, rest_s=60)) as gateway:
        for _ in range(2):
            with pytest.raises(StreamLostError, match="upstream 'm'"):
                within(gateway, spoken(gateway, said(1), Ask(model="m")))
        assert len(there.seen) == 2
        with pytest.raises(TritoneError, match="failed again and again"):
            within(gateway, spoken(gateway, said(1), Ask(model="m")))
        assert len(there.seen) == 2
        assert gateway.gateway.speech.open_streams == 0


def test_a_text_that_never_comes_is_not_waited_for(there: Elsewhere) -> None:
    there.realtime_error = {"type": "nothing"}
    with (
        client_of(upstream(there, timeout_s=0.5)) as client,
        client.realtime.connect(extra_query={"model": "m"}) as talk,
    ):
        talk.session.update(session={"type": "transcription", "audio": {"input": {"turn_detection": None}}})
        data = to_pcm(said(1, rate=24000)).tobytes()
        talk.input_audio_buffer.append(audio=base64.b64encode(data).decode())
        talk.input_audio_buffer.commit()
        failed = next(event for event in talk if event.type.endswith(".failed") or event.type == "error")
        assert failed.error.code == "timeout"


def test_a_stream_without_audio_connects_to_nobody(there: Elsewhere) -> None:
    with gateway_of(upstream(there)) as gateway:
        assert finals(within(gateway, spoken(gateway, said()[:0], Ask(model="m")))) == [""]
    assert there.seen == []


def test_streams_to_a_server_are_bounded(there: Elsewhere) -> None:
    with gateway_of(upstream(there, max_streams=1)) as gateway:

        async def two() -> list[Event]:
            speech = gateway.gateway.speech
            async with await speech.open(Ask(model="m"), 16000, Caller()) as first:
                await first.accept(said(1))
                async with await speech.open(Ask(model="m"), 16000, Caller()) as second:
                    with pytest.raises(TritoneError, match="1 streams are open to the server"):
                        await second.accept(said(1))
                return await first.finish()

        assert finals(within(gateway, two())) == ["one"]
        assert finals(within(gateway, spoken(gateway, said(2), Ask(model="m")))) == ["two"]


def test_many_streams_at_once(there: Elsewhere) -> None:
    with gateway_of(upstream(there, "vllm")) as gateway:

        async def all_of_them() -> list[list[Event]]:
            asks = [spoken(gateway, said(n % 8 + 1, n % 7 + 1), Ask(model="m")) for n in range(40)]
            return list(await asyncio.gather(*asks))

        found = [finals(each) for each in within(gateway, all_of_them())]
    names = ("", "one", "two", "three", "four", "five", "six", "seven", "eight")
    assert found == [[f"{names[n % 8 + 1]} {names[n % 7 + 1]}"] for n in range(40)]


@pytest.mark.parametrize(
    ("status", "error"), [(401, "refused \\(401\\)"), (404, "refused \\(404\\)"), (503, "no room")]
)
def test_a_handshake_that_is_refused_says_why(status: int, error: str) -> None:
    def talk(connection: Any) -> None:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())

    with raw_server(talk) as url:
        options = UpstreamOptions(name="m", url=url, realtime="vllm", transcriptions=False, retries=0)
        with gateway_of(options) as gateway, pytest.raises(TritoneError, match=error):
            within(gateway, spoken(gateway, said(1), Ask(model="m")))


def switch(connection: socket.socket) -> None:
    """Answer the handshake of a WebSocket."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(4096)
    key = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    lines = "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    connection.sendall(f"{lines}{accept_key(key.decode())}\r\n\r\n".encode())


@pytest.mark.parametrize(
    "flood",
    [b"\x89\0", b"\x81\0", b"\x81\2{}", b'\x81\x0c{"type": "x"}', b"\1\0" + 30_000 * b"\0\0", b"\x8a\0"],
    ids=["pings", "empty messages", "objects", "events", "fragments", "pongs"],
)
def test_a_server_that_sends_more_than_anybody_says_is_left(flood: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        switch(connection)
        while True:
            connection.sendall(flood * 1000)

    with raw_server(talk) as url:
        options = UpstreamOptions(name="m", url=url, realtime="vllm", transcriptions=False, retries=0, timeout_s=30)
        with gateway_of(options) as gateway, pytest.raises(ServerAnswerError, match=r"events a second|no JSON"):
            within(gateway, spoken(gateway, said(1), Ask(model="m")))


def test_a_connection_ends_whose_server_reads_no_goodbye() -> None:
    ended = threading.Event()

    def talk(connection: socket.socket) -> None:
        switch(connection)
        connection.sendall(100 * b"\x81\0")  # no JSON, and more than is read when nobody takes it
        with suppress(ConnectionError):
            while connection.recv(65536):
                pass
        ended.set()

    with raw_server(talk) as url:
        options = UpstreamOptions(name="m", url=url, realtime="vllm", transcriptions=False, retries=0, timeout_s=30)
        with gateway_of(options) as gateway:
            with pytest.raises(ServerAnswerError, match="no JSON"):
                within(gateway, spoken(gateway, said(1), Ask(model="m")))
            assert ended.wait(TIMEOUT_S / 3)


def test_many_small_texts_of_a_stream_are_joined(there: Elsewhere) -> None:
    with gateway_of(upstream(there, "vllm")) as gateway:
        talk = Talk(gateway, "vllm")
        for _ in range(3000):
            talk.take({"type": "transcription.delta", "delta": "a "})
        assert talk.stream._so_far().text == " ".join(3000 * "a")
        assert len(talk.stream._items["0"].texts) == 1


def test_errors_of_a_stream_that_quote_the_key_are_not_shown(there: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEECH_KEY", "sk-0123456789abcdef")
    with gateway_of(upstream(there, key_env="SPEECH_KEY")) as gateway:
        talk = Talk(gateway, "openai")
        talk.stream._upstream.headers({})
        error = {"type": "invalid_request_error", "code": "bad_key", "message": "it is 0 1 2 3 4 5 6 7 8 9"}
        with pytest.raises(InputError, match=r"not shown.* \(code bad_key\)") as caught:
            talk.take({"type": "error", "error": error})
        assert "2 3" not in str(caught.value)


def test_a_redirect_of_a_stream_is_not_followed(there: Elsewhere) -> None:
    def talk(connection: Any) -> None:
        connection.recv(4096)
        head = f"HTTP/1.1 302 Found\r\nLocation: {there.url}/realtime\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())

    with raw_server(talk) as url, gateway_of(upstream(there)) as _:
        options = UpstreamOptions(name="m", url=url, realtime="vllm", transcriptions=False)
        with gateway_of(options) as gateway, pytest.raises(OperatorError, match="elsewhere"):
            within(gateway, spoken(gateway, said(1), Ask(model="m")))
    assert there.seen == []
