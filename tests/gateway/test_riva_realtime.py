"""Riva's Realtime sessions through NVIDIA's own client, and what that never sends."""

import argparse
import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from riva.client.realtime import RealtimeClientASR
from websockets.sync.client import connect as open_socket

from fake_speech import heard as messages_of
from toy import SAMPLE_RATE, toy_waveform
from tritone.errors import InputError
from tritone.gateway import GatewayOptions
from tritone.gateway.callers import new_key
from tritone.gateway.protocols.riva.realtime import config_of, settled
from tritone.gateway.server import GatewayServer
from tritone.server import TritonServer

TIMEOUT_S = 60.0


def pcm(text: str) -> bytes:
    return bytes((np.clip(toy_waveform(text), -1, 1) * 32767).astype("<i2").tobytes())


def arguments(server: GatewayServer, **changes: Any) -> argparse.Namespace:
    """What the client's command line gives it, as its own script has it."""
    usual = {
        **{"server": f"127.0.0.1:{server.port}", "endpoint": "/v1/realtime", "query_params": "intent=transcription"},
        **{"use_ssl": False, "ssl_client_cert": None, "ssl_client_key": None, "ssl_root_cert": None},
        **{"mic": False, "language_code": "en-US", "model_name": "live", "prompt": "", "max_alternatives": 1},
        **{"sample_rate_hz": SAMPLE_RATE, "num_channels": 1, "automatic_punctuation": False},
        **{"word_time_offsets": True, "profanity_filter": False, "no_verbatim_transcripts": False},
        **{"speaker_diarization": False, "boosted_lm_words": None, "boosted_lm_score": 4.0},
        **{"start_history": -1, "start_threshold": -1.0, "stop_history": -1, "stop_history_eou": -1},
        **{"stop_threshold": -1.0, "stop_threshold_eou": -1.0, "custom_configuration": "", "mint_api_key": None},
    }
    return argparse.Namespace(**{**usual, **changes})


def transcribed(
    server: GatewayServer, pieces: Sequence[bytes], forced: Sequence[bool] | None = None, **more: Any
) -> str:
    """What the client has at the end of a session."""

    async def talk() -> str:
        client = RealtimeClientASR(arguments(server, **more))
        await client.connect()
        try:
            await asyncio.gather(client.send_audio_chunks(list(pieces), forced), client.receive_responses())
        finally:
            await client.disconnect()
        return str(client.final_transcript)

    return asyncio.run(asyncio.wait_for(talk(), TIMEOUT_S))


def test_the_official_client_has_its_text(gateway: GatewayServer, capsys: pytest.CaptureFixture[str]) -> None:
    audio = pcm("hello world")
    assert transcribed(gateway, [audio[start : start + 1000] for start in range(0, len(audio), 1000)]).strip() == (
        "hello world"
    )
    printed = capsys.readouterr().out
    assert "hello" in printed
    assert "Start (ms)" in printed


def test_an_end_that_is_forced_makes_an_utterance(gateway: GatewayServer) -> None:
    assert transcribed(gateway, [pcm("one"), pcm("you")], [True, False]).strip() != ""


def test_a_session_without_audio_ends(gateway: GatewayServer) -> None:
    assert transcribed(gateway, []) == ""


def begun(server: GatewayServer, body: bytes = b"{}", key: str = "") -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.port}/v1/realtime/transcription_sessions"
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=TIMEOUT_S) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def heard(server: GatewayServer, *events: Any) -> list[dict[str, Any]]:
    """All events of a session in which these were sent."""
    secret = begun(server)["client_secret"]["value"]
    url = f"ws://127.0.0.1:{server.port}/v1/realtime"
    protocols: Any = ["realtime", f"realtime-token.{secret}"]
    with open_socket(url, subprotocols=protocols, open_timeout=TIMEOUT_S) as socket:
        assert socket.subprotocol == "realtime"
        for event in events:
            socket.send(event if isinstance(event, str | bytes) else json.dumps(event))
        found, _ = messages_of(socket)
        return found


def append(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode(), **more}


UPDATE = {"type": "transcription_session.update", "session": {"input_audio_transcription": {"model": "live"}}}
DONE = {"type": "input_audio_buffer.done"}


def test_utterances_are_items_and_the_last_one_says_so(gateway: GatewayServer) -> None:
    found = heard(gateway, UPDATE, append(pcm("one"), runtime_config={"force_eou": "true"}), append(pcm("you")), DONE)
    assert [each["type"] for each in found[:2]] == ["conversation.created", "transcription_session.updated"]
    completed = [each for each in found if each["type"].endswith(".completed")]
    assert [each["is_last_result"] for each in completed] == [False, True]
    for item in completed:
        deltas = [
            each["delta"] for each in found if each["type"].endswith(".delta") and each["item_id"] == item["item_id"]
        ]
        assert "".join(deltas) == item["transcript"]


@pytest.mark.parametrize(
    ("events", "part"),
    [
        ([b"123"], "JSON in text"),
        (["{"], "must be a JSON object"),
        ([{"type": "session.update"}], "expected transcription_session.update"),
        ([{"type": "transcription_session.update", "session": []}], "session must be an object"),
        ([{"type": "transcription_session.update", "session": {"voice": "x"}}], "voice is not known"),
        ([UPDATE, append(pcm("a")), UPDATE], "before its audio"),
        ([UPDATE, {"type": "input_audio_buffer.append", "audio": "%"}], "no base64"),
        ([UPDATE, append(pcm("a"), runtime_config={"other": 1})], "force_eou"),
        (
            [
                {"type": "transcription_session.update", "session": {"input_audio_transcription": {"model": "nobody"}}},
                append(pcm("a")),
            ],
            "there is no",
        ),
    ],
)
def test_an_error_says_what_is_wrong_and_ends(gateway: GatewayServer, events: list[Any], part: str) -> None:
    last = heard(gateway, *events)[-1]
    assert (last["type"], part in last["error"]["message"]) == ("error", True), last


def test_the_secret_of_a_session_stands_for_its_key(triton: TritonServer, tmp_path: Path) -> None:
    key, digest = new_key()
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: someone, sha256: {digest}}}]", encoding="utf-8")
    options = GatewayOptions(triton=f"http://{triton.http_address}", port=0, keys=file)
    with GatewayServer(options).background() as running:
        assert transcribed(running, [pcm("one")], mint_api_key=key).strip() == "one"
        with pytest.raises(Exception, match="requires an API key"):
            transcribed(running, [pcm("one")])
        secret = begun(running, key=key)["client_secret"]["value"]
        running.gateway.callers._secrets = {secret: (0.0, running.gateway.callers._secrets[secret][1])}
        with pytest.raises(urllib.error.HTTPError, match="401"):
            begun(running, key=secret)


@pytest.mark.parametrize(
    "session",
    [
        {"input_audio_format": "mp3"},
        {"input_audio_params": {"sample_rate_hz": "fast"}},
        {"endpointing_config": {"other": 1}},
        {"word_boosting": {"enable_word_boosting": True, "word_boosting_list": [{}]}},
        {"input_audio_transcription": {"prompt": "x"}},
        {"recognition_config": {"other": 1}},
        {"speaker_diarization": 1},
    ],
)
def test_settings_that_cannot_be_used_are_refused(session: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        config_of(settled(session), b"")


def test_settings_become_a_configuration() -> None:
    session = settled(
        {
            "word_boosting": {"enable_word_boosting": True, "word_boosting_list": [{"phrases": ["a"], "boost": 2}]},
            "speaker_diarization": {"enable_speaker_diarization": True, "max_speaker_count": 3},
            "endpointing_config": {"stop_history": 500},
            "recognition_config": {"custom_configuration": "search:prefix-beam, beam:8"},
        }
    )
    config = config_of(session, b"RIFF")
    assert (config.encoding, config.sample_rate_hertz) == (0, 0), "the header says it"
    assert dict(config.custom_configuration) == {"search": "prefix-beam", "beam": "8"}
    assert config.speech_contexts[0].boost == 2
    assert config.diarization_config.max_speaker_count == 3
    assert config.endpointing_config.stop_history == 500
