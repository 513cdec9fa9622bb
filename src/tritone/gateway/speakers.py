"""Words get speakers: by embeddings of their voices, or by a model that tells speakers apart itself."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tritone.audio.files import Upload
from tritone.audio.recent import RecentAudio
from tritone.audio.waveform import Samples, Waveform
from tritone.client.async_stream import AsyncActivityStream
from tritone.client.models import ModelInfo
from tritone.diarization import Diarizer, TurnsSoFar, WordSpeakers, speech_of, with_speakers
from tritone.diarization import SpeakerOptions as DiarizationOptions
from tritone.diarization.live import Steps
from tritone.diarization.network import turns_in
from tritone.diarization.voices import Floats
from tritone.errors import OperatorError
from tritone.gateway.ask import SpeakerOptions
from tritone.gateway.callers import Caller
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.gateway.speech import Speech

AT_ONCE = 16  # windows of one recording or stream that the model has


async def labelled(
    speech: "Speech", audio: bytes | Upload, found: Transcript, wanted: SpeakerOptions, caller: Caller
) -> Transcript:
    """A transcript of a whole recording whose words have speakers.

    The audio is read again, in a thread; for embeddings where the transcript has words.

    Raises:
        GatewayRefusal: there is no such model, or it does not do what is wanted.
        TritoneError: the server failed.
    """
    info = await speech.speaker_model(wanted, live=False)
    if info.kind == "diarization":
        return with_speakers(found, list(turns_in((await speech.diarize(audio, info.name, caller)).segments)))
    loop, gone = asyncio.get_running_loop(), threading.Event()

    def embed(waveforms: Sequence[Waveform]) -> Floats:
        if gone.is_set():
            raise OperatorError("nobody waits for the speakers of this recording any more")
        work = _embedded(speech, waveforms, info.name, info.sample_rate, caller)
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    diarizer = Diarizer(embed, sample_rate=info.sample_rate, options=_diarization_options(wanted))
    try:
        turns = await asyncio.to_thread(lambda: diarizer.diarize(audio, speech=speech_of(found)).turns)
    finally:
        gone.set()  # the thread of a client that went ends with its next windows
    return with_speakers(found, turns)


class LiveSpeakers(ABC):
    """The speakers of one live stream. `kept_s`: audio that is kept of it for them, in seconds."""

    kept_s: float = 0.0

    async def add(self, samples: Samples) -> None:  # noqa: B027  # embedded is where words are
        """Take audio as it comes, before it is recognised."""

    async def finish(self) -> None:  # noqa: B027
        """No more audio comes."""

    @abstractmethod
    async def so_far(self, found: Transcript, audio: RecentAudio) -> Transcript:
        """A text that still grows, with the speakers of its words as far as they are known.

        Args:
            audio: of the stream.
        """

    @abstractmethod
    async def labelled(self, found: Transcript, audio: RecentAudio) -> Transcript:
        """The transcript of a segment that has ended, with the speakers of its words; these stay."""

    async def close(self) -> None:  # noqa: B027
        """Free what the server holds; the second call does nothing."""


async def live_speakers(speech: "Speech", wanted: SpeakerOptions, sample_rate: int, caller: Caller) -> LiveSpeakers:
    """The speakers of a live stream of that rate in Hz, by the model that is wanted; raises as `labelled`."""
    info = await speech.speaker_model(wanted, live=True)
    if info.kind == "embedding":
        return EmbeddedSpeakers(speech, info, wanted, caller)
    return TrackedSpeakers(await speech.diarizing(info.name, sample_rate, caller))


class TrackedSpeakers(LiveSpeakers):
    """Speakers of a stream that a model tells apart as it goes: each word gets its own, in growing texts, too."""

    def __init__(self, stream: AsyncActivityStream) -> None:
        self._stream, self._turns = stream, TurnsSoFar()

    async def add(self, samples: Samples) -> None:
        self._turns.add(await self._stream.accept(samples))

    async def finish(self) -> None:
        self._turns.add(await self._stream.finish())

    async def so_far(self, found: Transcript, audio: RecentAudio) -> Transcript:
        return self._turns.labelled(found)

    async def labelled(self, found: Transcript, audio: RecentAudio) -> Transcript:
        return self._turns.labelled(found)

    async def close(self) -> None:
        await self._stream.close()


class EmbeddedSpeakers(LiveSpeakers):
    """Speakers of a stream by embeddings of where its text has words; see `WordSpeakers`."""

    kept_s = 600.0  # a segment of a model for whole recordings is embedded when it is over

    def __init__(self, speech: "Speech", info: ModelInfo, wanted: SpeakerOptions, caller: Caller) -> None:
        self._speech, self._info, self._caller = speech, info, caller
        self._words = WordSpeakers(info.sample_rate, options=_diarization_options(wanted))

    async def so_far(self, found: Transcript, audio: RecentAudio) -> Transcript:
        return await self._perform(self._words.labelling(found, audio, final=False))

    async def labelled(self, found: Transcript, audio: RecentAudio) -> Transcript:
        return await self._perform(self._words.labelling(found, audio, final=True))

    async def _perform(self, steps: Steps) -> Transcript:
        try:
            waveforms = next(steps)
            while True:
                rate = self._info.sample_rate
                waveforms = steps.send(await _embedded(self._speech, waveforms, self._info.name, rate, self._caller))
        except StopIteration as end:
            found: Transcript = end.value
            return found


def _diarization_options(wanted: SpeakerOptions) -> DiarizationOptions:
    """How speakers of whole recordings are distinguished."""
    if wanted.num_speakers:
        return DiarizationOptions(num_speakers=wanted.num_speakers)
    return DiarizationOptions(max_speakers=wanted.max_speakers) if wanted.max_speakers else DiarizationOptions()


async def _embedded(
    speech: "Speech", waveforms: Sequence[Waveform], model: str, sample_rate: int, caller: Caller
) -> Floats:
    """The embeddings of waveforms (samples,), (waveforms, dim)."""
    vectors: list[Floats] = []
    for start in range(0, len(waveforms), AT_ONCE):
        some = waveforms[start : start + AT_ONCE]
        vectors += await asyncio.gather(*(speech.embed(each, sample_rate, model, caller) for each in some))
    return np.stack(vectors) if vectors else np.zeros((0, 1), np.float32)
