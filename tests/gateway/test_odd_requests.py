"""Requests that no client should send: each is the client's error, said in its protocol, and no line of the log."""

import http.client
import io
import json
import logging
import struct
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from toy import SAMPLE_RATE, toy_waveform
from tritone.audio.pcm import to_pcm
from tritone.gateway.server import GatewayServer

AUDIO = to_pcm(toy_waveform("hello")).tobytes()
HALF = "\\ud800"  # of a surrogate pair, as JSON writes it
DEEP = "[" * 30_000 + "]" * 30_000


def realtime(audio_input: str) -> str:
    return f'{{"type": "session.update", "session": {{"type": "transcription", "audio": {{"input": {audio_input}}}}}}}'


def vosk(rate: str) -> tuple[str, list[Any]]:
    return "/vosk", [f'{{"config": {{"sample_rate": {rate}}}}}', AUDIO]


def stream(options: str) -> tuple[str, list[Any]]:
    return "/v1/stream", [f'{{"type": "start", {options}}}', AUDIO, '{"type": "end"}']


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        *map(vosk, ("NaN", "Infinity", "-16000", "0", "1e300", '"²"', "[]", "null", '"9e9"', "1" * 5000)),
        stream('"sample_rate": -1'),
        stream('"sample_rate": 1' + "0" * 40),
        stream('"search": {"sequence_id": 7}'),
        stream('"search": {"triton_final": true}'),
        stream(f'"search": {{"search": "{HALF}"}}'),
        stream(f'"texts": {{"numbers": {DEEP}}}'),
        ("/v1/stream?sample_rate=%C2%B2", [AUDIO]),
        ("/v1/stream?sample_rate=" + "9" * 5000, [AUDIO]),
        ("/v1/stream?format=%ff", [AUDIO]),
        ("/v1/realtime", [DEEP]),
        ("/v1/realtime", [realtime(f'{{"transcription": {{"language": "{HALF}"}}}}')]),
        ("/v1/realtime", [realtime('{"transcription": {"search": {"sequence_start": true}}}')]),
        ("/v1/realtime", [realtime('{"format": {"type": "audio/pcm", "rate": NaN}}')]),
        ("/v1/realtime", [realtime('{"turn_detection": {"type": "server_vad", "prefix_padding_ms": 1e400}}')]),
        ("/v1/realtime", ['{"type": "input_audio_buffer.append", "audio": "ä"}']),
        ("/v1/realtime", [f'{{"type": "{HALF}"}}']),
        ("/wenet", ['{"signal": "start", "nbest": -1}']),
        ("/wenet", [DEEP]),
        ("/wenet?model=%ED%A0%80", ['{"signal": "start"}', AUDIO]),
        ("/sherpa-onnx-offline", [struct.pack("<ii", -1, 4) + bytes(4)]),
        ("/sherpa-onnx-offline", [struct.pack("<ii", 2**31 - 1, 2**31 - 4)]),
        ("/sherpa-onnx-offline", [struct.pack("<iif", 16000, 4, float("nan"))]),
        ("/sherpa-onnx", [np.float32(np.nan).tobytes() * 4]),
    ],
)
def test_odd_messages_are_errors_of_the_client(
    gateway: GatewayServer, caplog: pytest.LogCaptureFixture, path: str, messages: list[Any]
) -> None:
    caplog.set_level(logging.WARNING)
    answers = []
    try:
        with connect(f"ws://127.0.0.1:{gateway.port}{path}", open_timeout=60, close_timeout=60) as socket:
            for each in messages:
                socket.send(each)
            while "error" not in (answers[-1] if answers else ""):
                answers.append(str(socket.recv(60)))
                if "failed" in answers[-1]:
                    break
    except ConnectionClosed as error:
        answers.append(str(error))
    assert any(word in answers[-1] for word in ("error", "failed", "invalid_")), answers
    assert "internal_error" not in answers[-1]
    assert not [each.getMessage() for each in caplog.records if each.name != "tritone.gateway.access"]


def form(fields: dict[str, str], content_type: str = "multipart/form-data; boundary=B") -> tuple[bytes, dict[str, str]]:
    file = io.BytesIO()
    soundfile.write(file, toy_waveform("hello"), SAMPLE_RATE, format="WAV")
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    ]
    head = '--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + file.getvalue() + b"\r\n--B--\r\n"
    return body, {"content-type": content_type}


@pytest.mark.parametrize(
    ("fields", "content_type", "param"),
    [
        ({"search[sequence_id]": "7"}, "", ""),
        ({"search[triton_x]": "7"}, "", ""),
        ({"search[]": "7"}, "", ""),
        ({"search[nbest]": "one"}, "", ""),
        ({"texts[numbers]": "perhaps"}, "", ""),
        ({"temperature": "nan"}, "", "temperature"),
        ({"speakers[num_speakers]": "²"}, "", "speakers"),
        ({"prompt": "+2AA-"}, "multipart/form-data; boundary=B; charset=utf-7", "body"),
        ({"prompt": "a"}, "multipart/form-data; boundary=B; charset=punycode", "body"),
    ],
)
def test_odd_forms_are_errors_with_the_documented_fields(
    gateway: GatewayServer, caplog: pytest.LogCaptureFixture, fields: dict[str, str], content_type: str, param: str
) -> None:
    caplog.set_level(logging.WARNING)
    body, headers = form(fields, content_type or "multipart/form-data; boundary=B")
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.request("POST", "/v1/audio/transcriptions", body, headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    assert answer.status == 400, found
    assert set(found["error"]) == {"message", "type", "param", "code"}
    assert (found["error"]["param"] or "").startswith(param)
    assert not [each.getMessage() for each in caplog.records if each.name != "tritone.gateway.access"]


def test_a_method_that_an_address_does_not_take_has_a_code_of_its_own(gateway: GatewayServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.request("PUT", "/v1/audio/transcriptions")
    answer = connection.getresponse()
    found = json.loads(answer.read())["error"]
    connection.close()
    assert (answer.status, found["code"], found["type"]) == (405, "method_not_allowed", "invalid_request_error")
