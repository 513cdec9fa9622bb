"""Requests with the defaults of applications, which nobody chose: each is answered with the right text.

They are written by hand after what these clients are known to send; no traffic was recorded.
"""

import base64
import http.client
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import soundfile
from websockets.sync.client import connect

from toy import SAMPLE_RATE, toy_waveform
from tritone.audio.pcm import to_pcm
from tritone.gateway.server import GatewayServer

pytestmark = pytest.mark.slow
TEXT = "hello world"
PCM = to_pcm(toy_waveform(TEXT))

# Fields beside the file; a list is sent as several fields of that name.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "curl": {"model": "toy"},
    "openai-python, json": {"model": "toy", "response_format": "json", "language": "en", "temperature": "0"},
    "openai-python, words": {
        "model": "toy",
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    },
    "openai-node, chunking": {"model": "toy", "chunking_strategy": "auto", "include[]": "logprobs"},
    "openai-python, server_vad": {
        "model": "toy",
        "chunking_strategy[type]": "server_vad",
        "chunking_strategy[threshold]": "0.5",
        "chunking_strategy[prefix_padding_ms]": "300",
        "chunking_strategy[silence_duration_ms]": "200",
    },
    "Vercel's AI SDK": {"model": "toy", "response_format": "json", "timestamp_granularities[]": "segment"},
    "an empty prompt": {"model": "toy", "language": "en", "prompt": "", "temperature": "0", "response_format": "json"},
    "LiveKit, recordings": {"model": "toy", "language": "en", "prompt": "names: Anna", "response_format": "json"},
    "faster-whisper clients": {"model": "toy", "vad_filter": "true", "temperature": "0.0", "response_format": "json"},
    "dictation with a prompt": {"model": "toy", "prompt": "Hello, welcome.", "temperature": "0.2"},
    "subtitles": {"model": "toy", "response_format": "srt", "language": "en"},
    "subtitles for the web": {"model": "toy", "response_format": "vtt", "timestamp_granularities[]": "segment"},
}

# The session as clients configure it, and whether by the events of the beta.
SESSIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "LiveKit": (
        "transcription_session.update",
        {
            "input_audio_format": "pcm16",
            "input_audio_transcription": {"model": "live", "prompt": "names", "language": "en"},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 600,
                "silence_duration_ms": 350,
            },
            "input_audio_noise_reduction": {"type": "near_field"},
        },
    ),
    "OpenAI's Agents SDK": (
        "transcription_session.update",
        {
            "input_audio_format": "pcm16",
            "input_audio_transcription": {"model": "live"},
            "turn_detection": {"type": "semantic_vad"},
        },
    ),
    "pipecat": (
        "session.update",
        {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "live", "language": "en"},
                    "noise_reduction": {"type": "near_field"},
                    "turn_detection": None,
                }
            },
        },
    ),
    "OpenAI's guide": (
        "transcription_session.update",
        {
            "input_audio_format": "pcm16",
            "input_audio_transcription": {"model": "live", "prompt": "", "language": ""},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 500,
            },
            "input_audio_noise_reduction": {"type": "near_field"},
            "include": ["item.input_audio_transcription.logprobs"],
        },
    ),
    "meetings": (
        "session.update",
        {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "noise_reduction": {"type": "far_field"},
                    "transcription": {"model": "live", "language": "en", "prompt": ""},
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 500, "idle_timeout_ms": None},
                }
            },
            "include": ["item.input_audio_transcription.logprobs"],
        },
    ),
}


@pytest.mark.parametrize("client", FORMS)
def test_a_form_is_answered(gateway: GatewayServer, client: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, toy_waveform(TEXT), SAMPLE_RATE, format="WAV", subtype="PCM_24")
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{each}\r\n'
        for name, value in FORMS[client].items()
        for each in (value if isinstance(value, list) else [value])
    ]
    head = '--B\r\nContent-Disposition: form-data; name="file"; filename="audio.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + file.getvalue() + b"\r\n--B--\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.request("POST", "/v1/audio/transcriptions", body, {"content-type": "multipart/form-data; boundary=B"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert (answer.status, TEXT in text) == (200, True), text


@pytest.mark.parametrize("client", SESSIONS)
def test_a_session_is_answered(gateway: GatewayServer, client: str) -> None:
    kind, session = SESSIONS[client]
    third = np.interp(np.arange(PCM.size * 3 // 2) * 2 / 3, np.arange(PCM.size), PCM).astype("<i2")  # at 24 kHz
    silence = np.zeros(24000 * 2, "<i2")
    data = np.concatenate((third, silence)).tobytes()
    with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime?intent=transcription", open_timeout=60) as socket:
        assert json.loads(socket.recv(60))["type"].endswith("session.created")
        socket.send(json.dumps({"type": kind, "session": session}))
        told = json.loads(socket.recv(60))
        assert told["type"] == kind.replace("update", "updated"), told
        for start in range(0, len(data), 4801):
            audio = base64.b64encode(data[start : start + 4801]).decode()
            socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        socket.send('{"type": "input_audio_buffer.commit"}')
        while True:
            event = json.loads(socket.recv(60))
            assert event["type"] != "error", event
            if event["type"] == "conversation.item.input_audio_transcription.completed":
                break


@pytest.mark.parametrize(
    "config",
    [
        {"sample_rate": SAMPLE_RATE},
        {"sample_rate": float(SAMPLE_RATE), "words": True, "max_alternatives": 0},
        {"sample_rate": str(SAMPLE_RATE), "words": 1, "model": "live"},
        {"sample_rate": SAMPLE_RATE, "phrase_list": ["[unk]"]},
    ],
)
@pytest.mark.parametrize("size", [4000, 8001])
def test_vosks_clients_are_answered(gateway: GatewayServer, config: Mapping[str, Any], size: int) -> None:
    data, texts = PCM.tobytes(), list[str]()

    def add(message: Any) -> None:
        found: Sequence[Any] = [json.loads(message)]
        texts.extend(each["text"] for each in found if each.get("text"))

    with connect(f"ws://127.0.0.1:{gateway.port}/vosk", open_timeout=60) as socket:
        socket.send(json.dumps({"config": config}))
        for start in range(0, len(data), size):
            socket.send(data[start : start + size])
            add(socket.recv(60))
        socket.send('{"eof" : 1}')
        add(socket.recv(60))
    assert " ".join(texts) == TEXT
