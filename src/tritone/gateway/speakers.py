"""Words get speakers: by clustering of embeddings, of live streams as their segments end; or by a model that tells
speakers apart itself, of streams word by word."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tritone.activity import SpeechSegment
from tritone.audio.files import resample
from tritone.audio.waveform import Samples, Waveform, widened
from tritone.client.async_stream import AsyncActivityStream
from tritone.diarization import (
    Diarizer,
    OnlineSpeakers,
    TurnsSoFar,
    WindowCutter,
    speech_of,
    turns_of,
    with_speakers,
)
from tritone.diarization import SpeakerOptions as DiarizationOptions
from tritone.diarization.listening import GivenSpeechStream
from tritone.diarization.network import turns_in
from tritone.diarization.voices import SHORT_SHARE, Floats
from tritone.errors import OperatorError
from tritone.formats.rttm import Turn
from tritone.gateway.ask import SpeakerOptions
from tritone.gateway.callers import Caller
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.gateway.speech import Speech

AT_ONCE = 16  # windows of one recording or stream that the model has


async def labelled(
    speech: "Speech", audio: bytes | Path, found: Transcript, wanted: SpeakerOptions, caller: Caller
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

    async def hear(self, samples: Samples) -> None:  # noqa: B027  # clustering waits for whole segments
        """Take audio as it comes, before it is recognised."""

    async def finish(self) -> None:  # noqa: B027
        """No more audio comes."""

    def so_far(self, found: Transcript) -> Transcript:
        """A text that still grows, with the speakers of its words as far as they are known."""
        return found

    @abstractmethod
    async def labelled(self, found: Transcript, audio: tuple[Samples, int, float]) -> Transcript:
        """The transcript of a segment, with the speakers of its words.

        Args:
            audio: (samples,) of the segment, their rate in Hz, and where they begin in the stream, in seconds.
        """

    async def close(self) -> None:  # noqa: B027
        """Free what the server holds; the second call does nothing."""


async def live_speakers(speech: "Speech", wanted: SpeakerOptions, sample_rate: int, caller: Caller) -> LiveSpeakers:
    """The speakers of a live stream of that rate in Hz, by the model that is wanted; raises as `labelled`."""
    info = await speech.speaker_model(wanted, live=True)
    if info.kind == "embedding":
        return ClusteredSpeakers(speech, wanted, caller)
    return TrackedSpeakers(await speech.diarizing(info.name, sample_rate, caller))


class TrackedSpeakers(LiveSpeakers):
    """Speakers of a stream that a model tells apart as it goes: each word gets its own, in growing texts, too."""

    def __init__(self, stream: AsyncActivityStream) -> None:
        self._stream, self._turns = stream, TurnsSoFar()

    async def hear(self, samples: Samples) -> None:
        self._turns.add(await self._stream.accept(samples))

    async def finish(self) -> None:
        self._turns.add(await self._stream.finish())

    def so_far(self, found: Transcript) -> Transcript:
        return self._turns.labelled(found)

    async def labelled(self, found: Transcript, audio: tuple[Samples, int, float]) -> Transcript:
        return self._turns.labelled(found)

    async def close(self) -> None:
        await self._stream.close()


class ClusteredSpeakers(LiveSpeakers):
    """Speakers of a stream by embeddings; segments are labelled when they are final, and keep their labels."""

    kept_s = 600.0  # segments are embedded when they are over

    def __init__(self, speech: "Speech", wanted: SpeakerOptions, caller: Caller) -> None:
        self._speech, self._wanted, self._caller = speech, wanted, caller
        options = self._options = DiarizationOptions()
        most = wanted.num_speakers or wanted.max_speakers or options.max_speakers
        self._speakers = OnlineSpeakers(merge_cosine=options.merge_cosine, max_speakers=most)

    async def labelled(self, found: Transcript, audio: tuple[Samples, int, float]) -> Transcript:
        samples, sample_rate, begin_s = audio
        speech = [SpeechSegment(each.start_s - begin_s, each.end_s - begin_s) for each in speech_of(found)]
        if not speech or not samples.size:
            return found
        info = await self._speech.model(self._wanted.model, "embedding")
        options, rate = self._options, info.sample_rate
        waveform = widened(resample(samples, sample_rate, rate))
        listener = GivenSpeechStream([SpeechSegment(max(0.0, each.start_s), each.end_s) for each in speech], rate)
        cutter = WindowCutter(rate, window_s=options.window_s, shift_s=options.shift_s)
        windows = cutter.accept(waveform, listener.accept(waveform))
        windows += cutter.accept(np.zeros(0, np.float32), listener.finish())
        long_enough = [each for each in windows if len(each.samples)]
        vectors = iter(
            await _embedded(self._speech, [each.samples for each in long_enough], info.name, rate, self._caller)
        )
        labels, last = [], ""
        for window in windows:
            vector = next(vectors) if len(window.samples) else None
            if vector is not None and vector.any():
                whole = window.end_s - window.start_s >= SHORT_SHARE * options.window_s
                last = self._speakers.add(vector, whole=whole)
            labels.append(last)
        turns = [
            Turn("", start_s + begin_s, end_s + begin_s, label) for start_s, end_s, label in turns_of(windows, labels)
        ]
        return with_speakers(found, turns)


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
