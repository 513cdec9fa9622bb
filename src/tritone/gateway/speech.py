"""What every protocol asks of Triton, in the event loop: models, whole recordings and live streams.

transcript = await speech.transcribe(data, Ask(), caller)
async with await speech.open(Ask(), 48000, caller) as live:
    events = await live.accept(samples)
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.files import StoredAudio, Upload, channels_of, check_sample_rate
from tritone.audio.waveform import Samples
from tritone.client.async_client import AsyncClient
from tritone.client.async_stream import AsyncActivityStream, AsyncClientStream
from tritone.client.models import Kind, ModelInfo, choose
from tritone.diarization.channels import merged_channels
from tritone.errors import AudioError, InputError
from tritone.gateway.ask import Ask, Event, SecondPassOutcome, SpeakerOptions, TurnOptions, VadOptions, search_of
from tritone.gateway.callers import Caller
from tritone.gateway.live import Live
from tritone.gateway.metrics import Metrics
from tritone.gateway.options import GatewayOptions
from tritone.gateway.recording import Recording
from tritone.gateway.refusal import GatewayRefusal, absent
from tritone.gateway.saying import Voices
from tritone.gateway.speakers import labelled
from tritone.gateway.upstreams.realtime import RealtimeStream
from tritone.gateway.upstreams.upstream import Upstream
from tritone.gateway.visit import VISIT
from tritone.gateway.whole import WholeStream
from tritone.longform import OpenActivity
from tritone.net.limits import GatewayLimits
from tritone.texts import TextOptions, tidy
from tritone.transcript import Transcript

__all__ = ["Ask", "Event", "Live", "SpeakerOptions", "Speech", "VadOptions"]


class Speech:
    """One Triton, and models of other servers beside it, as the protocols use them; one per process."""

    def __init__(self, client: AsyncClient, options: GatewayOptions, metrics: Metrics) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self._lives: set[Live] = set()
        self.upstreams = {each.name: Upstream(each, metrics) for each in options.upstreams}
        """By the names of their models for clients."""
        self._elsewhere = {
            (info.name, info.kind): (upstream, info) for upstream in self.upstreams.values() for info in upstream.infos
        }
        self.voices = Voices(client, options, self.count_audio)
        """Who speaks texts."""

    @property
    def limits(self) -> GatewayLimits:
        return self._options.limits

    @property
    def open_streams(self) -> int:
        return len(self._lives)

    async def models(self) -> list[ModelInfo]:
        """The models that transcribe recordings or streams, by name."""
        return [each for each in await self.all_models() if each.kind in ("offline", "streaming")]

    async def all_models(self) -> list[ModelInfo]:
        """The ready models of Triton, and those of upstreams, which stand for models of Triton with their names."""
        elsewhere = [info for _, info in self._elsewhere.values()]
        names = {info.name for info in elsewhere}
        found = [each for each in await self._client.models() if each.name not in names] + elsewhere
        return sorted(found, key=lambda each: each.name)

    async def model(self, name: str, kind: Kind) -> ModelInfo:
        """The served model of that name, or the gateway's own of that kind for "" and its aliases.

        Raises:
            GatewayRefusal: there is no such model.
            RetryError: the server cannot be asked.
        """
        own = {
            "offline": self._options.model,
            "streaming": self._options.stream_model,
            "activity-streaming": self._options.vad_model,
        }
        if name in self._options.aliases:
            name = ""
        try:
            return await self._model(name or own.get(kind, ""), kind)
        except InputError as error:
            raise await absent(self._client, error, named=bool(name or own.get(kind))) from error

    async def _model(self, name: str, kind: Kind) -> ModelInfo:
        """The model of that name: an upstream's, else Triton's; for "" Triton's only one, else the upstreams' only one.

        Raises:
            InputError: there is none, or several would do.
        """
        if (name, kind) in self._elsewhere:
            return self._elsewhere[name, kind][1]
        if name in {each for each, _ in self._elsewhere}:
            raise InputError(f"model '{name}' is of an upstream, and not {kind}")
        try:
            return await self._client.model(name or None, kind=kind)
        except InputError:
            fitting = [info for _, info in self._elsewhere.values() if info.kind == kind]
            if name or not fitting or any(each.kind == kind for each in await self._client.models()):
                raise
            return choose(fitting, None, kind, "the gateway's upstreams")

    async def speaker_model(self, wanted: SpeakerOptions, *, live: bool) -> ModelInfo:
        """The served model that distinguishes speakers, of recordings or of live streams: the one that is wanted, else
        the gateway's own, else one that tells them apart itself, else one for embeddings.

        Only the latter can be told how many there are. Raises as `model`.
        """
        own: Kind = "diarization-streaming" if live else "diarization"
        name = wanted.model or self._options.speaker_model
        if not wanted.num_speakers:
            with suppress(InputError):
                return await self._client.model(name or None, kind=own)
        return await self.model(name, "embedding")

    @property
    def turns(self) -> TurnOptions | None:
        """How turns end where a client does not say; None where the gateway has no classifier of their ends."""
        return TurnOptions() if self._options.turn_model else None

    async def turn_model(self, name: str) -> ModelInfo:
        """The served classifier of ends of turns of that name, or the gateway's own for "".

        Raises:
            GatewayRefusal: there is no such model.
            RetryError: the server cannot be asked.
        """
        if not (wanted := name or self._options.turn_model):
            raise GatewayRefusal(404, "this gateway has no model that finds ends of turns", code="model_not_found")
        try:
            return await self._client.model(wanted, kind=None)
        except InputError as error:
            raise await absent(self._client, error) from error

    async def live_model(self, name: str) -> ModelInfo:
        """The served model of that name for live streams, or the gateway's own for "" and its aliases.

        A model for whole recordings is one, too, if it is named: it writes each utterance at its end, unless it is a
        Whisper model beside which its streams are served.

        Raises as `model`.
        """
        if (
            wanted := self._options.stream_model
            if name in self._options.aliases
            else name or self._options.stream_model
        ):
            with suppress(InputError):
                found = await self._model(wanted, "offline")
                if found.has_prompt:
                    with suppress(InputError):
                        return await self._model(f"{wanted}-streaming", "streaming")
                return found
        return await self.model(name, "streaming")

    async def transcribe(self, audio: bytes | Upload, ask: Ask, caller: Caller) -> Transcript:
        """Transcribe a recording of any format and length.

        Raises:
            AudioError: it is not audio, or too long.
            GatewayRefusal: there is no such model, or the caller has sent more audio than it may.
            TritoneError: the server failed.
        """
        wanted = ask.speakers
        if ask.each_channel:
            return merged_channels(await self.channels(audio, ask, caller))
        if wanted is not None:
            await self.speaker_model(wanted, live=False)  # what is wrong with it is reported before the work
            ask = replace(ask, details=True)  # speakers are of words
        recording = Recording(self, audio, ask, caller)
        async with aclosing(recording.parts()) as parts:
            async for _ in parts:
                pass
        found = recording.whole
        if wanted is not None:
            found = await labelled(self, audio, found, wanted, caller)
        return await self.written(found, ask.texts)

    async def channels(self, audio: bytes | Upload, ask: Ask, caller: Caller) -> list[Transcript]:
        """Transcribe each channel of a recording alone, in their order; raises as `transcribe`."""
        source = audio if isinstance(audio, Upload) else StoredAudio("the audio data", lambda: audio)
        found = []
        for channel in await asyncio.to_thread(channels_of, source):
            recording = Recording(self, channel, replace(ask, details=True), caller)
            async with aclosing(recording.parts()) as parts:
                async for _ in parts:
                    pass
            found.append(await self.written(recording.whole, ask.texts))
        return found

    async def parts(
        self, audio: bytes | Upload, ask: Ask, caller: Caller, *, growing: bool = False
    ) -> AsyncGenerator[Transcript, None]:
        """The finished parts of a recording, in their order, each as soon as it is; times are those of the whole.

        Raises as `transcribe`. A short recording has one part, and so has one whose words get speakers, which are known
        at its end.

        Args:
            growing: whether texts are all that is wanted. Then the texts so far of the next part come, too (they are
                not `is_final`), from models of upstreams that send what they write, if nothing is changed in it.
        """
        if ask.speakers is not None or ask.each_channel:
            yield await self.transcribe(audio, ask, caller)
            return
        growing = growing and ask.texts.changes_nothing
        async with aclosing(Recording(self, audio, ask, caller, growing=growing).parts()) as parts:
            async for part in parts:
                yield await self.written(part, ask.texts) if part.is_final else part

    def sends_events(self, info: ModelInfo) -> bool:
        """Whether the text of a recording comes from a model while it is written."""
        found = self._elsewhere.get((info.name, info.kind))
        return found is not None and found[0].options.events

    async def once(
        self,
        samples: Samples,
        sample_rate: int,
        model: str,
        ask: Ask,
        caller: Caller,
        *,
        details: bool | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Transcript:
        """The transcript of samples that fit into one request, as the model writes it.

        Args:
            samples: (samples,) at `sample_rate` Hz.
            details: as of `Ask`, in its place.
            on_text: called with the text so far, of a model that `sends_events`.
        """
        info = await self.model(model, "offline")
        wanted, search = ask.details if details is None else details, search_of(ask, info)
        if found := self._elsewhere.get((info.name, "offline")):
            return await found[0].transcribe(
                samples,
                sample_rate,
                search,
                times=wanted or ask.details,
                on_text=on_text,
                headers=caller.headers,
            )
        return await self._client.transcribe(
            samples,
            info.name,
            details=wanted and info.has_details,
            search=search,
            sample_rate=sample_rate,
            headers=caller.headers,
        )

    async def activity(self, sample_rate: int, *, streaming: bool = False) -> OpenActivity | None:
        """What finds speech in long recordings, if Triton has a model for it; for threads that may wait.

        Args:
            streaming: whether a model for streams alone will do.
        """
        if (activity := await self._client.activity(sample_rate)) is None and streaming:
            with suppress(GatewayRefusal):
                info = await self.model("", "activity-streaming")
                return self._client.activity_streams(info.name, sample_rate)
        return activity

    async def open(self, ask: Ask, sample_rate: int, caller: Caller) -> Live:
        """Open a live stream; nothing is sent to the server before its first audio.

        Args:
            sample_rate: of the audio that will come, in Hz.

        Raises:
            GatewayRefusal: there is no such model, or no stream left for the caller, or for anybody.
            AudioError: no audio has that rate.
            TritoneError: the server cannot be asked.
        """
        try:
            check_sample_rate(sample_rate)
        except ValueError as error:
            raise AudioError(str(error)) from error
        if len(self._lives) >= self.limits.max_streams:
            message = f"{len(self._lives)} streams are open here, the most there may be; try again later"
            raise GatewayRefusal(503, message, 1.0)
        with ExitStack() as held:
            held.enter_context(caller.streaming())
            live = Live(self, ask, sample_rate, caller)
            self._lives.add(live)
            held.callback(self._lives.discard, live)
            await live.start()
            gauge = self._metrics.streams.labels(caller.protocol)
            gauge.inc()
            held.callback(gauge.dec)
            self._metrics.opened.labels(caller.protocol).inc()
            live.held = held.pop_all()
        return live

    async def recognising(
        self, ask: Ask, sample_rate: int, caller: Caller
    ) -> AsyncClientStream | WholeStream | RealtimeStream:
        """A stream on the server that recognises, or what collects an utterance for a model of whole recordings."""
        info = await self.live_model(ask.model)
        search = search_of(ask, info)
        if info.kind == "offline":
            return WholeStream(
                info, sample_rate, lambda samples: self.once(samples, sample_rate, info.name, ask, caller)
            )
        if found := self._elsewhere.get((info.name, "streaming")):
            return RealtimeStream(found[0], info, sample_rate, search, turns=ask.vad is None, headers=caller.headers)
        return await self._client.stream(
            info.name,
            sample_rate=sample_rate,
            details=info.has_details,  # which tell of segments
            chunk_ms=self._options.chunk_ms,
            search=search,
            headers=caller.headers,
        )

    async def detecting(self, vad: VadOptions, sample_rate: int, caller: Caller) -> AsyncActivityStream:
        """A stream on the server that finds speech."""
        info = await self.model(vad.model, "activity-streaming")
        return await self._client.detect_stream(
            info.name,
            sample_rate=sample_rate,
            options=vad.parameters,
            chunk_ms=self._options.chunk_ms,
            headers=caller.headers,
        )

    async def classified(self, model: str, tensor: str, samples: Samples, caller: Caller) -> npt.NDArray[np.float32]:
        """The answer of a model whose one input is `tensor`: what its one output holds."""
        found = await self._client.infer({tensor: samples}, model, headers=caller.headers)
        return next(iter(found.values()))

    async def diarize(self, audio: bytes | Upload, model: str, caller: Caller) -> SpeechActivity:
        """Who speaks when in a recording, by a model that tells speakers apart."""
        return await self._client.diarize(audio, model, headers=caller.headers)

    async def diarizing(self, model: str, sample_rate: int, caller: Caller) -> AsyncActivityStream:
        """A stream on the server that tells speakers apart."""
        return await self._client.diarize_stream(
            model, sample_rate=sample_rate, chunk_ms=self._options.chunk_ms, headers=caller.headers
        )

    async def embed(self, samples: Samples, sample_rate: int, model: str, caller: Caller) -> npt.NDArray[np.float32]:
        """The embedding (dim,) of the voice in samples (samples,) at `sample_rate` Hz."""
        return await self._client.embed(samples, model, sample_rate=sample_rate, headers=caller.headers)

    async def rewritten(self, samples: Samples, sample_rate: int, ask: Ask, caller: Caller) -> Transcript:
        """The text that `ask.final_model` writes of a segment of a live stream; times count from its start."""
        second = replace(ask, search=ask.final_search)
        return await self.written(await self.once(samples, sample_rate, ask.final_model, second, caller), ask.texts)

    def so_far(self, found: Transcript, texts: TextOptions) -> Transcript:
        """A partial transcript as the client wants it; marks of the gateway's own model come with the final one."""
        return tidy(found, texts if self._options.punctuation is None else replace(texts, punctuate=False))

    async def written(self, found: Transcript, texts: TextOptions) -> Transcript:
        """A final transcript as the client wants it, punctuated by the gateway's own model if there is one."""
        written = self.so_far(found, texts)
        if self._options.punctuation is None or not texts.punctuate:
            return written
        return await asyncio.to_thread(self._options.punctuation, written)

    async def close(self) -> None:
        """Close the connections to upstreams."""
        for each in self.upstreams.values():
            await each.close()

    def count_audio(self, audio_s: float, model: str, caller: Caller) -> None:
        """Count audio that came or was made, in seconds; raises `GatewayRefusal` if it is more than the caller may."""
        caller.count_audio(audio_s)
        if (visit := VISIT.get()) is not None:
            visit.model, visit.audio_s = model, visit.audio_s + audio_s
        self._metrics.audio(caller.protocol, model).inc(audio_s)

    def observe(self, what: str, live: Live, seconds: float) -> None:
        """Count a latency of a live stream: "first_partial", "final", "turn" or "end_of_speech"."""
        self._metrics.latencies[what].labels(live.caller.protocol, live.model).observe(seconds)

    def count_second_pass(self, live: Live, outcome: SecondPassOutcome) -> None:
        """Count how the second pass of a segment ended."""
        self._metrics.second_passes.labels(live.caller.protocol, live.model, outcome).inc()
