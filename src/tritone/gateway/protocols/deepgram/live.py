"""Deepgram's live protocol: audio in, partial and final results out, at `/v1/listen`.

audio  ...  {"type": "Finalize"}  {"type": "KeepAlive"}  {"type": "CloseStream"}
    ->  {"type": "Results", "is_final": false, ...}  ...  {"type": "Metadata", ...}
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritone.errors import InputError
from tritone.gateway.announced_audio import StreamAudio
from tritone.gateway.ask import Ask, Event
from tritone.gateway.conversation import After, SocketConversation
from tritone.gateway.protocols.deepgram.answers import Numbers, alternatives, metadata, model_info
from tritone.gateway.protocols.deepgram.request import CLOSE, PROTOCOL, ListenRequest
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import read_json
from tritone.gateway.visit import visit_id
from tritone.transcript import Transcript

CHANNEL = [0, 1]  # the first of one


class ListenConversation(SocketConversation):
    """One conversation, and what was sent of its stream."""

    protocol, path = PROTOCOL, "/v1/listen"

    @staticmethod
    def complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
        return {"type": "Error", "variant": answer.code, "description": answer.message}

    async def begin(self) -> None:
        wanted = self._wanted = ListenRequest.read(self.socket.items)
        if wanted.multichannel and wanted.audio.channels > 1:
            raise InputError("multichannel: the channels of a stream are averaged; send each as a stream of its own")
        info = await self.speech.live_model(wanted.model)
        self._ask = wanted.ask(info, has_vad=bool(self.gateway.options.vad_model), turns=self.speech.turns)
        self.audio = StreamAudio(wanted.audio)
        self._sha256 = hashlib.sha256()
        self._id = visit_id()
        self._numbers = Numbers()
        self._begin_s = 0.0  # of the segment under way
        self._last_word_s: float | None = None  # where the last final word ends; None once its end is announced

    async def ask(self) -> Ask:
        return self._ask

    async def take(self, message: str | bytes) -> None:
        await super().take(message if message != b"" else CLOSE)

    async def take_audio(self, data: bytes) -> None:
        self._sha256.update(data)
        await super().take_audio(data)

    async def command(self, text: str) -> None:
        match read_json(text).get("type"):
            case "CloseStream":
                await self.finish()
            case "Finalize":
                await self.commit()
            case "KeepAlive":
                pass
            case _:
                raise InputError(
                    f'expected audio, or {{"type": "Finalize"}}, "KeepAlive" or "CloseStream"; got {text[:80]!r}'
                )

    @property
    def _model(self) -> str:
        return self._ask.model if self.live is None else self.live.model

    def messages(self, events: Sequence[Event], after: After) -> Iterator[Mapping[str, Any]]:
        for event in events:
            if event.kind == "speech_started" and self._wanted.vad_events:
                yield {"type": "SpeechStarted", "channel": CHANNEL, "timestamp": round(event.time_s, 3)}
            final = event.kind == "final"
            if final and event.transcript is not None and event.transcript.text:
                self._last_word_s = event.transcript.words[-1].end_s if event.transcript.words else event.time_s
            if event.transcript is not None and (final or self._wanted.interim_results):
                yield self._results(event, event.transcript, after, final=final)
        yield from self._ended()
        if after == "finish":
            duration_s = 0.0 if self.live is None else self.live.received_s
            sha256 = self._sha256.hexdigest()
            about = metadata(self._wanted, request_id=self._id, sha256=sha256, duration_s=duration_s, model=self._model)
            yield {"type": "Metadata", **about}

    def _results(self, event: Event, found: Transcript, after: After, *, final: bool) -> Mapping[str, Any]:
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
            "speech_final": final and after == "audio",
            "from_finalize": final and after == "commit",
            "channel": {"alternatives": alternatives(found, self._wanted, self._numbers)},
            "metadata": {"request_id": self._id, "model_info": model_info(self._model), "model_uuid": self._model},
        }

    def _ended(self) -> Iterator[Mapping[str, Any]]:
        """The end of an utterance: nobody speaks for as long as the client said, and its text is final."""
        wait_ms, last_s = self._wanted.utterance_end_ms, self._last_word_s
        if wait_ms and last_s is not None and self.live is not None and self.live.silent_s >= wait_ms / 1000:
            self._last_word_s = None
            yield {"type": "UtteranceEnd", "channel": CHANNEL, "last_word_end": round(last_s, 3)}


routes = ListenConversation.routes
