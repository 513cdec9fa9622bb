"""Protocols over WebSockets in front of a real Triton, and the clients of docs/applications/gateway-websocket.md."""

import asyncio
import json
import re
import shutil
import socket as plain
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from fake_speech import heard
from toy import SAMPLE_RATE, toy_waveform
from tritone.gateway.server import GatewayServer
from waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "applications" / "gateway-websocket.md"
TEXT = "hello world"
TIMEOUT_S = 120.0


def samples() -> Any:
    return (toy_waveform(TEXT) * 32768).astype("<i2")


def opened(gateway: GatewayServer, path: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{gateway.port}{path}", close_timeout=60, open_timeout=60)


def test_every_protocol_hears_the_same(gateway: GatewayServer) -> None:
    pcm, floats = samples().tobytes(), (samples() / np.float32(32768)).astype("<f4").tobytes()
    found = {}
    with opened(gateway, "/v1/stream?model=live") as client:
        client.send(pcm)
        client.send('{"type": "end"}')
        messages, _ = heard(client)
        found["stream"] = messages[-2]["text"]
    with opened(gateway, "/vosk?sample_rate=16000&model=live") as client:
        client.send(pcm)
        client.recv()
        client.send('{"eof" : 1}')
        reply = json.loads(client.recv())
        found["vosk"] = reply["text"]
        assert " ".join(word["word"] for word in reply["result"]) == TEXT
    with opened(gateway, "/wenet?model=live") as client:
        client.send('{"signal":"start"}')
        client.send(pcm)
        client.send('{"signal":"end"}')
        messages, _ = heard(client)
        (path,) = json.loads(messages[-2]["nbest"])
        found["wenet"] = path["sentence"]
        assert path["word_pieces"][0]["end"] > path["word_pieces"][0]["start"]
    with opened(gateway, "/sherpa-onnx?model=live") as client:
        client.send(floats)
        client.send("Done")
        *_, result, done = client
        found["sherpa_onnx"] = json.loads(result)["text"]
        assert done == "Done!"
    with opened(gateway, "/sherpa-onnx-offline?model=toy") as client:
        client.send(SAMPLE_RATE.to_bytes(4, "little") + len(floats).to_bytes(4, "little") + floats)
        found["sherpa_onnx_offline"] = json.loads(client.recv())["text"]
    assert set(found.values()) == {TEXT}, found


def test_a_model_that_there_is_not_is_told(gateway: GatewayServer) -> None:
    for path, first in (
        ("/v1/stream", '{"type": "start", "model": "none"}'),
        ("/vosk?model=none", b"\0\0"),
        ("/wenet?model=none", '{"signal": "start"}'),
        ("/sherpa-onnx?model=none", "Done"),
    ):
        with opened(gateway, path) as client:
            with suppress(ConnectionClosed):  # where the model is in the address, the gateway may be faster
                client.send(first)
            messages, code = heard(client)
        assert "none" in str(messages[-1])
        assert code == 1008


def test_clients_that_vanish_leave_no_stream_at_triton(gateway: GatewayServer) -> None:
    """More of them than the model has streams; one that was left behind would take its place for ten minutes."""
    for _ in range(40):
        vanishing = opened(gateway, "/v1/stream?model=live")
        vanishing.send(samples()[:4000].tobytes())
        assert json.loads(vanishing.recv(60))["type"] == "ready"
        vanishing.socket.shutdown(plain.SHUT_RDWR)
        vanishing.close()
    with opened(gateway, "/v1/stream?model=live") as client:
        client.send(samples().tobytes())
        client.send('{"type": "end"}')
        messages, _ = heard(client)
    assert messages[-2]["text"] == TEXT
    until(lambda: gateway.gateway.speech.open_streams == 0)
    until(lambda: asyncio.run_coroutine_threadsafe(left_tasks(), gateway.loop).result(60) == [])  # type: ignore[arg-type]


async def left_tasks() -> list[str]:
    """Tasks of conversations; those of the server itself have other names."""
    return [str(task) for task in asyncio.all_tasks() if "sockets.py" in str(task.get_coro())]


# The clients of the document


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[number]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "speech.wav"
    soundfile.write(path, samples(), SAMPLE_RATE)
    return path


def ran(command: list[str]) -> str:
    found = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()[-1]


def test_the_python_client_of_the_document_runs(gateway: GatewayServer, recording: Path, tmp_path: Path) -> None:
    (tmp_path / "stream.py").write_text(block("py"), encoding="utf-8")
    url = f"ws://127.0.0.1:{gateway.port}/v1/stream"
    assert ran([sys.executable, str(tmp_path / "stream.py"), url, str(recording)]) == f"final {TEXT}"


def test_the_javascript_client_of_the_document_runs(gateway: GatewayServer, recording: Path, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    version = subprocess.run([node, "--version"], capture_output=True, encoding="utf-8", check=True).stdout
    if int(version.strip("v").split(".")[0]) < 20:
        pytest.skip("needs Node.js 20 or newer")
    (tmp_path / "stream.mjs").write_text(block("mjs"), encoding="utf-8")
    url = f"ws://127.0.0.1:{gateway.port}/v1/stream"
    command = [node, "--experimental-websocket", str(tmp_path / "stream.mjs"), url, str(recording)]
    assert ran(command) == f"final {TEXT}"
