"""The gateway's own WebSocket: audio in, partial and final texts out.

docs/applications/gateway-websocket.md has it for clients.


{"type": "start", "sample_rate": 16000}  audio  ...  {"type": "end"}
    ->  {"type": "ready"}  {"type": "partial", "text": "one two", ...}  ...  {"type": "final", ...}  {"type": "end"}
"""

from contextlib import closing
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute

from tritone.audio.live import LiveAudio, live_audio
from tritone.errors import InputError
from tritone.gateway.ask import Event
from tritone.gateway.live import Live
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import Socket, conversations, read_json
from tritone.gateway.stream_options import Start, read_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tritone.gateway.gateway import Gateway

PROTOCOL = "stream"


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
