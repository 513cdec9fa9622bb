"""OpenAI Realtime: transcription sessions over WebSocket, `/v1/realtime?intent=transcription`.

    session.update, input_audio_buffer.append ...  ->  speech_started, committed, deltas, completed

The events are those of OpenAI's documentation, for clients of GA and of the beta (`OpenAI-Beta: realtime=v1`, or
`transcription_session.update`). With turn detection, every segment of the stream is an item; without, the audio between
two commits is. Times in events are milliseconds from the first audio of the session.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tritone.audio.waveform import Samples
from tritone.client.models import ModelInfo
from tritone.errors import InputError, TritoneError
from tritone.gateway.ask import Ask, Event, VadOptions, language_parameters
from tritone.gateway.callers import Caller
from tritone.gateway.conversation import After, Conversation
from tritone.gateway.gateway import Gateway
from tritone.gateway.live import Live
from tritone.gateway.protocols.openai.answers import log_probs, usage
from tritone.gateway.protocols.openai.deltas import Deltas
from tritone.gateway.protocols.openai.errors import admitted, error_object
from tritone.gateway.protocols.openai.events import item_events, read_event
from tritone.gateway.protocols.openai.request import hotwords
from tritone.gateway.protocols.openai.session import Dialect, SessionConfig
from tritone.gateway.realtime_events import new_id, read_audio, write_event
from tritone.gateway.refusal import ErrorAnswer, FieldError, GatewayRefusal, answer_to
from tritone.gateway.visit import VISIT
from tritone.gateway.visits import close_code
from tritone.transcript import Span, joined

LEAST_COMMIT_MS = 100  # OpenAI's
MOST_SILENCE_S = {"low": 8.0, "medium": 4.0, "high": 2.0, "auto": 4.0}  # by eagerness, OpenAI's
LEAST_THRESHOLD = 0.01  # of our models for voice activity
EARLY = ("minimal", "low", "medium")  # delays with which deltas come before the text is final
CREATED = {"ga": "session.created", "beta": "transcription_session.created"}
UPDATED = {"ga": "session.updated", "beta": "transcription_session.updated"}
UPDATES: Mapping[str, Dialect] = {"session.update": "ga", "transcription_session.update": "beta"}
PROTOCOL, BETA_PROTOCOL = "realtime", "openai-beta.realtime-v1"  # of browsers, which cannot set headers
NOT_HERE = "response.", "conversation.", "output_audio_buffer."  # events of sessions that answer


def realtime_routes(gateway: Gateway) -> list[BaseRoute]:
    """The route of sessions."""

    async def realtime(websocket: WebSocket) -> None:
        offered = websocket.scope["subprotocols"]
        caller = await admitted(gateway, websocket, "openai-realtime")
        is_beta = websocket.headers.get("openai-beta", "") == "realtime=v1" or BETA_PROTOCOL in offered
        await websocket.accept(PROTOCOL if PROTOCOL in offered else None)
        query = websocket.query_params
        config = SessionConfig(model=query.get("model", ""), final_model=query.get("final_model", ""))
        with suppress(WebSocketDisconnect, _EndedError):
            await RealtimeSession(gateway, websocket, caller, "beta" if is_beta else "ga", config).hold()

    return [WebSocketRoute("/v1/realtime", realtime)]


class _EndedError(Exception):
    """The connection was closed by this side."""


@dataclass
class _Item:
    """A stretch of audio that becomes one transcript."""

    deltas: Deltas
    id: str = field(default_factory=lambda: new_id("item"))
    committed: bool = False
    text: str = ""  # of its segments that are final
    tokens: list[Span] = field(default_factory=list)
    from_s: float = 0.0
    second_pass: str = ""  # the outcome; of several segments the first that is not "done"


class RealtimeSession(Conversation[Mapping[str, Any]]):
    """One connection, which goes on after errors.

    Without turn detection (`manual`), a live stream is opened for every item, and all its segments are that item's.
    With it, there is one live stream, until the audio is cleared or the configuration changes.
    """

    def __init__(
        self, gateway: Gateway, websocket: WebSocket, caller: Caller, dialect: Dialect, config: SessionConfig
    ) -> None:
        super().__init__(gateway, caller)
        self._socket = websocket
        self._dialect = dialect
        self._config = config
        self.audio = config.audio()
        self._id = new_id("sess")
        self._model = ModelInfo(name=config.model, kind="streaming")  # until it is known
        self._has_vad = False  # whether a served model finds speech; else the recogniser's endpoint rules end segments
        self._late: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()  # held while events are made and sent, so that they are sent in order
        self._items: dict[int, _Item] = {}  # by segment; without turn detection there is one, 0
        self._base_s = 0.0  # audio of the session before the live stream
        self._received_s = 0.0  # audio of the session
        self._pending_s = 0.0  # since the last commit
        self._previous: str | None = None  # item

    @property
    def _manual(self) -> bool:
        return self._config.turn_detection is None

    async def begin(self) -> None:
        try:
            self._has_vad = await self._finds_speech()
            self._model = await self._check(self._config)
        except TritoneError as error:
            await self._refuse(error)
        await self._send(CREATED[self._dialect], session=self._session())

    async def receive(self) -> Mapping[str, Any]:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        return message

    async def take(self, message: Mapping[str, Any]) -> None:
        event: dict[str, Any] = {}
        async with self._sending:
            try:
                event = read_event(message.get("text"))
                await self._act(event)
            except InputError as error:  # the session goes on without the event
                await self._send_error(error, event)
            except TritoneError as error:
                await self._lost(error, event)

    async def _refuse(self, error: TritoneError) -> NoReturn:
        """Tell an error that ends the session."""
        answer = await self._send_error(error, {})
        if (visit := VISIT.get()) is not None:
            visit.status = answer.status
        await self._socket.close(close_code(answer))
        raise _EndedError from error

    async def _finds_speech(self) -> bool:
        try:
            await self.speech.model("", "activity-streaming")
        except GatewayRefusal:
            if self.gateway.options.vad_model:
                raise
            return False
        return True

    async def _check(self, config: SessionConfig) -> ModelInfo:
        """Find out what the configuration asks for and is not there, before any audio comes; the model for streams."""
        model = await self.speech.live_model(config.model)
        self._asked(config, model)
        if config.final_model:
            await self.speech.model(config.final_model, "offline")
        return model

    def _session(self) -> dict[str, Any]:
        takes_language = bool(self._model.languages)
        return self._config.to_dict(
            self._dialect,
            self._id,
            has_vad=self._has_vad,
            has_turns=self.speech.turns is not None,
            takes_language=takes_language,
        )

    async def ask(self) -> Ask:
        return self._asked(self._config, self._model)

    def _asked(self, config: SessionConfig, model: ModelInfo) -> Ask:
        turns, vad = config.turn_detection, None
        judged = self.speech.turns if config.eagerness is not None else None
        if turns is not None and judged is not None:
            assert config.eagerness is not None
            judged = replace(judged, max_silence_s=MOST_SILENCE_S[config.eagerness])
            vad = VadOptions(prefix_s=turns.prefix_padding_ms / 1000)
        elif turns is not None and self._has_vad:
            silence_s = turns.silence_duration_ms / 1000
            parameters = {"threshold": max(LEAST_THRESHOLD, turns.threshold), "min_silence_s": silence_s}
            vad = VadOptions(parameters=parameters, prefix_s=turns.prefix_padding_ms / 1000)
        languages = language_parameters(model, config.language, config.allowed_languages)
        return Ask(
            model=config.model,
            search=languages | hotwords(config.keywords) | dict(config.search),
            texts=config.texts,
            vad=vad,
            turns=judged,
            final_model=config.final_model,
            final_search=config.final_search,
        )

    @property
    def _prefix_s(self) -> float:
        turns = self._config.turn_detection
        has_prefix = self._has_vad or (self._config.eagerness is not None and self.speech.turns is not None)
        return turns.prefix_padding_ms / 1000 if turns is not None and has_prefix else 0.0

    async def _send_late(self, live: Live) -> None:
        """Tell final texts of a second model when they are written, also while no audio comes."""
        with suppress(WebSocketDisconnect):
            while await live.late():
                async with self._sending:
                    if self.live is live:
                        await self.send_events(await live.news(), "audio")
        self._late = None

    async def _act(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if not isinstance(kind, str):
            raise FieldError("event", 'must be an object with a "type"')
        if kind == "input_audio_buffer.append":
            await self._append(event)
        elif kind == "input_audio_buffer.commit":
            await self._commit()
        elif kind == "input_audio_buffer.clear":
            await self.leave()
            self.audio = self._config.audio()
            self._pending_s = 0.0
            await self._send("input_audio_buffer.cleared")
        elif kind in UPDATES:
            await self._update(event, UPDATES[kind])
        elif kind.startswith(NOT_HERE):
            raise FieldError("type", f"is '{kind}'; this server transcribes, and has no conversations and responses")
        else:
            raise FieldError("type", f"is unknown: '{kind[:80]}'")

    async def _update(self, event: Mapping[str, Any], dialect: Dialect) -> None:
        if "session" not in event:
            raise FieldError("session", "is missing")
        config = self._config.updated(event["session"], dialect)
        try:
            model = await self._check(config)
        except TritoneError as error:  # what was before stays, and goes on
            await self._send_error(error, event)
            return
        self._dialect, self._model = dialect, model
        if config != self._config:
            # What was said so far belongs to the old configuration.
            await self.finish()
            if (config.encoding, config.rate) != (self._config.encoding, self._config.rate):
                self.audio = config.audio()
            self._config = config
        await self._send(UPDATED[dialect], session=self._session())

    async def _append(self, event: Mapping[str, Any]) -> None:
        await self.take_audio(read_audio(event.get("audio")))
        if self._config.final_model and self._late is None and self.live is not None:
            self._late = asyncio.create_task(self._send_late(self.live))

    async def recognise(self, samples: Samples) -> list[Event]:
        if self.live is None:
            try:
                await self.open()
            except TritoneError as error:
                await self._refuse(error)
            self._base_s = self._received_s
        audio_s = samples.size / self._config.rate
        self._received_s += audio_s
        self._pending_s += audio_s
        return await self.of_live(lambda live: live.accept(samples))

    async def _commit(self) -> None:
        if self._pending_s * 1000 < LEAST_COMMIT_MS or self.live is None:
            raise FieldError(
                "input_audio_buffer",
                f"has {self._pending_s * 1000:.0f} ms of audio since the last commit, {LEAST_COMMIT_MS} ms are needed",
            )
        self._pending_s = 0.0
        if self._manual:
            await self._commit_item(self._item(0))
            await self.finish()
        else:
            await self.commit()

    # The live stream.

    async def finish(self) -> None:
        """End the live stream and its items; the session goes on."""
        if self.live is None:
            return
        await self.send_events(await self.live.finish(), "finish")
        for item in list(self._items.values()):
            await self._complete(item, None)
        await self.leave()

    async def leave(self) -> None:
        late, self._late = self._late, None
        self._items.clear()
        if late is not None:
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
        await super().leave()

    async def _lost(self, error: TritoneError, event: Mapping[str, Any]) -> None:
        """Tell what became of items whose stream failed; the next audio opens another one."""
        if not self._items:
            await self._send_error(error, event)
        else:
            answer = error_object(answer_to(error))
            for item in self._items.values():
                await self._commit_item(item)
                await self._send(
                    "conversation.item.input_audio_transcription.failed", item_id=item.id, content_index=0, error=answer
                )
        self._pending_s = 0.0
        await self.leave()

    # Events of the live stream become those of items.

    async def send_events(self, events: Sequence[Event], after: After) -> None:
        for event in events:
            item = self._item(event.segment)
            if event.kind == "partial" and event.transcript is not None:
                text, settled = event.transcript.text, event.transcript.settled
                whole = joined(item.text, text)
                settled = None if settled is None else len(whole) - len(text) + settled
                await self._send_delta(item, item.deltas.partial(whole, settled))
            elif event.kind == "final":
                await self._final(item, event)
            elif self._manual:
                continue  # its items begin and end as the client commits
            elif event.kind == "speech_started":
                item.from_s = event.time_s
                ms = self._ms(event.time_s - self._prefix_s)
                await self._send("input_audio_buffer.speech_started", audio_start_ms=ms, item_id=item.id)
            elif event.kind == "speech_stopped":
                ms = self._ms(event.time_s)
                await self._send("input_audio_buffer.speech_stopped", audio_end_ms=ms, item_id=item.id)
                await self._commit_item(item)

    async def _final(self, item: _Item, event: Event) -> None:
        found = event.transcript
        assert found is not None
        item.text = joined(item.text, found.text)
        item.tokens += found.tokens
        if item.second_pass in ("", "done"):
            item.second_pass = event.second_pass
        if self._manual:
            await self._send_delta(item, item.deltas.partial(item.text))
        else:
            await self._complete(item, event)
            self._items.pop(event.segment, None)

    async def _complete(self, item: _Item, event: Event | None) -> None:
        await self._commit_item(item)
        await self._send_delta(item, item.deltas.final(item.text))
        fields: dict[str, Any] = {"logprobs": log_probs(item.tokens)} if self._config.logprobs else {}
        if item.second_pass:
            fields["second_pass"] = item.second_pass
        await self._send(
            "conversation.item.input_audio_transcription.completed",
            item_id=item.id,
            content_index=0,
            transcript=item.text,
            usage=usage(self._received_s - self._base_s if event is None else max(0.0, event.time_s - item.from_s)),
            **fields,
        )

    async def _commit_item(self, item: _Item) -> None:
        if item.committed:
            return
        item.committed = True
        self._pending_s = 0.0
        previous, self._previous = self._previous, item.id
        for kind, fields in item_events(item.id, previous, self._dialect):
            await self._send(kind, **fields)

    async def _send_delta(self, item: _Item, delta: str) -> None:
        if delta:
            await self._send(
                "conversation.item.input_audio_transcription.delta", item_id=item.id, content_index=0, delta=delta
            )

    # What is sent.

    def _item(self, segment: int) -> _Item:
        key = 0 if self._manual else segment
        if key not in self._items:
            self._items[key] = _Item(Deltas(early=self._config.delay in EARLY))
        return self._items[key]

    def _ms(self, time_s: float) -> int:
        return max(0, round(1000 * (self._base_s + time_s)))

    async def _send_error(self, error: BaseException, event: Mapping[str, Any]) -> ErrorAnswer:
        answer = answer_to(error)
        event_id = event.get("event_id")
        about = {"event_id": event_id if isinstance(event_id, str) else None}
        await self._send("error", error=error_object(answer) | about)
        return answer

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._socket.send_text(write_event(kind, fields))
