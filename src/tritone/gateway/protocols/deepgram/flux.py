"""Deepgram's protocol of turns (Flux): audio in, turns out, at `/v2/listen`.

audio  ...  {"type": "Configure", "thresholds": {...}}  {"type": "ForceEndTurn"}  {"type": "CloseStream"}
    ->  {"type": "Connected"}  {"type": "TurnInfo", "event": "StartOfTurn", ...}  ...  "EndOfTurn"  ...

The classifier of the gateway (`--turn-model`) decides on turns. Without one they end where segments do, and a client
that names thresholds is warned.

Source: the types of listen/v2 of deepgram-sdk 7.17.0.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute

from tritone.audio.waveform import Samples
from tritone.errors import InputError
from tritone.gateway.announced_audio import StreamAudio
from tritone.gateway.ask import Ask, Event, TurnOptions, VadOptions
from tritone.gateway.live import Live
from tritone.gateway.protocols.deepgram.request import PROTOCOL, ListenRequest, Query
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import Socket, conversations, read_json
from tritone.gateway.visit import visit_id
from tritone.transcript import Transcript, rounded

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

TIMEOUT_MS, MAX_TIMEOUT_MS = 5000, 60_000  # Flux's silence that ends a turn in any case, where none is given; the most
THRESHOLDS = {"eot_threshold": "threshold", "eager_eot_threshold": "eager_threshold"}
EVENTS = {
    "speech_started": "StartOfTurn",
    "partial": "Update",
    "eager_end": "EagerEndOfTurn",
    "resumed": "TurnResumed",
    "final": "EndOfTurn",
}
TRIGGERS = {"classifier": "model", "silence": "timeout", "client": "manual"}
CONFIGURED = ("thresholds", "keyterms", "language_hints", "numerals")


def flux_routes(gateway: "Gateway") -> list[BaseRoute]:
    """The route of the WebSocket."""
    return [conversations(gateway, "/v2/listen", PROTOCOL, _talk, _complaint)]


def _complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
    return {"type": "Error", "sequence_id": 0, "code": answer.code.upper(), "description": answer.message}


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When turns end, as the client says it; None where it does not."""

    eot_threshold: float | None = None
    eager_eot_threshold: float | None = None
    eot_timeout_ms: int = TIMEOUT_MS

    @classmethod
    def read(cls, query: Query) -> "Thresholds":
        """Those of an address; raises `InputError` if one cannot be used."""
        return cls().changed({name: query.text(name) for name in cls.__dataclass_fields__ if query.text(name)})

    def changed(self, given: Mapping[str, Any]) -> "Thresholds":
        """These with others in their place; raises `InputError` if one is unknown or cannot be used."""
        if unknown := given.keys() - self.__dataclass_fields__.keys():
            raise InputError(f"thresholds are {', '.join(self.__dataclass_fields__)}; got {str(sorted(unknown))[:80]}")
        found: dict[str, Any] = {}
        for name, value in given.items():
            most = MAX_TIMEOUT_MS if name == "eot_timeout_ms" else 1
            try:
                number = -1.0 if isinstance(value, bool) else float(value)
            except (TypeError, ValueError, OverflowError):
                number = -1.0
            if not 0 <= number <= most:
                raise InputError(f"{name} must be a number from 0 to {most}, got {str(value)[:80]!r}")
            found[name] = int(number) if name == "eot_timeout_ms" else number
        return replace(self, **found)

    def fitted(self, usual: TurnOptions) -> TurnOptions:
        """The options of turns."""
        asked = {ours: value for name, ours in THRESHOLDS.items() if (value := getattr(self, name)) is not None}
        return replace(usual, max_silence_s=self.eot_timeout_ms / 1000, **asked)


async def _talk(gateway: "Gateway", socket: Socket) -> None:
    query = Query(socket.items)
    wanted, thresholds = ListenRequest.read(socket.items, Thresholds.__dataclass_fields__), Thresholds.read(query)
    info = await gateway.speech.live_model(wanted.model)
    ask = wanted.ask(info)
    if gateway.options.vad_model:
        ask = replace(ask, vad=VadOptions())
    async with AsyncExitStack() as stack:
        audio = await stack.enter_async_context(StreamAudio(wanted.audio))
        turns = _Turns(gateway, socket, ask, thresholds, stack)
        await turns.begin()
        while True:
            message = await socket.receive()
            if isinstance(message, bytes) and message:
                await turns.take(await audio.push(message), audio.sample_rate)
                continue
            fields = read_json(message) if isinstance(message, str) else {"type": "CloseStream"}
            match fields.get("type"):
                case "CloseStream":
                    await turns.take(await audio.finish() if turns.started else None, audio.sample_rate)
                    await turns.finish()
                    return
                case "ForceEndTurn":
                    await turns.force()
                case "Configure":
                    await turns.configure(fields)
                case _:
                    raise InputError(
                        'expected audio, or {"type": "Configure"}, "ForceEndTurn" or "CloseStream"; got '
                        f"{message[:80]!r}"
                    )


class _Turns:
    """One stream and the turns that its client knows of. `started`: whether any audio came."""

    def __init__(
        self, gateway: "Gateway", socket: Socket, ask: Ask, thresholds: Thresholds, stack: AsyncExitStack
    ) -> None:
        self._speech = gateway.speech
        self._socket = socket
        self._ask = ask
        self._thresholds = thresholds
        self._stack = stack
        self._live: Live | None = None
        self._id = visit_id()
        self._sent = 0  # messages
        self._index = 0  # of the turn
        self._began_s: float | None = None  # where the turn under way begins; None between turns
        self._text = Transcript("")  # of the turn

    @property
    def started(self) -> bool:
        return self._live is not None

    @property
    def _turns(self) -> TurnOptions | None:
        usual = self._speech.turns
        return None if usual is None else self._thresholds.fitted(usual)

    async def begin(self) -> None:
        """Say that the stream may begin."""
        await self._send("Connected")
        if self._turns is None and self._thresholds != Thresholds():
            await self._send(
                "Warning",
                code="NO_TURN_MODEL",
                description="this server has no classifier of ends of turns: they end in silence, whatever the "
                "thresholds are",
            )

    async def take(self, samples: Samples | None, sample_rate: int) -> None:
        """Recognise samples and send what comes of them."""
        if samples is None or not samples.size:
            return
        if self._live is None:
            opened = await self._speech.open(replace(self._ask, turns=self._turns), sample_rate, self._socket.caller)
            self._live = await self._stack.enter_async_context(opened)
        await self._tell(await self._live.accept(samples))

    async def force(self) -> None:
        """End the turn under way."""
        if self._live is not None:
            await self._tell(await self._live.commit())

    async def finish(self) -> None:
        """Send the rest."""
        if self._live is not None:
            await self._tell(await self._live.finish())

    async def configure(self, fields: Mapping[str, Any]) -> None:
        """Take other thresholds, or say why not; the stream goes on."""
        try:
            if unfit := [name for name in CONFIGURED[1:] if fields.get(name) is not None]:
                raise InputError(f"{', '.join(unfit)}: only thresholds change in a stream; open another one")
            given = fields.get("thresholds") or {}
            if not isinstance(given, Mapping):
                raise InputError('"thresholds" must be an object')
            self._thresholds = self._thresholds.changed(
                {name: each for name, each in given.items() if each is not None}
            )
        except InputError as error:
            await self._send("ConfigureFailure", code="UNPROCESSABLE", description=str(error))
            return
        if self._live is not None and (turns := self._turns) is not None:
            self._live.change_turns(turns)
        now = {name: getattr(self._thresholds, name) for name in Thresholds.__dataclass_fields__}
        await self._send(
            "ConfigureSuccess",
            thresholds={name: value for name, value in now.items() if value is not None},
            keyterms=list(self._ask.search.get("hotwords", ())),
        )

    async def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            for name, fields in self._infos(event):
                await self._send("TurnInfo", event=name, **fields)

    def _infos(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        """The messages that an event becomes."""
        if (name := EVENTS.get(event.kind)) is None:
            return
        found = event.transcript
        if self._began_s is None:
            if event.kind == "final" and (found is None or not found.text):
                return  # nobody spoke
            first = found.words[0].start_s if found is not None and found.words else event.time_s
            self._began_s = min(first, event.time_s)
            self._text = Transcript("")
            yield "StartOfTurn", self._info(self._began_s, 0.0)
            if event.kind == "speech_started":
                return
        if found is not None:
            self._text = found
        sure = 0.0 if event.turn is None or event.turn.probability is None else event.turn.probability
        if event.kind != "final":
            yield name, self._info(event.time_s, sure)
            return
        trigger = TRIGGERS[event.turn.trigger if event.turn is not None else "silence"]
        yield name, {**self._info(event.time_s, sure), "trigger": trigger}
        self._began_s = None
        self._index += 1

    def _info(self, until_s: float, sure: float) -> dict[str, Any]:
        words = [
            {
                "word": each.text,
                "confidence": rounded(each.confidence, 6),
                "start": round(each.start_s, 3),
                "end": round(each.end_s, 3),
            }
            for each in self._text.words
        ]
        # Speech begins and ends by voice activity, and words may be a little before and after.
        return {
            "turn_index": self._index,
            "audio_window_start": round(min([self._began_s or 0.0, *(each.start_s for each in self._text.words)]), 3),
            "audio_window_end": round(max([until_s, *(each.end_s for each in self._text.words)]), 3),
            "transcript": self._text.text,
            "words": words,
            "end_of_turn_confidence": round(sure, 4),
        }

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send({"type": kind, "request_id": self._id, "sequence_id": self._sent, **fields})
        self._sent += 1
