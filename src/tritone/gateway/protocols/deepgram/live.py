"""Deepgram's live protocol: audio in, partial and final results out, at `/v1/listen`.

audio  ...  {"type": "Finalize"}  {"type": "KeepAlive"}  {"type": "CloseStream"}
    ->  {"type": "Results", "is_final": false, ...}  ...  {"type": "Metadata", ...}
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute

from tritone.audio.waveform import Samples
from tritone.errors import InputError
from tritone.gateway.announced_audio import StreamAudio
from tritone.gateway.ask import Ask, Event
from tritone.gateway.live import Live
from tritone.gateway.protocols.deepgram.answers import Numbers, alternatives, metadata, model_info
from tritone.gateway.protocols.deepgram.request import PROTOCOL, ListenRequest
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import Socket, conversations, read_json
from tritone.gateway.visit import visit_id
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

CHANNEL = [0, 1]  # the first of one


def live_routes(gateway: "Gateway") -> list[BaseRoute]:
    """The route of the WebSocket."""
    return [conversations(gateway, "/v1/listen", PROTOCOL, _talk, _complaint)]


def _complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
    return {"type": "Error", "variant": answer.code, "description": answer.message}


async def _talk(gateway: "Gateway", socket: Socket) -> None:
    wanted = ListenRequest.read(socket.items)
    if wanted.multichannel and wanted.audio.channels > 1:
        raise InputError("multichannel: the channels of a stream are averaged; send each as a stream of its own")
    info = await gateway.speech.live_model(wanted.model)
    ask = wanted.ask(info, has_vad=bool(gateway.options.vad_model), turns=gateway.speech.turns)
    async with AsyncExitStack() as stack:
        audio = await stack.enter_async_context(StreamAudio(wanted.audio))
        stream = _Stream(gateway, socket, wanted, ask, stack)
        while True:
            message = await socket.receive()
            if isinstance(message, bytes) and message:
                stream.sha256.update(message)
                await stream.take(await audio.push(message), audio.sample_rate)
                continue
            kind = read_json(message).get("type") if isinstance(message, str) else "CloseStream"
            if kind == "CloseStream":
                await stream.take(await audio.finish() if stream.started else None, audio.sample_rate)
                await stream.finish()
                return
            if kind == "Finalize":
                await stream.finalize()
            elif kind != "KeepAlive":
                raise InputError(
                    f'expected audio, or {{"type": "Finalize"}}, "KeepAlive" or "CloseStream"; got {message[:80]!r}'
                )


class _Stream:
    """One live stream and what was sent of it. `started`: whether any audio came."""

    def __init__(
        self, gateway: "Gateway", socket: Socket, wanted: ListenRequest, ask: Ask, stack: AsyncExitStack
    ) -> None:
        self._gateway = gateway
        self._socket = socket
        self._wanted = wanted
        self._ask = ask
        self._stack = stack
        self._live: Live | None = None
        self._id = visit_id()
        self._numbers = Numbers()
        self._begin_s = 0.0  # of the segment under way
        self._last_word_s: float | None = None  # where the last final word ends; None once its end is announced
        self.sha256 = hashlib.sha256()

    @property
    def started(self) -> bool:
        return self._live is not None

    async def take(self, samples: Samples | None, sample_rate: int) -> None:
        """Recognise samples and send what comes of them."""
        if samples is None or not samples.size:
            return
        if self._live is None:
            opened = await self._gateway.speech.open(self._ask, sample_rate, self._socket.caller)
            self._live = await self._stack.enter_async_context(opened)
        await self._send(await self._live.accept(samples))

    async def finalize(self) -> None:
        """Write what was heard by now; the stream goes on."""
        if self._live is not None:
            await self._send(await self._live.commit(), asked=True)

    async def finish(self) -> None:
        """Send the rest, and what is known of the stream."""
        duration_s = 0.0
        if self._live is not None:
            await self._send(await self._live.finish(), asked=True, ending=True)
            duration_s = self._live.received_s
        about = metadata(
            self._wanted,
            request_id=self._id,
            sha256=self.sha256.hexdigest(),
            duration_s=duration_s,
            model=self._model,
        )
        await self._socket.send({"type": "Metadata", **about})

    @property
    def _model(self) -> str:
        return self._ask.model if self._live is None else self._live.model

    async def _send(self, events: Sequence[Event], *, asked: bool = False, ending: bool = False) -> None:
        for event in events:
            for message in self._messages(event, asked=asked, ending=ending):
                await self._socket.send(message)
        if (ended := self._ended()) is not None:
            await self._socket.send(ended)

    def _messages(self, event: Event, *, asked: bool, ending: bool) -> Iterator[Mapping[str, Any]]:
        if event.kind == "speech_started" and self._wanted.vad_events:
            yield {"type": "SpeechStarted", "channel": CHANNEL, "timestamp": round(event.time_s, 3)}
        if event.transcript is None:
            return
        final = event.kind == "final"
        if final and event.transcript.text:
            self._last_word_s = event.transcript.words[-1].end_s if event.transcript.words else event.time_s
        if final or self._wanted.interim_results:
            yield self._results(event, event.transcript, final=final, asked=asked, ending=ending)

    def _results(self, event: Event, found: Transcript, *, final: bool, asked: bool, ending: bool) -> Mapping[str, Any]:
        # Words lie within, though speech may begin and end by voice activity, which words do not.
        start_s = min([self._begin_s, *(each.start_s for each in found.words)])
        end_s = max([start_s, event.time_s, *(each.end_s for each in found.words)])
        if final:
            self._begin_s = end_s
        return {
            "type": "Results",
            "channel_index": CHANNEL,
            "start": round(start_s, 3),
            "duration": round(end_s - start_s, 3),
            "is_final": final,
            "speech_final": final and not asked,
            "from_finalize": final and asked and not ending,
            "channel": {"alternatives": alternatives(found, self._wanted, self._numbers)},
            "metadata": {"request_id": self._id, "model_info": model_info(self._model), "model_uuid": self._model},
        }

    def _ended(self) -> Mapping[str, Any] | None:
        """The end of an utterance: nobody speaks for as long as the client said, and its text is final."""
        wait_ms, last_s, live = self._wanted.utterance_end_ms, self._last_word_s, self._live
        if not wait_ms or last_s is None or live is None or live.silent_s < wait_ms / 1000:
            return None
        self._last_word_s = None
        return {"type": "UtteranceEnd", "channel": CHANNEL, "last_word_end": round(last_s, 3)}
