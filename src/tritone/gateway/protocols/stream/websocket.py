"""The gateway's own WebSocket: audio in, partial and final texts out.

docs/applications/gateway-websocket.md has it for clients.


{"type": "start", "sample_rate": 16000}  audio  ...  {"type": "end"}
    ->  {"type": "ready"}  {"type": "partial", "text": "one two", ...}  ...  {"type": "final", ...}  {"type": "end"}
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritone.audio.live import live_audio
from tritone.errors import InputError
from tritone.gateway.ask import Ask, Event
from tritone.gateway.conversation import After, SocketConversation
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import read_json
from tritone.gateway.stream_options import read_start


class StreamConversation(SocketConversation):
    """One conversation, whose first message has the options; whoever sends audio at once gave all in the address."""

    protocol, path = "stream", "/v1/stream"

    @staticmethod
    def complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
        later = {} if answer.retry_after_s is None else {"retry_after_s": answer.retry_after_s}
        return {"type": "error", "code": answer.code, "message": answer.message, **later}

    async def begin(self) -> None:
        message = await self.receive()
        start = self._start = read_start(read_json(message) if isinstance(message, str) else {}, self.socket.query)
        self._ask = start.ask(await self.speech.live_model(start.model))
        self.audio = live_audio(start.format, start.sample_rate)
        ready = {"model": (await self.open()).model, "format": start.format, "sample_rate": self.audio.rate}
        await self.socket.send({"type": "ready", **ready})
        if isinstance(message, bytes):
            await self.take_audio(message)

    async def ask(self) -> Ask:
        return self._ask

    async def command(self, text: str) -> None:
        match read_json(text).get("type"):
            case "commit":
                await self.commit()
            case "end":
                await self.finish()
            case _:
                raise InputError(f'expected audio, {{"type": "commit"}} or {{"type": "end"}}, got {text[:80]!r}')

    def messages(self, events: Sequence[Event], after: After) -> Iterator[Mapping[str, Any]]:
        for event in events:
            if event.kind != "partial" or self._start.partials:
                yield as_message(event, words=self._start.words)
        if after == "finish" and self.live is not None:
            yield {"type": "end", "audio_s": round(self.live.received_s, 3)}


routes = StreamConversation.routes


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
