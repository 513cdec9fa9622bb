"""The Triton client for an event loop: one request or stream is one task.

async with AsyncClient("localhost:8001") as client:
    transcript = await client.transcribe("a.flac", details=True)
    async with await client.stream(sample_rate=48000) as stream:
        print((await stream.accept(samples)).text)
        print((await stream.finish()).text)
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.inputs import AudioInput, load_samples
from tritone.audio.spoken import Spoken, joined
from tritone.client.async_stream import AsyncActivityStream, AsyncClientStream, left
from tritone.client.async_transport import AsyncTransport, connect_async
from tritone.client.client import GOODBYE_S, Client
from tritone.client.defaults import DEFAULT_CHUNK_MS, DEFAULT_RETRIES, DEFAULT_TIMEOUT_S
from tritone.client.models import Kind, ModelInfo
from tritone.client.parameters import Parameter, Search, request_parameters
from tritone.client.replies import ActivityReply, EmbeddingReply, FramesReply, Reply, TextReply
from tritone.client.requests import Asked
from tritone.client.retries import Retries, with_attempts
from tritone.client.stream_steps import DEFAULT_RESUME_S
from tritone.client.transport import Call
from tritone.errors import TritoneError
from tritone.longform import OpenActivity
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from typing import Self

Answer = TypeVar("Answer")
Headers = Mapping[str, str]


class AsyncClient:
    """A connection to one Triton server, for tasks of one event loop. Close it, or use it in an `async with` statement.

    Args:
        url: and the other options, those of `Client`, except that there is no shared memory.

    Raises:
        ValueError: as of `Client`.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int = DEFAULT_RETRIES,
        pcm: bool | None = None,
        **options: Any,
    ) -> None:
        # Questions about models are rare and remembered: they may take a thread, and need no second copy of their code.
        self._client = Client(url, timeout_s=timeout_s, retries=retries, pcm=pcm, **options)
        self.endpoint = self._client.endpoint
        self.timeout_s = timeout_s
        self._retries = Retries(retries)
        self._opened: AsyncTransport | None = None
        self._known: dict[tuple[str | None, Kind | None], ModelInfo] = {}
        self._activities: dict[int, OpenActivity | None] = {}

    @property
    def _transport(self) -> AsyncTransport:
        if self._opened is None:  # in the loop that will use it, which need not run yet when the client is made
            self._opened = connect_async(self.endpoint)
        return self._opened

    async def models(self) -> list[ModelInfo]:
        """The ready models, by name. Raises as `Client.models`."""
        self._known.clear()
        self._activities.clear()
        return await asyncio.to_thread(self._client.models)

    async def model(self, name: str | None = None, *, kind: Kind | None = "offline") -> ModelInfo:
        """The ready model of that name, or the only ready one of that kind. Raises as `Client.model`."""
        if (name, kind) not in self._known:
            self._known[name, kind] = await asyncio.to_thread(self._client.model, name, kind=kind)
        return self._known[name, kind]

    async def is_ready(self, timeout_s: float) -> bool:
        """Whether the server says that it is ready; raises `RetryError` if it says nothing."""
        return await self._transport.is_ready(timeout_s)

    async def activity(self, sample_rate: int) -> OpenActivity | None:
        """What finds speech in long recordings of that rate, by a model of the server; None if it has none.

        The streams that it opens wait for the server: they are for other threads.
        """
        if self._activities.get(sample_rate) is None:  # one may be loaded any time
            self._activities[sample_rate] = await asyncio.to_thread(self._client._activity, None, sample_rate)
        return self._activities[sample_rate]

    def activity_streams(self, model: str, sample_rate: int) -> OpenActivity:
        """What opens streams on a model for voice activity; as of `activity`."""
        return lambda: self._client.detect_stream(model, sample_rate=sample_rate)

    async def transcribe(
        self,
        item: AudioInput | bytes,
        model: str | None = None,
        *,
        details: bool = False,
        search: Search | None = None,
        sample_rate: int | None = None,
        headers: Headers | None = None,
    ) -> Transcript:
        """Transcribe one recording: a path, the bytes of a file, or an array.

        Args:
            headers: sent with the request, such as those of a trace.

        The other arguments and what is raised are as of `Client.transcribe`, errors of the recording included.
        """
        info = await self.model(model, kind="offline")
        ask = Asked.of(info, details, search, self.endpoint)
        return await self._infer(item, info, TextReply(ask.details), ask.parameters, sample_rate, headers)

    async def embed(
        self,
        item: AudioInput | bytes,
        model: str | None = None,
        *,
        window_s: float | None = None,
        shift_s: float | None = None,
        sample_rate: int | None = None,
        headers: Headers | None = None,
    ) -> npt.NDArray[np.float32]:
        """Embed one recording: (dim,) float32. See `transcribe` and `Client.embed`."""
        info = await self.model(model, kind="embedding")
        parameters = request_parameters({"window_s": window_s, "shift_s": shift_s})
        info.check_windows(parameters, self.endpoint)
        return await self._infer(item, info, EmbeddingReply(), parameters, sample_rate, headers)

    async def detect(
        self,
        item: AudioInput | bytes,
        model: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        sample_rate: int | None = None,
        headers: Headers | None = None,
    ) -> SpeechActivity:
        """Find the speech in one recording. See `transcribe` and `Client.detect`."""
        info, reply = await self.model(model, kind="activity"), ActivityReply(probabilities)
        return await self._infer(item, info, reply, request_parameters(options), sample_rate, headers)

    async def diarize(
        self,
        item: AudioInput | bytes,
        model: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        sample_rate: int | None = None,
        headers: Headers | None = None,
    ) -> SpeechActivity:
        """Find who speaks when in one recording. See `transcribe` and `Client.diarize`."""
        info, reply = await self.model(model, kind="diarization"), ActivityReply(probabilities, speakers=True)
        return await self._infer(item, info, reply, request_parameters(options), sample_rate, headers)

    async def segment(
        self,
        item: AudioInput | bytes,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        headers: Headers | None = None,
    ) -> npt.NDArray[np.float32]:
        """Find who talks in the frames of one window, (frames, speakers). See `transcribe` and `Client.segment`."""
        info = await self.model(model, kind="segmentation")
        return await self._infer(item, info, FramesReply(), {}, sample_rate, headers)

    async def speak_iter(
        self,
        text: str,
        model: str | None = None,
        *,
        timeout_s: float | None = None,
        headers: Headers | None = None,
        **options: Any,
    ) -> AsyncGenerator[Spoken, None]:
        """Speak a text, and yield each sentence as soon as it has come. See `Client.speak`.

        Args:
            timeout_s: how long the whole text may take, in seconds; None is as of `Client.speak`.
        """
        call = self._client._speech(await self.model(model, kind="synthesis"), text, options)
        call = replace(call, timeout_s=timeout_s or call.timeout_s, more_headers=headers or {})
        async with aclosing(self._transport.answers(call)) as answers:
            async for answer in answers:
                yield answer

    async def speak(
        self, text: str, model: str | None = None, *, headers: Headers | None = None, **options: Any
    ) -> Spoken:
        """Speak a text, as a whole. See `Client.speak`."""
        async with aclosing(self.speak_iter(text, model, headers=headers, **options)) as parts:
            return joined([part async for part in parts])

    async def infer(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        model: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        classes: int = 0,
        headers: Headers | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Ask any model once, with arrays of one row by the names of its inputs. See `Client.infer`."""
        call = self._client._call(await self.model(model, kind=None), inputs, parameters, outputs, classes)
        return await self._answer(replace(call, more_headers=headers or {}))

    async def infer_stream(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        model: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        headers: Headers | None = None,
    ) -> AsyncGenerator[dict[str, npt.NDArray[Any]], None]:
        """Send one request, and yield each answer as it comes. See `Client.infer_stream`."""
        call = self._client._call(await self.model(model, kind=None), inputs, parameters, outputs)
        async with aclosing(self._transport.answers(replace(call, more_headers=headers or {}))) as answers:
            async for answer in answers:
                yield answer

    async def stream(
        self,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        details: bool = False,
        chunk_ms: float = DEFAULT_CHUNK_MS,
        search: Search | None = None,
        resume: bool = False,
        resume_s: float = DEFAULT_RESUME_S,
        headers: Headers | None = None,
    ) -> AsyncClientStream:
        """Open a stream on a streaming model; arguments and errors are those of `Client.stream`."""
        info = await self.model(model, kind="streaming")
        ask = Asked.of(info, details, search, self.endpoint)
        return AsyncClientStream(
            self._transport,
            info,
            details=ask.details,
            parameters=ask.parameters,
            **self._client.stream_options(info, sample_rate, chunk_ms, resume_s if resume else None),
            headers=headers,
        )

    async def detect_stream(
        self,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        chunk_ms: float = DEFAULT_CHUNK_MS,
        resume: bool = False,
        resume_s: float = DEFAULT_RESUME_S,
        headers: Headers | None = None,
    ) -> AsyncActivityStream:
        """Open a stream on a streaming model for voice activity; see `Client.detect_stream`."""
        info = await self.model(model, kind="activity-streaming")
        return AsyncActivityStream(
            self._transport,
            info,
            probabilities=probabilities,
            parameters=request_parameters(options),
            **self._client.stream_options(info, sample_rate, chunk_ms, resume_s if resume else None),
            headers=headers,
        )

    async def diarize_stream(
        self,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        chunk_ms: float = DEFAULT_CHUNK_MS,
        resume: bool = False,
        resume_s: float = DEFAULT_RESUME_S,
        headers: Headers | None = None,
    ) -> AsyncActivityStream:
        """Open a stream on a streaming model that tells speakers apart; see `Client.diarize_stream`."""
        info = await self.model(model, kind="diarization-streaming")
        return AsyncActivityStream(
            self._transport,
            info,
            probabilities=probabilities,
            speakers=True,
            parameters=request_parameters(options),
            **self._client.stream_options(info, sample_rate, chunk_ms, resume_s if resume else None),
            headers=headers,
        )

    async def _infer(
        self,
        item: AudioInput | bytes,
        info: ModelInfo,
        reply: Reply[Answer],
        parameters: Mapping[str, Parameter],
        sample_rate: int | None,
        headers: Headers | None,
    ) -> Answer:
        pcm = self._client.pcm_of(info)
        # Decoding and resampling leave the loop to others.
        samples = await asyncio.to_thread(load_samples, item, sample_rate, info.sample_rate, pcm=pcm)
        call = Call(
            model=info.name,
            tensors=info.audio_tensors(samples),
            timeout_s=self.timeout_s,
            reply=reply,
            parameters=parameters,
            more_headers=headers or {},
        )
        return await self._answer(call)

    async def _answer(self, call: Call[Answer]) -> Answer:
        """The answer to a request, which is sent again where nothing was lost."""
        deadline, attempts = time.monotonic() + self.timeout_s, 0
        while True:
            attempts += 1
            try:
                return await self._transport.infer(call)
            except TritoneError as error:
                wait_s = self._retries.wait_s(error, attempts, deadline)
                if wait_s is None:
                    raise with_attempts(error, attempts) from error.__cause__
                await asyncio.sleep(wait_s)
                call = replace(call, timeout_s=max(0.001, deadline - time.monotonic()))

    async def close(self) -> None:
        """Tell the server of the streams that were left, then close the connection. Closing twice is fine."""
        if self._opened is not None:
            await left(GOODBYE_S)
            await self._opened.close()
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
