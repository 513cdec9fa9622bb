"""A voice behind a real Triton: sentence by sentence, over gRPC and HTTP, by our clients and by commands."""

import asyncio
import io
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

import tritone
from proxied import post
from serving import quiet_options
from toy_voice import sound, write_espeak, write_toy_voice
from tritone.cli.main import app
from tritone.client import AsyncClient, Client
from tritone.errors import InputError
from tritone.families.piper.export import export_piper
from tritone.proxy import Proxy, ProxyOptions
from tritone.repository import build_repository, read_repository
from tritone.server import TritonServer, free_ports

LONG = "one two three four. " * 200


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of two speakers; the stand-in for espeak-ng is on the path while its tests run."""
    folder = tmp_path_factory.mktemp("voice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{write_espeak(folder / 'bin')}:{os.environ['PATH']}")
        yield export_piper(voice=write_toy_voice(folder / "piper", ["ann", "ben"]), output=folder / "two").bundle.path


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("served") / "repository"
    build_repository([bundle], repository)
    assert [(model.name, model.mode) for model in read_repository(repository)] == [("two", "synthesis")]
    with TritonServer(repository, quiet_options()) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: TritonServer) -> Iterator[Proxy]:
    http, grpc = free_ports(2)
    options = ProxyOptions(
        http_port=http, grpc_port=grpc, upstream_http=server.http_address, upstream_grpc=server.grpc_address
    )
    with Proxy(options) as running:
        yield running


@pytest.fixture(scope="module", params=["grpc", "http", "proxied grpc", "proxied http"])
def address(server: TritonServer, proxy: Proxy, request: pytest.FixtureRequest) -> str:
    http, grpc, *_ = proxy.ports
    return {
        "grpc": server.grpc_address,
        "http": f"http://{server.http_address}",
        "proxied grpc": f"127.0.0.1:{grpc}",
        "proxied http": f"http://127.0.0.1:{http}",
    }[request.param]


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    with Client(address) as found:
        yield found


def test_the_model_says_what_it_is(client: Client) -> None:
    (info,) = client.models()
    assert (info.name, info.kind, info.sample_rate) == ("two", "synthesis", 22050)
    assert (info.speakers, info.languages) == (("ann", "ben"), ("en-US",))


def test_a_text_is_spoken_as_in_process_sentence_by_sentence(client: Client, bundle: Path) -> None:
    voice = tritone.load(bundle, threads=1)
    text = "Ab, cd. Ef! Gh?"
    wanted = list(voice.speak_iter(text, speaker="ben", speed=0.5))
    found = list(client.speak_iter(text, speaker="ben", speed=0.5))
    assert [each.text for each in found] == ["Ab, cd.", "Ef!", "Gh?"]
    for mine, its in zip(wanted, found, strict=True):
        np.testing.assert_allclose(its.waveform, mine.waveform, atol=0.51 / 32768)  # 16 bits travel
    assert len(client.speak(text, "two").waveform) == len(voice.speak(text).waveform)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "nothing to speak"),
        ("a" * 20000, {}, "20,000 characters"),
        ("a", {"speed": 5}, "speed must be 0.25 to 4"),
        ("a", {"speaker": "carl"}, "no speaker 'carl'; the voice has ann, ben"),
        ("a", {"pitch": 1}, "unknown request parameter 'pitch'"),
        ("a\ud800 crashes", {}, "espeak-ng failed"),
    ],
)
def test_a_bad_request_has_its_error_and_the_model_lives(
    client: Client, text: str, options: dict[str, object], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        client.speak(text, **options)
    np.testing.assert_allclose(client.speak("ab").waveform, sound("ab"), atol=0.51 / 32768)


def test_an_error_in_the_middle_comes_after_what_was_spoken(client: Client) -> None:
    parts = client.speak_iter("Ab. It crashes. Ef.")
    assert next(parts).text == "Ab."
    with pytest.raises(tritone.TritoneError, match="espeak-ng failed"):
        next(parts)


def test_requests_take_turns_and_a_text_that_is_left_ends(client: Client) -> None:
    long = client.speak_iter(LONG)
    next(long)
    beside = threading.Thread(target=client.speak, args=("ab",))
    beside.start()
    beside.join(30)
    assert not beside.is_alive(), "a short text waits for no long one"
    long.close()
    assert client.speak("ab").text == "ab"


def test_texts_in_an_event_loop(address: str) -> None:
    async def ask() -> tuple[list[str], int]:
        async with AsyncClient(address) as client:
            texts = [part.text async for part in client.speak_iter("Ab. Cd.", "two")]
            found = await asyncio.gather(*(client.speak("Ef. Gh.", speed=2) for _ in range(8)))
            with pytest.raises(InputError, match="nothing to speak"):
                await client.speak("?")
            return texts, len({each.waveform.tobytes() for each in found})

    assert asyncio.run(ask()) == (["Ab.", "Cd."], 1)


def test_the_command_speaks_by_a_server_and_in_this_process(address: str, bundle: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    for number, where in enumerate((["--url", address], ["--model", str(bundle)])):
        path = tmp_path / f"{number}.wav"
        found = runner.invoke(app, ["speak", "Ab. Cd.", *where, "--speaker", "ben", "--output", str(path)])
        assert found.exit_code == 0, found.output
        samples, rate = soundfile.read(path, dtype="float32")
        assert rate == 22050
        np.testing.assert_allclose(samples[:100], sound("ab.", speaker=1)[:100], atol=1 / 32768)
    piped = runner.invoke(app, ["speak", "--url", address, "--format", "flac", "--output", "-"], input="Ab. Cd.")
    assert piped.exit_code == 0, piped.output
    assert soundfile.info(io.BytesIO(piped.stdout_bytes)).format == "FLAC"
    wrong = runner.invoke(app, ["speak", "a", "--url", address, "--output", "a.doc"])
    assert wrong.exit_code == 2
    assert "the name must end with one of" in wrong.stderr
    unfit = runner.invoke(app, ["speak", "a", "--model", "demo-asr", "--output", "a.wav"])
    assert unfit.exit_code == 1
    assert "speaks no text" in unfit.stderr


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"[]", 400, "must be a JSON object"),
        (b'{"TEXT": ["ab"]}', 400, "'TEXT' must be a text, a number"),
        (b'{"TEXT": "ab", "sequence_id": 3}', 400, "one answer each"),
        (b'{"TEXT": "ab", "speed": 9}', 400, "speed must be 0.25 to 4"),
        (b'{"TEXT": "' + b"x" * 2_000_000 + b'"}', 413, "1048576 are allowed"),
        (b"{", 400, ""),
    ],
)
def test_the_proxy_refuses_what_is_no_request_for_events(proxy: Proxy, body: bytes, status: int, expected: str) -> None:
    found, answer, _ = post(proxy.ports[0], "/v2/models/two/generate_stream", body)
    assert (found, expected in answer["error"]) == (status, True), answer
    assert post(proxy.ports[0], "/v2/models/nobody/generate_stream", b'{"TEXT": "ab"}')[0] in (400, 404)


def test_clients_that_leave_early_do_no_harm(server: TritonServer, proxy: Proxy) -> None:
    message = json.dumps({"TEXT": LONG}).encode()
    head = f"POST /v2/models/two/generate_stream HTTP/1.1\r\nHost: a\r\nContent-Length: {len(message)}\r\n\r\n".encode()
    for port in (int(server.http_address.rpartition(":")[2]), proxy.ports[0]):
        for number in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(head + message)
                if number % 2:
                    connection.recv(1)  # the first sentence is there
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.speak("ab").text == "ab"
