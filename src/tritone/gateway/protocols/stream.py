"""The gateway's own WebSocket: audio in, partial and final texts out.

docs/applications/gateway-websocket.md has it for clients.


{"type": "start", "sample_rate": 16000}  audio  ...  {"type": "end"}
    ->  {"type": "ready"}  {"type": "partial", "text": "one two", ...}  ...  {"type": "final", ...}  {"type": "end"}
"""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.routing import BaseRoute

from tritone.audio.live import LiveAudio, live_audio
from tritone.client.models import ModelInfo
from tritone.errors import InputError
from tritone.gateway.ask import Ask, Event, SpeakerOptions, TurnOptions, VadOptions, language_parameters
from tritone.gateway.live import Live
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import Socket, conversations, read_json
from tritone.texts import TextOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tritone.gateway.gateway import Gateway

PROTOCOL = "stream"
DEFAULT_RATE = 16000  # Hz
IN_ADDRESS = ("model", "format", "sample_rate")  # options that may stand there, for clients that send audio alone

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Vad(_Options):
    """How a served model for voice activity cuts the stream; `parameters` as of the wire contract."""

    model: str = ""
    prefix_s: Annotated[Number, Field(ge=0, le=2)] = VadOptions.prefix_s
    parameters: dict[str, str | int | Number | bool] = {}


class Turns(_Options):
    """When a speaker has finished, as of `TurnOptions`."""

    model: str = ""
    pause_s: Annotated[Number, Field(ge=0.05, le=5)] = TurnOptions.pause_s
    threshold: Annotated[Number, Field(ge=0, le=1)] = TurnOptions.threshold
    eager_threshold: Annotated[Number, Field(ge=0, le=1)] | None = None
    max_silence_s: Annotated[Number, Field(ge=0.1, le=60)] = TurnOptions.max_silence_s


class Speakers(_Options):
    """How words get speakers."""

    model: str = ""
    num_speakers: Annotated[int, Field(ge=0)] = 0
    max_speakers: Annotated[int, Field(ge=0)] = 0


class Start(_Options):
    """The options of a stream, its first message; every one may be left out."""

    type: Literal["start"] = "start"
    model: str = ""
    format: str = "pcm_s16le"
    sample_rate: int = DEFAULT_RATE
    words: bool = False
    partials: bool = True
    language: str = ""
    allowed_languages: list[str] = []
    search: dict[str, str | int | Number | bool | dict[str, Number]] = {}
    texts: dict[str, str | bool] = {}
    vad: Vad | bool = False
    turns: Turns | bool = False
    speakers: Speakers | bool = False
    final_model: str = ""

    def ask(self, info: ModelInfo) -> Ask:
        """What is asked of a model; `InputError` if an option of the search or of texts is unfit, or a language."""
        vad = Vad() if self.vad is True else self.vad or None
        turns = Turns() if self.turns is True else self.turns or None
        speakers = Speakers() if self.speakers is True else self.speakers or None
        return Ask(
            model=self.model,
            search={
                **language_parameters(info, self.language, self.allowed_languages, is_asked=True),
                **self.search,
            },
            details=self.words,
            words="wanted" if self.words else "none",
            texts=TextOptions().changed(self.texts),
            vad=VadOptions(**vad.model_dump()) if vad else None,
            turns=TurnOptions(**turns.model_dump()) if turns else None,
            speakers=SpeakerOptions(**speakers.model_dump()) if speakers else None,
            final_model=self.final_model,
        )


def routes(gateway: "Gateway", path: str = "/v1/stream") -> list[BaseRoute]:
    """The protocol at a path."""
    return [conversations(gateway, path, PROTOCOL, _talk, _complaint)]


def _complaint(answer: ErrorAnswer) -> "Mapping[str, Any]":
    later = {} if answer.retry_after_s is None else {"retry_after_s": answer.retry_after_s}
    return {"type": "error", "code": answer.code, "message": answer.message, **later}


async def _talk(gateway: "Gateway", socket: Socket) -> None:
    message = await socket.receive()
    # Whoever sends audio at once has given all in the address.
    start = read_start(read_json(message) if isinstance(message, str) else {}, socket.query)
    ask = start.ask(await gateway.speech.live_model(start.model))
    with closing(live_audio(start.format, start.sample_rate)) as audio:
        async with await gateway.speech.open(ask, audio.rate, socket.caller) as live:
            await socket.send({"type": "ready", "model": live.model, "format": start.format, "sample_rate": audio.rate})
            goes_on = isinstance(message, str) or await _take(message, socket, audio, live, start)
            while goes_on:
                goes_on = await _take(await socket.receive(), socket, audio, live, start)
            await socket.send({"type": "end", "audio_s": round(live.received_s, 3)})


def read_start(fields: "Mapping[str, Any]", query: "Mapping[str, str]") -> Start:
    """The options of a first message and of the address; `InputError` names those that are unknown or unfit."""
    given: dict[str, Any] = {name: query[name] for name in IN_ADDRESS if name in query}
    try:
        if "sample_rate" in given:
            given["sample_rate"] = int(given["sample_rate"])
        return Start.model_validate({**given, **fields})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        raise InputError(f"the options of the stream cannot be used: {problems}") from error
    except ValueError as error:
        raise InputError(f"sample_rate in the address must be a whole number, got {query['sample_rate']!r}") from error


async def _take(message: str | bytes, socket: Socket, audio: LiveAudio, live: Live, start: Start) -> bool:
    """Act on a message and send what came of it; returns whether more may come."""
    if isinstance(message, bytes):
        samples = await audio.push(message)
        await _send_events(socket, await live.accept(samples) if samples.size else [], start)
        return True
    fields = read_json(message)
    match fields.get("type"):
        case "commit":
            await _send_events(socket, await live.commit(), start)
            return True
        case "end":
            rest = await audio.finish()
            await _send_events(socket, await live.accept(rest) if rest.size else [], start)
            await _send_events(socket, await live.finish(), start)
            return False
    raise InputError(f'expected audio, {{"type": "commit"}} or {{"type": "end"}}, got {message[:80]!r}')


async def _send_events(socket: Socket, events: "Sequence[Event]", start: Start) -> None:
    for event in events:
        if event.kind != "partial" or start.partials:
            await socket.send(as_message(event, words=start.words))


def as_message(event: Event, *, words: bool) -> dict[str, Any]:
    """An event as it is sent; texts as `Transcript.to_dict` has them, without tokens."""
    message: dict[str, Any] = {"type": event.kind, "segment": event.segment, "time_s": round(event.time_s, 3)}
    if event.turn is not None:
        message["turn"] = {"trigger": event.turn.trigger}
        if event.turn.probability is not None:
            message["turn"]["probability"] = round(event.turn.probability, 4)
    if event.transcript is not None:
        found = event.transcript.to_dict()
        kept = ["text", "language"]
        kept += ["confidence", "alternatives"] if event.kind == "final" else ["settled"]
        if words:  # left out where a model has no times of them
            kept += ["words", "segments"] if found["words"] or not found["text"] else ["segments"]
        message.update((name, found[name]) for name in kept if name in found)
        for each in message.get("segments", ()):
            del each["tokens"]
        for each in message.get("alternatives", ()):
            del each["tokens"]
            if not words:
                del each["words"]
    return message
