"""Clients that are silent, slow or gone without a word, at a gateway that asks often."""

import json
import os
import socket as plain
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from websockets.sync.client import connect

from fake_speech import FakeSpeech, heard, speech
from tritone.gateway import GatewayLimits, GatewayOptions
from tritone.gateway.server import GatewayServer
from waiting import until

PING_S = 0.2


@pytest.fixture
def fake() -> FakeSpeech:
    return FakeSpeech()


@contextmanager
def serving(options: GatewayOptions, fake: FakeSpeech) -> Iterator[GatewayServer]:
    with GatewayServer(options).background() as running:
        running.gateway.speech = fake  # type: ignore[assignment]
        yield running


@pytest.fixture
def asking(fake: FakeSpeech) -> Iterator[GatewayServer]:
    options = GatewayOptions(triton="127.0.0.1:9", port=0, ping_s=PING_S)
    with serving(options, fake) as running:
        yield running


def frame(message: bytes, *, text: bool = False) -> bytes:
    """A message as a client sends it: masked with zeros."""
    kind = 0x81 if text else 0x82
    return bytes((kind, 0x80 | 127)) + len(message).to_bytes(8, "big") + bytes(4) + message


@pytest.fixture
def mute(asking: GatewayServer) -> Iterator[plain.socket]:
    """A client that started a stream, and neither reads nor answers."""
    client = plain.socket()
    try:
        client.setsockopt(plain.SOL_SOCKET, plain.SO_RCVBUF, 4096)
        client.settimeout(60)
        client.connect(("127.0.0.1", asking.port))
        client.sendall(
            b"GET /v1/stream HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 101")
        client.sendall(frame(b'{"type": "start", "words": true}', text=True))
        yield client
    finally:
        client.close()


def test_a_client_whose_network_is_gone_leaves_nothing(mute: plain.socket, fake: FakeSpeech) -> None:
    until(lambda: bool(fake.asked))
    fake.delay_s = 600
    mute.sendall(frame(speech(7).tobytes()))
    until(lambda: not fake.open_ones)


def test_a_client_that_does_not_read_is_given_up(
    mute: plain.socket, fake: FakeSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritone.gateway.sockets.UNREAD_S", 0.3)
    monkeypatch.setattr("tritone.net.websockets.LINGER_S", 0.1)
    fake.suffix = "x" * 500_000
    with suppress(OSError):  # the connection is cut
        while True:
            mute.sendall(frame(speech(7, 0).tobytes()))
    until(lambda: not fake.open_ones)


def test_a_client_is_kept_while_its_answer_waits_behind_audio(asking: GatewayServer, fake: FakeSpeech) -> None:
    fake.delay_s = PING_S / 2
    with connect(f"ws://127.0.0.1:{asking.port}/v1/stream", close_timeout=60) as client:
        client.send('{"type": "start", "partials": false}')
        for _ in range(16):  # 1.6 MB, of which one waits in the gateway
            client.send(bytes(100_000))
        client.send(speech(7).tobytes())
        client.send('{"type": "end"}')
        found, code = heard(client)
    assert ([each["type"] for each in found], code) == (["ready", "final", "end"], 1000)


def test_a_connection_outlives_the_time_that_its_head_had(
    asking: GatewayServer, fake: FakeSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritone.net.http_server.HEAD_S", 1.0)
    with connect(f"ws://127.0.0.1:{asking.port}/v1/stream", close_timeout=60) as client:
        client.send('{"type": "start", "partials": false}')
        assert json.loads(client.recv())["type"] == "ready"
        with pytest.raises(TimeoutError):  # it is open, and says nothing
            client.recv(timeout=1.5)
        client.send(speech(7).tobytes())
        client.send('{"type": "end"}')
        found, code = heard(client)
    assert ([each["type"] for each in found], code) == (["final", "end"], 1000)


def test_a_client_that_sends_nothing_is_left(fake: FakeSpeech) -> None:
    options = GatewayOptions(triton="127.0.0.1:9", port=0, limits=GatewayLimits(idle_s=0.5))
    with (
        serving(options, fake) as running,
        connect(f"ws://127.0.0.1:{running.port}/v1/stream", close_timeout=60) as client,
    ):
        client.send(json.dumps({"type": "start"}))
        found, code = heard(client)
    assert ([each["type"] for each in found], code, client.close_reason) == (
        ["ready"],
        1008,
        "idle: nothing came for 0.5 s",
    )
    until(lambda: not fake.open_ones)


def test_a_client_that_was_told_the_reason_need_not_read_it(mute: plain.socket, fake: FakeSpeech) -> None:
    mute.sendall(frame(os.urandom(3)))
    until(lambda: not fake.open_ones)
