"""Who speaks when, by a model that tells speakers apart itself; and words with its speakers, as both come.

    NetworkDiarizer(model.diarize, model.stream, sample_rate=16000).diarize("meeting.wav")   ->  Diarization
    with SpeakerWords(recogniser.stream(), model.stream()) as stream: stream.accept(samples) ->  Transcript

Models are functions, so that those in this process and served ones are used alike.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Protocol

import numpy as np

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.inputs import AudioInput, source_of
from tritone.audio.waveform import Samples, widened
from tritone.diarization.diarizer import NO_SAMPLES, Diarization, Listener, Speaker, blocks_of
from tritone.diarization.words import with_speakers
from tritone.formats.rttm import Turn
from tritone.transcript import Transcript

KEPT_S = 3600.0  # of turns of a stream: words are labelled soon after they were said


class NetworkDiarizer:
    """Diarizes recordings and streams as `Diarizer` does, but speakers of several turns may talk at once."""

    def __init__(
        self,
        recordings: Callable[[Any], SpeechActivity] | None,
        streams: Callable[[int], Listener] | None,
        *,
        sample_rate: int,
    ) -> None:
        """Take the model.

        Args:
            recordings: finds who speaks in a whole recording, a path or (samples,) at `sample_rate`; None if it is for
                streams alone.
            streams: opens a stream of it for a sample rate in Hz; None if it is for recordings alone.
            sample_rate: in Hz.
        """
        self.sample_rate = sample_rate
        self._recordings, self._streams = recordings, streams

    def diarize(
        self,
        source: AudioInput | bytes,
        sample_rate: int | None = None,
        *,
        recording: str = "",
        speech: Iterable[SpeechSegment] | None = None,
    ) -> Diarization:
        """Diarize a file or an array, as of `Diarizer.diarize`; the network finds speech itself, whatever `speech` is.

        Raises:
            TritoneError: the audio cannot be used, or the model failed.
            ValueError: the model is for streams alone.
        """
        if self._recordings is None:
            raise ValueError("this model is for streams; use play, or give one for recordings")
        name = recording or source_of(source, 0)
        if isinstance(source, np.ndarray) and sample_rate not in (None, self.sample_rate):
            source = np.concatenate(list(blocks_of(source, sample_rate, self.sample_rate)))
        found = self._recordings(source)
        turns = tuple(turns_in(found.segments, name))
        talked: dict[str, float] = {}
        for each in turns:
            talked[each.speaker] = talked.get(each.speaker, 0.0) + each.duration_s
        speakers = tuple(Speaker(label, speech_s, NO_SAMPLES) for label, speech_s in talked.items())
        return Diarization(turns, speakers, found.audio_s)

    def play(
        self, source: AudioInput | bytes, sample_rate: int | None = None, *, recording: str = ""
    ) -> Iterator[Turn]:
        """Play a file or an array into a stream, and yield each turn when it has ended; errors as of `diarize`."""
        name = recording or source_of(source, 0)
        with closing(self.stream(self.sample_rate)) as stream:
            for samples in blocks_of(source, sample_rate, self.sample_rate):
                yield from turns_in(stream.accept(samples).segments, name)
            yield from turns_in(stream.finish().segments, name)

    def stream(self, sample_rate: int) -> Listener:
        """Open a stream for audio of that rate, in Hz; its answers have segments with speakers, and `speaking`.

        Raises:
            TritoneError: the model has no stream left, or failed.
            ValueError: it is for whole recordings alone.
        """
        if self._streams is None:
            raise ValueError("this model is for whole recordings; use diarize, or give one for streams")
        return self._streams(sample_rate)


def turns_in(segments: Iterable[SpeechSegment], recording: str = "") -> Iterator[Turn]:
    """Segments with their speakers as turns, by their starts."""
    for each in sorted(segments, key=lambda segment: segment.start_s):
        yield Turn(recording, each.start_s, each.end_s, each.speaker)


class TurnsSoFar:
    """The turns of a stream as its answers come: those that have ended, of the last hour, and those under way.

    `known_s`: up to where in the audio they are known.
    """

    def __init__(self) -> None:
        self.known_s = 0.0
        self._ended: deque[Turn] = deque()
        self._speaking: tuple[SpeechSegment, ...] = ()

    def add(self, answer: SpeechActivity) -> None:
        """Take the next answer."""
        self._ended += turns_in(answer.segments)
        self._speaking = answer.speaking
        self.known_s = answer.audio_s if answer.known_s is None else answer.known_s
        while self._ended and self._ended[0].end_s < self.known_s - KEPT_S:
            self._ended.popleft()

    @property
    def turns(self) -> list[Turn]:
        """All of them; those under way end where they are known."""
        return [*self._ended, *turns_in(self._speaking)]

    def labelled(self, found: Transcript) -> Transcript:
        """A transcript of the same stream, whose words have speakers; see `with_speakers`.

        The last words of a text that still grows may get another speaker, as what is said there is not known yet.
        """
        return with_speakers(found, self.turns)


class TextStream(Protocol):
    """A stream of a recogniser: `Recognizer.stream`, or `Client.stream` with details."""

    def accept(self, samples: Any, /) -> Transcript: ...

    def finish(self) -> Transcript: ...

    def close(self) -> None: ...


class SpeakerWords:
    """A stream of a recogniser whose words have the speakers of another model's stream of the same audio."""

    def __init__(self, text: TextStream, speakers: Listener) -> None:
        """Take both streams, opened for the same sample rate; they are closed with this one."""
        self._text, self._speakers = text, speakers
        self.turns = TurnsSoFar()

    def accept(self, samples: Samples) -> Transcript:
        """Take the next samples (samples,) and return the recogniser's answer with speakers; errors of both streams."""
        self.turns.add(self._speakers.accept(widened(samples)))
        return self.turns.labelled(self._text.accept(samples))

    def finish(self) -> Transcript:
        """End the stream and return its last answer."""
        self.turns.add(self._speakers.finish())
        return self.turns.labelled(self._text.finish())

    def close(self) -> None:
        """Give both streams up; does nothing if they have ended."""
        try:
            self._text.close()
        finally:
            self._speakers.close()

    def __enter__(self) -> "SpeakerWords":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
