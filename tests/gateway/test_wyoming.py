"""Wyoming through its own client, as Home Assistant uses it, and what that never sends."""

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info, SelectProgram
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeVoice

from effort import examples
from toy import CONTEXT, SAMPLE_RATE, toy_waveform
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.callers import new_key
from tritone.gateway.protocols.wyoming.options import WyomingOptions
from tritone.gateway.server import GatewayServer
from tritone.server import TritonServer

TIMEOUT_S = 60.0
FORMAT: dict[str, Any] = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}


@pytest.fixture(scope="module")
def port(triton: TritonServer) -> Iterator[int]:
    options = GatewayOptions(
        triton=f"http://{triton.http_address}",
        port=0,
        ports={"wyoming": 0},
        protocols={"wyoming": WyomingOptions(wyoming_languages="en, de")},
    )
    with GatewayServer(options).background() as running:
        yield running.ports["wyoming"]


def test_every_field_of_the_official_client_stands_in_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "applications" / "gateway-wyoming.md").read_text(encoding="utf-8")
    asked = (Transcribe, Synthesize, SynthesizeVoice, SynthesizeStart, SynthesizeChunk, SelectProgram)
    names = {each.name for event in asked for each in fields(event)}
    assert {each for each in names if f"`{each}`" not in page} == set()


def pcm(text: str) -> bytes:
    return bytes((np.clip(toy_waveform(text), -1, 1) * 32767).astype("<i2").tobytes())


def spoken(data: bytes, step: int = 2048, **audio: Any) -> list[Eventable]:
    """What Home Assistant sends of one utterance."""
    audio = {**FORMAT, **audio}
    pieces = [AudioChunk(audio=data[start : start + step], **audio) for start in range(0, len(data), step)]
    return [AudioStart(**audio), *pieces, AudioStop()]


def answered(port: int, events: Sequence[Eventable], *last: str) -> list[Event]:
    """All that is answered until an event of the type `last`, or the end."""

    async def ask() -> list[Event]:
        found = []
        async with AsyncTcpClient("127.0.0.1", port) as client:
            for each in events:
                await client.write_event(each.event())
            while (event := await client.read_event()) is not None:
                found.append(event)
                if event.type in last:
                    break
        return found

    return asyncio.run(asyncio.wait_for(ask(), TIMEOUT_S))


@pytest.mark.parametrize(("name", "step"), [("live", 334), ("toy", 2048), (None, 100_000)])
def test_an_utterance_is_answered_with_its_text(port: int, name: str | None, step: int) -> None:
    found = answered(port, [Transcribe(name=name, language="en"), *spoken(pcm("hello world"), step)], "transcript-stop")
    assert TranscriptStart.is_type(found[0].type)
    assert "".join(TranscriptChunk.from_event(each).text for each in found[1:-2]) == "hello world"
    assert Transcript.from_event(found[-2]).text == "hello world"
    assert TranscriptStop.is_type(found[-1].type)


def test_a_connection_has_several_utterances_each_from_its_start(port: int) -> None:
    found = answered(port, [*spoken(pcm("hi")), *spoken(b""), *spoken(pcm("you")), Ping("end")], "pong")
    assert [Transcript.from_event(each).text for each in found if Transcript.is_type(each.type)] == ["hi", "", "you"]
    assert Pong.from_event(found[-1]).text == "end"


def test_segments_come_as_they_end(port: int) -> None:
    found = answered(port, spoken(pcm("one")[: -2 * CONTEXT] + bytes(2 * SAMPLE_RATE) + pcm("neo")), "transcript-stop")
    assert [TranscriptChunk.from_event(each).text for each in found[1:-2]] == ["one", " neo"]
    assert Transcript.from_event(found[-2]).text == "one neo"


def test_two_channels_are_averaged(port: int) -> None:
    both = np.repeat(np.frombuffer(pcm("hello"), "<i2"), 2).astype("<i2").tobytes()
    found = answered(port, spoken(both, 1002, channels=2), "transcript-stop")
    assert Transcript.from_event(found[-2]).text == "hello"


def test_what_is_served_is_described(port: int) -> None:
    [found] = answered(port, [Describe()], "info")
    [program] = Info.from_event(found).asr
    assert {each.name for each in program.models} >= {"toy", "live"}
    assert program.models[0].languages == ["en", "de"]
    assert program.supports_transcript_streaming


@pytest.mark.parametrize(
    ("events", "part"),
    [
        ([Transcribe(name="nobody"), *spoken(pcm("a"))], "there is no"),
        (spoken(pcm("a"), width=4), "width of 2 bytes"),
        (spoken(pcm("a"), channels=9), "8 channels"),
        (spoken(pcm("a"), rate=1), "1"),
        ([Transcribe(transcript_terms=[1]), *spoken(pcm("a"))], "must be texts"),  # type: ignore[list-item]
    ],
)
def test_an_error_says_what_is_wrong_and_ends(port: int, events: list[Eventable], part: str) -> None:
    *_, last = answered(port, events)
    assert part in Error.from_event(last).text


@pytest.mark.parametrize("form", [{"width": 4}, {"channels": 9}])
def test_samples_of_another_form_are_an_unsupported_format(port: int, form: dict[str, int]) -> None:
    *_, last = answered(port, spoken(pcm("a"), **form))
    assert Error.from_event(last).code == "unsupported_format"


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=200),
        st.dictionaries(
            st.sampled_from(["type", "data", "data_length", "payload_length"]),
            st.one_of(st.integers(), st.text(max_size=9), st.none(), st.lists(st.integers(), max_size=2)),
        ).map(lambda found: json.dumps(found).encode() + b"\n"),
    )
)
def test_whatever_is_sent_the_server_goes_on(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as raw:
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(4096):
            pass
    assert answered(port, [Ping("on")], "pong")[-1].data["text"] == "on"


def test_an_event_that_is_too_large_is_refused(port: int) -> None:
    for line in (b'{"type": "audio-chunk", "payload_length": 99999999}\n', b'{"type": "' + b"a" * 200_000 + b'"}\n'):
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as raw:
            raw.sendall(line)
            raw.shutdown(socket.SHUT_WR)
            assert b'"error"' in raw.makefile("rb").read()


def test_clients_are_those_that_anybody_admits(triton: TritonServer, tmp_path: Path) -> None:
    _, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: someone, sha256: {digest}}}]", encoding="utf-8")
    limits = GatewayLimits(idle_s=0.2)
    url = f"http://{triton.http_address}"
    options = GatewayOptions(triton=url, port=0, keys=file, ports={"wyoming": 0}, limits=limits)
    with GatewayServer(options).background() as running:
        [refused] = answered(running.ports["wyoming"], [])
        assert "a key is needed" in Error.from_event(refused).text
    file.write_text(f"keys: [{{name: someone, sha256: {digest}}}]\nanybody: {{}}", encoding="utf-8")
    with GatewayServer(options).background() as running:
        assert answered(running.ports["wyoming"], []) == [], "who sends nothing is left"
