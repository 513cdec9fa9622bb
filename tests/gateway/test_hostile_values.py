"""A value of a wrong type or an extreme size in any field of any message of any protocol: the protocol's own error.

Each case is a conversation as a client of the protocol holds it, with one value changed. Whatever comes back, none of
it may be an error of the gateway's own (500, close code 1011, INTERNAL), and the log has no traceback.
"""

import base64
import http.client
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc
import pytest
import websockets.sync.client as websockets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus

from proxied import post
from tritone.audio.wav import PCM, wav_file
from tritone.gateway.callers import SESSION_KEY
from tritone.gateway.protocols.riva import messages
from tritone.gateway.server import GatewayServer

WAIT_S = 30.0
SOUND = bytes(6400)  # 0.2 s at 16 kHz
WAV = wav_file(SOUND, tag=PCM, width=2, sample_rate=16000)
IN_BASE64 = base64.b64encode(SOUND).decode()
HOLE = '"\\u0000hole\\u0000"'
# As they stand in JSON; the first ones are what Python's reader makes inf, NaN, or too large for everything.
HOSTILE = (
    *("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "9" * 400, "-" + "9" * 400, "18446744073709551616"),
    *("9223372036854775807", "2147483648", "-2147483649", "-1", "-0", "-0.0", "0", "1", "1e-320", "1e308", "0.5"),
    *("true", "false", "null", "[]", "{}", "[null]", "[[1]]", '{"a": []}', '""', '"x"', '"nan"', '"1e400"', '"-5"'),
    *('"\\u0000"', '"\\ud800"', '"\\u200b"', json.dumps("9" * 400), json.dumps("é" * 20_000), "[" * 40 + "]" * 40),
    *("[" * 3000 + "]" * 3000, '{"a":' * 900 + "1" + "}" * 900, '["x", 5]', '[{"phrases": 5, "boost": "x"}]'),
)
END = "the end of the case"


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in an object, itself included."""
    yield path
    for key, inside in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from fields(inside, (*path, key))


def changed(value: Any, path: tuple[Any, ...], hostile: str) -> str:
    """JSON with something else at a path."""

    def put(value: Any, path: tuple[Any, ...]) -> Any:
        if not path:
            return "\0hole\0"
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        copy[path[0]] = put(copy[path[0]], path[1:])
        return copy

    return json.dumps(put(value, path)).replace(HOLE, hostile)


@dataclass(frozen=True)
class Talk:
    """A conversation. `said`: messages one after the other, objects as JSON, texts and bytes as they are."""

    path: str
    said: tuple[Any, ...] = ()
    query: tuple[tuple[str, str], ...] = ()
    protocols: tuple[str, ...] = ()

    def cases(self) -> Iterator["Talk"]:
        for place, message in enumerate(self.said):
            if isinstance(message, dict):
                for path in fields(message):
                    for hostile in HOSTILE:
                        said = (*self.said[:place], changed(message, path, hostile), *self.said[place + 1 :])
                        yield Talk(self.path, said, self.query, self.protocols)
        for place, (name, _) in enumerate(self.query):
            for hostile in HOSTILE:
                pair = (name, hostile.strip('"')[:2000])
                yield Talk(self.path, self.said, (*self.query[:place], pair, *self.query[place + 1 :]), self.protocols)

    @property
    def address(self) -> str:
        return self.path + "?" + "&".join(f"{name}={quote(value)}" for name, value in self.query)


def start(**more: Any) -> Talk:
    return Talk("/v1/stream", ({"type": "start", **more}, SOUND, {"type": "commit"}, {"type": "end"}))


GA = {
    "format": {"type": "audio/pcm", "rate": 16000},
    "noise_reduction": {"type": "near_field"},
    "transcription": {
        **{"model": "live", "language": "en", "languages": ["en"], "allowed_languages": ["en"], "prompt": "a"},
        **{"keywords": ["a"], "delay": "low", "final_model": "toy", "texts": {"numbers": True}},
        **{"search": {"beam": 2}, "final_search": {"beam": 2}},
    },
    "turn_detection": {
        **{"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500},
        **{"idle_timeout_ms": 1000, "eagerness": "low"},
    },
}
BETA = {
    "input_audio_format": "pcm16",
    "input_audio_transcription": {"model": "live", "language": "en"},
    "turn_detection": {"type": "server_vad", "threshold": 0.5},
    "include": ["item.input_audio_transcription.logprobs"],
}
APPEND, COMMIT = {"type": "input_audio_buffer.append", "audio": IN_BASE64}, {"type": "input_audio_buffer.commit"}
RIVA_SESSION = {
    "input_audio_format": "pcm16",
    "modalities": ["text"],
    "input_audio_transcription": {"language": "en-US", "model": "live", "prompt": ""},
    "input_audio_params": {"sample_rate_hz": 16000, "num_channels": 1},
    "recognition_config": {
        **{"max_alternatives": 1, "enable_automatic_punctuation": False, "enable_word_time_offsets": True},
        **{"enable_profanity_filter": False, "enable_verbatim_transcripts": True, "custom_configuration": "a:1"},
    },
    "speaker_diarization": {"enable_speaker_diarization": True, "max_speaker_count": 2},
    "word_boosting": {"enable_word_boosting": True, "word_boosting_list": [{"phrases": ["a"], "boost": 5.0}]},
    "endpointing_config": {"stop_history": 800, "stop_history_eou": 200, "start_threshold": 0.5},
}
SOCKETS = (
    start(model="live", format="pcm_s16le", sample_rate=16000, words=True, partials=True, language="", final_model=""),
    start(allowed_languages=["en"], texts={"numbers": True, "text_language": "en"}, search={"beam": 2}),
    start(search={"hotwords": {"a": 1.5}}, final_model="toy"),
    start(vad={"model": "talk", "prefix_s": 0.2, "parameters": {"threshold": 0.5}}),
    start(turns={"model": "turns", "pause_s": 0.2, "threshold": 0.5, "eager_threshold": 0.2, "max_silence_s": 3}),
    start(speakers={"model": "voices", "num_speakers": 2, "max_speakers": 3}),
    Talk("/v1/stream", (SOUND,), (("model", "live"), ("format", "pcm_s16le"), ("sample_rate", "16000"))),
    Talk(
        "/vosk", ({"config": {"sample_rate": 16000, "words": True, "model": "live"}}, SOUND, {"reset": 1}, {"eof": 1})
    ),
    Talk("/vosk", ({"config": {"phrase_list": ["a"], "max_alternatives": 2}}, SOUND, {"eof": 1})),
    Talk("/vosk", (SOUND, {"eof": 1}), (("sample_rate", "16000"), ("model", "live"))),
    Talk("/wenet", ({"signal": "start", "nbest": 2, "continuous_decoding": True}, SOUND, {"signal": "end"})),
    Talk("/sherpa-onnx", (bytes(12800), "Done"), (("model", "live"),)),
    Talk(
        "/v1/listen",
        (SOUND, {"type": "KeepAlive"}, {"type": "Finalize"}, {"type": "CloseStream"}),
        (
            *(
                ("encoding", "linear16"),
                ("sample_rate", "16000"),
                ("channels", "1"),
                ("keywords", "a:1"),
                ("model", "live"),
            ),
            *(("endpointing", "300"), ("utterance_end_ms", "1000"), ("interim_results", "true"), ("language", "en")),
            *(("utt_split", "0.8"), ("keyterm", "a"), ("extra", "a:b"), ("tag", "a"), ("smart_format", "true")),
        ),
    ),
    Talk(
        "/v2/listen",
        (
            SOUND,
            {
                "type": "Configure",
                "thresholds": {"eot_threshold": 0.5, "eager_eot_threshold": 0.4, "eot_timeout_ms": 3000},
                "keyterms": None,
                "numerals": None,
            },
            {"type": "ForceEndTurn"},
            {"type": "CloseStream"},
        ),
        (
            *(("encoding", "linear16"), ("sample_rate", "16000"), ("eot_threshold", "0.5"), ("model", "live")),
            *(("eager_eot_threshold", "0.4"), ("eot_timeout_ms", "3000")),
        ),
    ),
    Talk(
        "/v1/realtime",
        (
            {"type": "session.update", "session": {"type": "transcription", "include": None, "audio": {"input": GA}}},
            APPEND,
            COMMIT,
            {"type": "input_audio_buffer.clear", "event_id": "e"},
        ),
        (("intent", "transcription"), ("model", "live")),
    ),
    Talk("/v1/realtime", ({"type": "transcription_session.update", "session": BETA}, APPEND, COMMIT)),
    Talk(
        "/v1/realtime",
        (
            {"type": "transcription_session.update", "session": RIVA_SESSION},
            {**APPEND, "runtime_config": {"force_end_of_utterance": True}},
            COMMIT,
            {"type": "input_audio_buffer.done"},
        ),
        protocols=("realtime", SESSION_KEY),
    ),
)


def hold(server: GatewayServer, talk: Talk) -> None:
    """Hold a conversation over a WebSocket, and look at what comes back."""
    offered = list(talk.protocols)
    if SESSION_KEY in offered:
        _, session, _ = post(server.port, "/v1/realtime/transcription_sessions", b"{}")
        offered[-1] += session["client_secret"]["value"]
    try:
        client = websockets.connect(
            f"ws://127.0.0.1:{server.port}{talk.address}",
            subprotocols=offered or None,  # type: ignore[arg-type]
            open_timeout=WAIT_S,
        )
    except InvalidStatus as refused:
        status: int | None = refused.response.status_code
    else:
        status = _talked(client, talk)
    assert status not in (500, 1011)


def _talked(client: websockets.ClientConnection, talk: Talk) -> int | None:
    """The code by which the connection is closed."""
    with client, suppress(ConnectionClosed):
        for each in talk.said:
            client.send(each if isinstance(each, str | bytes) else json.dumps(each))
        client.send(json.dumps({"type": END}))
        while END not in (told := client.recv(WAIT_S)):  # type: ignore[operator]
            assert "internal" not in str(told)
    return client.close_code


SPEECH = {
    **{"input": "a", "model": "tts-1", "voice": "a", "response_format": "wav", "speed": 1.0, "stream_format": "sse"},
    "instructions": "",
}
WRITTEN = {
    **{"text": "a", "audio_s": 1.0, "confidence": 0.5, "segment": 0, "language": "en", "is_final": True},
    "words": [{"text": "a", "start_s": 0.0, "end_s": 0.5, "confidence": 0.5}],
    "segments": [{"text": "a", "start_s": 0.0, "end_s": 0.5, "tokens": []}],
    "tokens": [{"text": "a", "start_s": 0.0, "end_s": 0.5, "confidence": 0.5}],
}
BODIES = (
    Talk("/v1/audio/speech", (SPEECH,)),
    Talk("/v1/realtime/transcription_sessions", (RIVA_SESSION,)),
    Talk("/page/written/srt", (WRITTEN,)),
    Talk("/v1/listen", ({"url": "a"},)),
)
FORM = (
    *(("model", "toy"), ("language", "en"), ("prompt", "a"), ("response_format", "verbose_json"), ("temperature", "0")),
    *(("stream", "false"), ("keywords[]", "a"), ("timestamp_granularities[]", "word"), ("search[beam]", "2")),
    *(("texts[numbers]", "true"), ("vad_filter", "true"), ("channels", "mixed"), ("chunking_strategy", "auto")),
    *(("search[nbest]", "1"), ("allowed_languages[]", "en"), ("include[]", "logprobs")),
)
QUERIES = (
    Talk(
        "/v1/listen",
        (),
        (("keywords", "a:1"), ("utt_split", "0.8"), ("model", "toy"), ("extra", "a"), ("channels", "1")),
    ),
    Talk("/page/transcribe", (), (("options", '{"model": "toy"}'), ("channels", "mixed"))),
)


def sent(server: GatewayServer, talk: Talk, kind: str = "application/json") -> None:
    """Send a body or query by HTTP."""
    body = talk.said[0] if talk.said else WAV
    body = body.encode("utf-8", "replace") if isinstance(body, str) else body
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request("POST", talk.address, body, {"content-type": kind if talk.said else "audio/wav"})
        answer = connection.getresponse()
        assert "internal" not in answer.read().decode(errors="replace")
        assert answer.status < 500
    finally:
        connection.close()


def form(name: str, hostile: str) -> Talk:
    pairs = [(each, hostile if each == name else usual) for each, usual in FORM]
    parts = [f'--b\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in pairs if v or k == name]
    head = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return Talk("/v1/audio/transcriptions", (("".join(parts) + head).encode() + WAV + b"\r\n--b--\r\n",))


EVENTS = (
    {
        "type": "transcribe",
        "data": {"name": "live", "language": "en", "transcript_names": ["a"], "transcript_terms": ["a"]},
    },
    {"type": "audio-start", "data": {"rate": 16000, "width": 2, "channels": 1, "timestamp": 0}},
    {
        **{"type": "audio-chunk", "version": "1", "data_length": 0, "payload_length": 0},
        "data": {"rate": 16000, "width": 2, "channels": 1, "timestamp": 0},
    },
    {"type": "audio-stop", "data": {"timestamp": 0}},
    {"type": "ping", "data": {"text": "a"}},
    {
        "type": "synthesize",
        "data": {"text": "a", "text_format": "text", "voice": {"name": "a", "speaker": "", "language": ""}},
    },
    {"type": "synthesize-chunk", "data": {"text": "a"}},
    {"type": "describe", "data": {}},
)


def told(server: GatewayServer, talk: Talk) -> None:
    """Send events of Wyoming, and read what comes until the end."""
    with socket.create_connection(("127.0.0.1", server.ports["wyoming"]), WAIT_S) as client:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in talk.said]
        client.sendall("".join(f"{each}\n" for each in lines).encode("utf-8", "replace"))
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert b"internal" not in answer


NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), float("nan"), float("inf"), -float("inf"), 1e-40, 1e38, -0.0)
WORDS = ("", "x", "nan", "1e400", "9" * 400, "\0", "a:b,c", "é" * 20_000)


def configs() -> Iterator[Any]:
    """RecognitionConfigs with one field that is hostile."""
    usual = {"encoding": 1, "sample_rate_hertz": 16000, "language_code": "en-US", "audio_channel_count": 1}
    make: list[Callable[[Any], Any]] = [
        *(lambda value, name=name: {name: value} for name in (*usual, "max_alternatives", "model", "speech_contexts")),
        lambda value: {"speech_contexts": [{"phrases": ["a"], "boost": value}]},
        lambda value: {"speech_contexts": [{"phrases": [value], "boost": 5.0}]},
        lambda value: {"diarization_config": {"enable_speaker_diarization": True, "max_speaker_count": value}},
        *(
            lambda value, name=name: {"endpointing_config": {name: value}}
            for name in ("stop_history", "stop_history_eou")
        ),
        *(
            lambda value, name=name: {"custom_configuration": {name: value}}
            for name in (
                "neural_vad.onset",
                "neural_vad.pad_onset",
                "beam",
                "nbest",
                "final_model",
                "text_language",
                "a",
            )
        ),
    ]
    for each in make:
        for value in (*NUMBERS, *WORDS):
            with suppress(TypeError, ValueError):  # which protobuf itself does not take
                yield messages.RecognitionConfig(**{**usual, **each(value)})


def recognised(server: GatewayServer, config: Any) -> None:
    """Ask both services of Riva."""
    with grpc.insecure_channel(f"127.0.0.1:{server.ports['riva']}") as channel:
        service = "/nvidia.riva.asr.RivaSpeechRecognition/"
        whole = messages.RecognizeRequest(config=config, audio=SOUND)
        first = messages.StreamingRecognizeRequest()
        first.streaming_config.config.CopyFrom(config)
        rest = messages.StreamingRecognizeRequest(audio_content=SOUND)
        with suppress(grpc.RpcError):
            channel.unary_unary(service + "Recognize")(whole.SerializeToString(), timeout=WAIT_S)
        requests = iter([first.SerializeToString(), rest.SerializeToString()])
        call = channel.stream_stream(service + "StreamingRecognize")(requests, timeout=WAIT_S)
        with suppress(grpc.RpcError):
            list(call)
        assert call.code() not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def all_cases() -> list[tuple[Callable[..., None], Any]]:
    found: list[tuple[Callable[..., None], Any]] = [(hold, case) for talk in SOCKETS for case in talk.cases()]
    found += [(sent, case) for talk in (*BODIES, *QUERIES) for case in talk.cases()]
    multipart = partial(sent, kind="multipart/form-data; boundary=b")
    found += [(multipart, form(name, hostile.strip('"')[:20_000])) for name, _ in FORM for hostile in HOSTILE]
    found += [(told, case) for case in Talk("", EVENTS).cases()]
    found += [(recognised, config) for config in configs()]
    return found


CASES = all_cases()


def check(server: GatewayServer, case: tuple[Callable[..., None], Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    act, what = case
    act(server, what)
    failed = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert not failed, f"{failed[0].getMessage()}, at {str(what)[:400]}"


FEW = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FEW
@given(case=st.sampled_from(CASES))
def test_a_hostile_value_in_any_field_is_an_error_of_the_client(
    turning: GatewayServer, caplog: pytest.LogCaptureFixture, case: tuple[Callable[..., None], Any]
) -> None:
    check(turning, case, caplog)


@pytest.mark.slow
@settings(FEW, max_examples=1500)
@given(case=st.sampled_from(CASES))
def test_many_hostile_values_in_all_fields_are_errors_of_the_client(
    turning: GatewayServer, caplog: pytest.LogCaptureFixture, case: tuple[Callable[..., None], Any]
) -> None:
    check(turning, case, caplog)
