"""Riva's Realtime sessions over a WebSocket, as the client of nvidia-riva-client holds them.

POST /v1/realtime/transcription_sessions   ->  the settings of a session and its secret
/v1/realtime, with the secret as subprotocol:
    transcription_session.update, input_audio_buffer.append, .commit  ...  .done
        ->  deltas, and for each utterance `completed`, the last one with `is_last_result`

A session is a stream of StreamingRecognize in JSON: its settings become a RecognitionConfig, its results events.

Source: riva/client/realtime.py of nvidia-riva-client 2.28, which sends and reads these events.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tritone.errors import InputError
from tritone.gateway.announced_audio import MAGIC
from tritone.gateway.callers import SESSION_KEY
from tritone.gateway.conversation import SocketConversation
from tritone.gateway.protocols.riva import messages
from tritone.gateway.protocols.riva.messages import ENCODINGS
from tritone.gateway.protocols.riva.recognition import FORCE_END, Recognition
from tritone.gateway.realtime_events import new_id, read_audio, write_event
from tritone.gateway.refusal import ErrorAnswer, GatewayRefusal
from tritone.gateway.sockets import read_json

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

PROTOCOL = "riva-realtime"
MAX_SETTINGS = 64 << 10  # bytes
FORMATS = {"pcm16": "LINEAR_PCM", "none": "LINEAR_PCM", "g711_ulaw": "MULAW", "g711_alaw": "ALAW"}
WORDS = "conversation.item.input_audio_transcription"
SETTINGS: Mapping[str, Any] = {
    "object": "realtime.transcription_session",
    "modalities": ["text"],
    "input_audio_format": "pcm16",
    "input_audio_transcription": {"language": "", "model": "", "prompt": ""},
    "input_audio_params": {"sample_rate_hz": 16000, "num_channels": 1},
    "recognition_config": {
        "max_alternatives": 1,
        "enable_automatic_punctuation": False,
        "enable_word_time_offsets": False,
        "enable_profanity_filter": False,
        "enable_verbatim_transcripts": True,
        "custom_configuration": "",
    },
    "speaker_diarization": {"enable_speaker_diarization": False, "max_speaker_count": 0},
    "word_boosting": {"enable_word_boosting": False, "word_boosting_list": []},
    "endpointing_config": {},
}
UNREAD = ("id", "object", "modalities", "client_secret")


def routes(gateway: "Gateway") -> list[BaseRoute]:
    """The route that begins sessions, and that of their WebSocket, which is known by its subprotocol."""

    async def begin(request: Request) -> Response:
        caller = await gateway.admit(request.headers, request.query_params, protocol=PROTOCOL)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_SETTINGS:
                raise GatewayRefusal(413, f"the settings of a session may have {MAX_SETTINGS:,} bytes")
        session = settled(read_json(body.decode(errors="replace")) if body else {})
        secret, good_s = gateway.callers.secret(caller.account)
        expires = {"value": secret, "expires_at": int(time.time() + good_s)}
        return JSONResponse({"id": new_id("sess"), **session, "client_secret": expires})

    own = Route("/v1/realtime/transcription_sessions", begin, methods=["POST"])
    return [own, *SessionConversation.routes(gateway)]


class SessionConversation(Recognition[str | bytes], SocketConversation):
    """One session, whose utterances are items."""

    protocol, path = PROTOCOL, "/v1/realtime"
    subprotocol, prefix = "realtime", SESSION_KEY

    @staticmethod
    def complaint(answer: ErrorAnswer) -> str:
        return write_event("error", {"error": {"type": answer.kind, "code": answer.code, "message": answer.message}})

    async def begin(self) -> None:
        self._session = settled({})
        self._has_audio = False
        self._waiting: list[Any] = []  # results, until it is known whether they are the last
        self._item, self._text = new_id("item"), ""  # and what was sent of it in deltas
        conversation = {"id": new_id("conv"), "object": "realtime.conversation"}
        await self.socket.send(write_event("conversation.created", {"conversation": conversation}))

    async def take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            raise InputError("events are JSON in text messages, with audio in base64")
        await self.command(message)

    async def command(self, text: str) -> None:
        event = read_json(text)
        match event.get("type"):
            case "transcription_session.update":
                if self._has_audio:
                    raise InputError("the session is updated before its audio; begin another session")
                self._session = settled(event.get("session"))
                config_of(self._session, b"")
                await self.socket.send(write_event("transcription_session.updated", {"session": self._session}))
            case "input_audio_buffer.append":
                audio = read_audio(event.get("audio"))
                if not self._has_audio:
                    self.configure(config_of(self._session, audio), interim=True)
                    self._has_audio = True
                runtime = event.get("runtime_config") or {}
                if not isinstance(runtime, dict) or set(runtime) - {FORCE_END}:
                    raise InputError(f"runtime_config knows {FORCE_END} alone, got {str(runtime)[:80]}")
                await self.take_with(audio, {name: str(value).lower() for name, value in runtime.items()})
                await self._flush()
            case "input_audio_buffer.commit":  # after each piece; utterances end by the model's rules
                pass
            case "input_audio_buffer.done":
                if self._has_audio:
                    await self.finish()
                await self._flush(ends=True)
                self.is_over = True
            case other:
                raise InputError(
                    f"expected transcription_session.update or input_audio_buffer.append, .commit or .done, got "
                    f"{str(other)[:80]!r}"
                )

    async def write(self, response: Any) -> None:
        self._waiting += response.results

    async def _flush(self, *, ends: bool = False) -> None:
        """Send what came; `ends`: no more will."""
        results, self._waiting = self._waiting, []
        if ends and not (results and results[-1].is_final):
            results.append(messages.StreamingRecognizeResponse().results.add(is_final=True))
        for place, result in enumerate(results, 1):
            best = result.alternatives[0] if result.alternatives else None
            text = "" if best is None else best.transcript
            common = {"item_id": self._item, "content_index": 0}
            # A text that was changed cannot be taken back: then the whole comes with `completed` alone.
            if text.startswith(self._text) and len(text) > len(self._text):
                await self._send("delta", **common, delta=text[len(self._text) :])
                self._text = text
            if not result.is_final:
                continue
            words = [] if best is None else [_word(each) for each in best.words]
            last = ends and place == len(results)
            await self._send("completed", **common, transcript=text, is_last_result=last, words_info={"words": words})
            self._item, self._text = new_id("item"), ""

    async def _send(self, what: str, **fields: Any) -> None:
        await self.socket.send(write_event(f"{WORDS}.{what}", fields))


def _word(word: Any) -> Mapping[str, Any]:
    return {name: getattr(word, name) for name in ("word", "start_time", "end_time", "confidence", "speaker_tag")}


def settled(given: object) -> dict[str, Any]:
    """The settings of a session: those that are given, and the usual ones.

    Raises:
        InputError: one is not known.
    """
    if not isinstance(given, dict):
        raise InputError(f"session must be an object, got {str(given)[:80]}")
    found: dict[str, Any] = {}
    for name, usual in SETTINGS.items():
        value = given.get(name, usual)
        if isinstance(usual, dict):
            value = {} if value is None else value
            if not isinstance(value, dict):
                raise InputError(f"session.{name} must be an object, got {str(value)[:80]}")
            if usual and (unknown := set(map(str, value)) - set(usual)):
                raise InputError(f"session.{name}: {', '.join(sorted(unknown))[:80]} is not known")
            value = {**usual, **value}
        found[name] = value
    if unknown := set(map(str, given)) - set(SETTINGS) - set(UNREAD):
        raise InputError(f"session: {', '.join(sorted(unknown))[:80]} is not known")
    return found


def config_of(session: Mapping[str, Any], audio: bytes) -> Any:
    """The RecognitionConfig that says what the settings say.

    Args:
        audio: the first of it, which may have a header.

    Raises:
        InputError: a setting cannot be used.
    """
    form, params, rules = session["input_audio_format"], session["input_audio_params"], session["recognition_config"]
    if not isinstance(form, str) or form not in FORMATS:
        raise InputError(f"session.input_audio_format must be one of {', '.join(FORMATS)}, got {str(form)[:80]!r}")
    headed = audio[:4] in MAGIC
    asked = session["input_audio_transcription"]
    boosting, speakers = session["word_boosting"], session["speaker_diarization"]
    custom = str(rules["custom_configuration"] or "").replace(" ", "")
    try:
        config = messages.RecognitionConfig(
            encoding=0 if headed else ENCODINGS[FORMATS[form]],
            sample_rate_hertz=0 if headed else params["sample_rate_hz"],
            audio_channel_count=0 if headed else params["num_channels"],
            language_code=asked["language"] or "",
            model=asked["model"] or "",
            max_alternatives=rules["max_alternatives"],
            profanity_filter=rules["enable_profanity_filter"],
            enable_word_time_offsets=rules["enable_word_time_offsets"],
            enable_automatic_punctuation=rules["enable_automatic_punctuation"],
            verbatim_transcripts=rules["enable_verbatim_transcripts"],
            custom_configuration=dict(pair.partition(":")[::2] for pair in custom.split(",") if pair),
        )
        if speakers["enable_speaker_diarization"]:
            config.diarization_config.enable_speaker_diarization = True
            config.diarization_config.max_speaker_count = speakers["max_speaker_count"]
        for each in boosting["word_boosting_list"] if boosting["enable_word_boosting"] else ():
            config.speech_contexts.add(phrases=each["phrases"], boost=each["boost"])
        for name, value in session["endpointing_config"].items():
            setattr(config.endpointing_config, name, value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"a setting of the session cannot be used: {error}") from error
    if asked["prompt"]:
        raise InputError("session.input_audio_transcription.prompt is not taken here; word boosting favours words")
    return config
