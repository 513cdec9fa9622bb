"""A stream at the Realtime API of an upstream, OpenAI's or vLLM's, as the recogniser of a live stream.

    accept(samples), accept(samples), ..., finish()  ->  the text so far, the text of all

OpenAI's API makes an item of the audio between two commits, or of each turn that its own voice activity finds; vLLM's
begins to write at a commit and ends at one that is final, or where its model's context is full: then what follows is
another item. Neither gives times. Nothing is sent again.
"""

import asyncio
import base64
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException
from websockets.frames import Frame

from tritone.audio.inputs import StreamResampler, narrow
from tritone.audio.waveform import Samples
from tritone.client.models import ModelInfo
from tritone.errors import (
    InputError,
    OperatorError,
    ServerAnswerError,
    ServerTimeoutError,
    StreamLostError,
    TritoneError,
)
from tritone.gateway.upstreams.answers import MAX_CHARS, code_of, read_object
from tritone.gateway.upstreams.upstream import Upstream
from tritone.transcript import Transcript

MAX_MESSAGE_BYTES = 1 << 20
MAX_UNSENT_BYTES = 1 << 20  # what we send is waited for: more are answers to pings, which nobody reads
BURST, A_SECOND = 10_000, 100  # frames, or KB of them, that a connection may bring at once, and as it goes on
MAX_FRAGMENTS = 10_000  # of a connection; a server that writes as much as an event at once sends none
PART_BYTES = 4096  # of what was read at once; thousands of frames may be in it
MAX_ITEMS = 20_000
MAX_MS = 1 << 31  # of a stream
CHUNK_S = 1.0  # audio of a message
CLOSE_S = 2.0
LAST_COMMIT, EMPTY = "last_commit", "input_audio_buffer_commit_empty"
OF_ITEMS = "conversation.item.input_audio_transcription."
FIELDS = {"language", "prompt"}
QUIET = logging.Logger("quiet", logging.CRITICAL + 1)  # websockets' own would have the headers, and so the key


class _Connect(connect):
    """A connection that goes to the given address alone, so that the server's key does."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _Socket(ClientConnection):
    """A connection that ends when more comes than anybody has to say. `has_flooded`: that it did."""

    has_flooded = False
    _units, _fragments, _began = 0.0, 0, 0.0

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PART_BYTES):
            if not self.has_flooded:
                super().data_received(data[start : start + PART_BYTES])

    def process_event(self, event: Any) -> None:
        super().process_event(event)
        self._began = self._began or time.monotonic()
        if isinstance(event, Frame):
            self._units += 1 + len(event.data) / 1024
            self._fragments += not event.fin
        if (
            self._units > BURST + A_SECOND * (time.monotonic() - self._began)
            or self._fragments > MAX_FRAGMENTS
            or self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES
        ):
            self.has_flooded = True
            self.transport.abort()


@dataclass
class _Item:
    """A stretch of audio that becomes one text. `end_s`: where it ends in the stream, 0 where nobody says it."""

    texts: list[str] = field(default_factory=list)
    done: bool = False
    end_s: float = 0.0

    @property
    def text(self) -> str:
        self.texts = ["".join(self.texts)]
        return self.texts[0]


class RealtimeStream:
    """One leg of a live stream; its methods are those of `AsyncClientStream`, awaited one after the other.

    Args:
        sample_rate: of the audio that will come, in Hz.
        search: `language` and `prompt`, which OpenAI's sessions take.
        turns: whether the server's voice activity divides the audio, where it has one.
        headers: of the caller's trace and id.

    Raises:
        InputError: the server has no meaning for what is asked.
    """

    def __init__(
        self,
        upstream: Upstream,
        model: ModelInfo,
        sample_rate: int,
        search: Mapping[str, Any],
        *,
        turns: bool,
        headers: Mapping[str, str],
    ) -> None:
        known = FIELDS if upstream.options.realtime == "openai" else set()
        if unknown := sorted(set(search) - known):
            raise InputError(f"streams of model '{model.name}' take no {', '.join(unknown)}; its server is of others")
        self.model = model
        self._upstream = upstream
        self._search = search
        self._turns = turns and upstream.options.realtime == "openai"
        self._headers = headers
        self._rate, self._sample_rate = upstream.options.audio_rate, sample_rate
        self._resampler = StreamResampler(sample_rate, self._rate)
        self._received = 0  # samples at `sample_rate`
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # something came
        self._items: dict[str, _Item] = {}  # in their order
        self._taken = 0  # of them, that were returned as ended
        self._num_chars = 0
        self._committed = False  # the server has taken, or refused as empty, what was committed at the end
        self._confirmed = 0  # updates of the session that the server confirmed
        self._error: TritoneError | None = None
        self._holds = False  # one of the upstream's streams
        self._idle = True  # whether vLLM has ended its text, or has not started one
        self._num_texts = 0  # that it has ended

    async def accept(self, samples: Samples) -> Transcript:
        """Send audio and return the text that came by now, without waiting for any.

        Raises:
            AudioError: the samples are no audio.
            TritoneError: the server failed, which ends the stream.
        """
        self._received += samples.size
        await self._send_audio(self._resampler.push(samples))
        return self._so_far()

    async def finish(self) -> Transcript:
        """Send what is left and return the text of all, when the server has written it. Raises as `accept`."""
        await self._send_audio(self._resampler.flush())
        if self._socket is None:
            return Transcript(text="")
        deadline = time.monotonic() + self._upstream.options.timeout_s
        own = self._upstream.options.realtime
        how: dict[str, Any] = {"final": True} if own == "vllm" else {"event_id": LAST_COMMIT}
        if own != "vllm" or not self._idle:
            await self._send({"type": "input_audio_buffer.commit", **how})
        if self._turns:
            # A turn may have ended meanwhile. What the server says of it comes before its answer to this.
            await self._send(self._session())
        await self._until(self._is_over, deadline)
        found = self._so_far()
        self._upstream.circuit.succeeded()
        await self.close()
        last = found.ended[-1] if found.ended else Transcript(text="")
        return replace(last, ended=found.ended[:-1], is_final=True, audio_s=self._received / self._sample_rate)

    async def close(self) -> None:
        """Close the connection; the second call does nothing."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        socket, self._socket = self._socket, None
        if self._holds:
            self._holds = False
            self._upstream.leave_stream(None if socket is None else _closed(socket))

    def _so_far(self) -> Transcript:
        """The text of the item under way, and those that ended since the last one was returned."""
        if self._error is not None:
            raise self._error
        audio_s = self._received / self._sample_rate
        items, ended = list(self._items.values()), []
        while self._taken < len(items) and items[self._taken].done:
            item = items[self._taken]
            self._taken += 1
            if item.text:
                ended.append(Transcript(text=item.text, audio_s=min(item.end_s or audio_s, audio_s)))
        text = " ".join(each.text.strip() for each in items[self._taken :] if each.text.strip())
        if items[self._taken :] or not self._idle:  # of which nobody knows how far they are written
            audio_s = max((each.end_s for each in items[: self._taken]), default=0.0)
        return Transcript(text=text, audio_s=audio_s, is_final=False, ended=tuple(ended))

    def _is_over(self) -> bool:
        if self._upstream.options.realtime == "vllm":
            return self._idle
        confirmed = self._confirmed > 1 or not self._turns
        return self._committed and confirmed and all(each.done for each in self._items.values())

    async def _send_audio(self, samples: Samples) -> None:
        pcm = narrow(samples, self._rate, pcm=True).astype("<i2", copy=False)
        step = round(CHUNK_S * self._rate)
        for start in range(0, pcm.size, step):
            if self._error is not None:
                raise self._error
            if self._socket is None:
                await self._open()
            if self._idle and self._upstream.options.realtime == "vllm":
                self._idle = False
                await self._send({"type": "input_audio_buffer.commit"})  # from now on it writes what it hears
            audio = base64.b64encode(pcm[start : start + step].tobytes()).decode("ascii")
            await self._send({"type": "input_audio_buffer.append", "audio": audio})

    async def _open(self) -> None:
        """Connect, which may be tried again: nothing was sent yet."""
        self._upstream.hold_stream()
        self._holds = True
        try:
            self._socket = await self._upstream.guarded(self._connected, settles=False)
            self._reading = asyncio.create_task(self._read(self._socket))
            await self._send(self._session())
        except BaseException as error:
            if isinstance(error, TritoneError):
                self._error = error  # another connection would have a part of the audio
            await self.close()
            raise

    async def _connected(self, timeout_s: float) -> ClientConnection:
        upstream = self._upstream
        url = f"ws{upstream.options.url.rstrip('/').removeprefix('http')}/realtime"
        if upstream.options.realtime == "openai":
            url += "?intent=transcription"
        try:
            return await _Connect(
                url,
                additional_headers=upstream.headers(self._headers),
                ssl=upstream.tls,
                open_timeout=timeout_s,
                close_timeout=CLOSE_S,
                max_size=MAX_MESSAGE_BYTES,
                compression=None,
                proxy=None,
                logger=QUIET,
                create_connection=_Socket,
            )
        except InvalidStatus as error:
            answer = error.response
            headers = {name.lower(): value for name, value in answer.headers.raw_items()}
            raise upstream.refusal(answer.status_code, headers, answer.body or b"") from None
        except InvalidHandshake as error:
            raise ServerAnswerError(f"it speaks no WebSocket: {upstream.clean(str(error))}") from None
        except OSError as error:
            raise upstream.explain(error, timeout_s) from error

    def _session(self) -> dict[str, Any]:
        """The event that says what is wanted."""
        if self._upstream.options.realtime == "vllm":
            return {"type": "session.update", "model": self._upstream.model}
        asked = {name: str(value) for name, value in self._search.items() if value not in ("", None)}
        input_format = {
            "format": {"type": "audio/pcm", "rate": self._rate},
            "transcription": {"model": self._upstream.model, **asked},
            "turn_detection": {"type": "server_vad"} if self._turns else None,
        }
        return {"type": "session.update", "session": {"type": "transcription", "audio": {"input": input_format}}}

    async def _send(self, event: Mapping[str, Any]) -> None:
        if self._error is not None:
            raise self._error
        if self._socket is None:
            raise StreamLostError(f"upstream '{self._upstream.options.name}': this stream is over")
        try:
            async with asyncio.timeout(self._upstream.options.timeout_s):
                await self._socket.send(json.dumps(event))
        except ConnectionClosed as error:
            await self._until(lambda: False, time.monotonic() + CLOSE_S)  # why, its reader finds in what came
            raise AssertionError from error
        except TimeoutError as error:
            raise self._failed(ServerTimeoutError("it does not read what it is sent")) from error

    async def _until(self, over: Callable[[], bool], deadline: float) -> None:
        """Wait until something is so; raises what ended the stream, or that it takes too long."""
        limit_s = self._upstream.options.timeout_s
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                while self._error is None and not over():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            raise self._failed(ServerTimeoutError(f"no text within {limit_s:.3g} s of the end")) from error
        if self._error is not None:
            raise self._error

    async def _read(self, socket: ClientConnection) -> None:
        """Take what the server sends until the connection ends."""
        try:
            async for message in socket:
                self._take(read_object(message))
                self._news.set()
            self._failed(StreamLostError("it closed the connection"))
        except ConnectionClosed as error:
            if isinstance(socket, _Socket) and socket.has_flooded:
                self._failed(ServerAnswerError(f"it sends more than {A_SECOND} events a second, or reads no pongs"))
            code = error.rcvd.code if error.rcvd else error.sent.code if error.sent else "broken"
            self._failed(StreamLostError(f"it closed the connection ({code})"))
        except TritoneError as error:
            self._failed(error)
        finally:
            self._news.set()

    def _failed(self, error: TritoneError) -> TritoneError:
        """The error that ends the stream: the first one."""
        if self._error is None:
            self._error = self._upstream.failed(error)
        return self._error

    def _take(self, event: Mapping[str, Any]) -> None:
        """Take an event; those that say nothing about texts are left out."""
        kind, own = event.get("type"), self._upstream.options.realtime
        if kind == "error":
            self._take_error(event.get("error"), event.get("code"))
        elif own == "vllm":
            if kind == "transcription.delta":
                self._item(str(self._num_texts)).texts.append(self._text(event, "delta"))
            elif kind == "transcription.done":
                item = self._item(str(self._num_texts))
                item.texts, item.done = [self._text(event, "text").strip()], True
                self._idle, self._num_texts = True, self._num_texts + 1
        elif kind == f"{OF_ITEMS}delta":
            item = self._item(event.get("item_id"))
            item.texts.append("" if item.done else self._text(event, "delta"))
        elif kind == f"{OF_ITEMS}completed":
            item = self._item(event.get("item_id"))
            item.texts, item.done = [self._text(event, "transcript").strip()], True
        elif kind == f"{OF_ITEMS}failed":
            self._take_error(event.get("error"))
        elif kind == "input_audio_buffer.committed":
            self._item(event.get("item_id"))
            self._committed = True
        elif kind == "input_audio_buffer.speech_started":
            self._item(event.get("item_id"))  # of which a text will come
        elif kind == "input_audio_buffer.speech_stopped":
            end_ms = event.get("audio_end_ms")
            if isinstance(end_ms, int) and 0 < end_ms < MAX_MS:
                self._item(event.get("item_id")).end_s = end_ms / 1000
        elif kind == "session.updated":
            self._confirmed += 1

    def _take_error(self, error: object, code: object = None) -> None:
        """Take OpenAI's object of an error, or vLLM's text and code."""
        fields = error if isinstance(error, Mapping) else {"message": error, "code": code}
        if fields.get("event_id") == LAST_COMMIT or fields.get("code") == EMPTY:
            self._committed = True  # there was no audio since the last turn
            return
        message = fields.get("message")
        text = self._upstream.clean(message, code_of(fields)) if isinstance(message, str) else "no message"
        if fields.get("code") == "model_not_found":
            raise OperatorError(f"it does not know the model, check model of the upstream: {text}")
        if fields.get("type") == "invalid_request_error":
            raise InputError(f"model '{self.model.name}': {text}")
        raise StreamLostError(f"it failed: {text}")

    def _item(self, name: object) -> _Item:
        if not isinstance(name, str):
            raise ServerAnswerError("an event of its Realtime API has no item_id")
        if len(self._items) >= MAX_ITEMS:
            raise ServerAnswerError(f"it made more than {MAX_ITEMS} items of a stream")
        return self._items.setdefault(name, _Item())

    def _text(self, event: Mapping[str, Any], name: str) -> str:
        text = event.get(name)
        if not isinstance(text, str):
            raise ServerAnswerError(f"an event of its Realtime API has no text as {name}")
        self._num_chars += len(text)
        if self._num_chars > MAX_CHARS:
            raise ServerAnswerError(f"it wrote more than {MAX_CHARS} characters of a stream")
        return text


async def _closed(socket: ClientConnection) -> None:
    """Say goodbye, and end the connection though the server does not read it, or does not answer."""
    with suppress(OSError, WebSocketException, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
    socket.transport.abort()
    await socket.wait_closed()
