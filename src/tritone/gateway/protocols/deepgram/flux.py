"""Deepgram's protocol of turns (Flux): audio in, turns out, at `/v2/listen`.

audio  ...  {"type": "Configure", "thresholds": {...}}  {"type": "ForceEndTurn"}  {"type": "CloseStream"}
    ->  {"type": "Connected"}  {"type": "TurnInfo", "event": "StartOfTurn", ...}  ...  "EndOfTurn"  ...

The classifier of the gateway (`--turn-model`) decides on turns. Without one they end where segments do, and a client
that names thresholds is warned.

Source: the types of listen/v2 of deepgram-sdk 7.17.0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritone.errors import InputError
from tritone.gateway.announced_audio import StreamAudio
from tritone.gateway.ask import Ask, Event, TurnOptions, VadOptions
from tritone.gateway.conversation import After, SocketConversation
from tritone.gateway.protocols.deepgram.request import CLOSE, PROTOCOL, ListenRequest, Query
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import read_json
from tritone.gateway.visit import visit_id
from tritone.transcript import Transcript, rounded

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


class FluxConversation(SocketConversation):
    """One conversation, and the turns that its client knows of."""

    protocol, path = PROTOCOL, "/v2/listen"

    @staticmethod
    def complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
        return {"type": "Error", "sequence_id": 0, "code": answer.code.upper(), "description": answer.message}

    async def begin(self) -> None:
        """Say that the stream may begin."""
        wanted = ListenRequest.read(self.socket.items, Thresholds.__dataclass_fields__)
        self._thresholds = Thresholds.read(Query(self.socket.items))
        self._ask = wanted.ask(await self.speech.live_model(wanted.model))
        if self.gateway.options.vad_model:
            self._ask = replace(self._ask, vad=VadOptions())
        self.audio = StreamAudio(wanted.audio)
        self._id = visit_id()
        self._sent = 0  # messages
        self._index = 0  # of the turn
        self._began_s: float | None = None  # where the turn under way begins; None between turns
        self._text = Transcript("")  # of the turn
        await self._send("Connected")
        if self._turns is None and self._thresholds != Thresholds():
            await self._send(
                "Warning",
                code="NO_TURN_MODEL",
                description="this server has no classifier of ends of turns: they end in silence, whatever the "
                "thresholds are",
            )

    @property
    def _turns(self) -> TurnOptions | None:
        usual = self.speech.turns
        return None if usual is None else self._thresholds.fitted(usual)

    async def ask(self) -> Ask:
        return replace(self._ask, turns=self._turns)

    async def take(self, message: str | bytes) -> None:
        await super().take(message if message != b"" else CLOSE)

    async def command(self, text: str) -> None:
        fields = read_json(text)
        match fields.get("type"):
            case "CloseStream":
                await self.finish()
            case "ForceEndTurn":
                await self.commit()
            case "Configure":
                await self._configure(fields)
            case _:
                raise InputError(
                    f'expected audio, or {{"type": "Configure"}}, "ForceEndTurn" or "CloseStream"; got {text[:80]!r}'
                )

    async def _configure(self, fields: Mapping[str, Any]) -> None:
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
        if self.live is not None and (turns := self._turns) is not None:
            self.live.change_turns(turns)
        now = {name: getattr(self._thresholds, name) for name in Thresholds.__dataclass_fields__}
        await self._send(
            "ConfigureSuccess",
            thresholds={name: value for name, value in now.items() if value is not None},
            keyterms=list(self._ask.search.get("hotwords", ())),
        )

    def messages(self, events: Sequence[Event], after: After) -> Iterator[Mapping[str, Any]]:
        for event in events:
            for name, fields in self._infos(event):
                yield self._message("TurnInfo", event=name, **fields)

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

    def _message(self, kind: str, **fields: Any) -> Mapping[str, Any]:
        self._sent += 1
        return {"type": kind, "request_id": self._id, "sequence_id": self._sent - 1, **fields}

    async def _send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(self._message(kind, **fields))


routes = FluxConversation.routes
