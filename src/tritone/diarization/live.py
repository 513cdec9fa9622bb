"""Words of a stream get speakers by their voices, as the text grows.

    with VoiceWords(recogniser.stream(), embedder.embed, sample_rate=16000) as stream:
        stream.accept(samples)  ->  Transcript

Where the text has words, there is speech: windows of it are embedded as they come. Labels of a text that grows may
change; those of a segment that ended stay.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tritone.activity import SpeechSegment
from tritone.audio.files import resample
from tritone.audio.recent import RecentAudio
from tritone.audio.waveform import Samples, Waveform, widened
from tritone.diarization.diarizer import NO_SAMPLES
from tritone.diarization.network import KEPT_S, TextStream
from tritone.diarization.online import OnlineSpeakers
from tritone.diarization.options import SpeakerOptions
from tritone.diarization.voices import SHORT_SHARE, Floats
from tritone.diarization.windows import LEAST_WINDOW_S, LONGEST_PIECE_S, Window, spans_of, turns_of
from tritone.diarization.words import speech_of, with_speakers
from tritone.formats.rttm import Turn
from tritone.transcript import Transcript

SETTLED_S = 10.0  # before the newest word: speech so far back keeps its labels, though its segment goes on
AUDIO_S = 60.0  # that is kept of a stream: windows are embedded soon after they were spoken

Steps = Generator[Sequence[Waveform], Floats, Transcript]
"""Yields waveforms (samples,) and takes their embeddings (waveforms, dim); returns the transcript with speakers."""


class WordSpeakers:
    """The speakers of the words of one stream. Its steps are performed by `VoiceWords`, or in an event loop."""

    def __init__(
        self,
        sample_rate: int,
        *,
        options: SpeakerOptions | None = None,
        enrolled: Mapping[str, Floats] | None = None,
        enrolled_cosine: float | None = None,
    ) -> None:
        """Begin without speakers.

        Args:
            sample_rate: of what is embedded, in Hz.
            options: windows, `merge_cosine`, and the most speakers, which is `num_speakers` where that is given.
            enrolled, enrolled_cosine: as of `OnlineSpeakers`.
        """
        self._rate, self._options = sample_rate, options or SpeakerOptions()
        self.speakers = OnlineSpeakers(
            merge_cosine=self._options.merge_cosine,
            max_speakers=self._options.bounds[1],
            enrolled=enrolled,
            enrolled_cosine=enrolled_cosine,
        )
        self._last = ""
        self._settled_s = 0.0  # up to here labels do not change any more
        self._turns: deque[Turn] = deque()  # up to there
        self._vectors: dict[tuple[int, int], Floats | None] = {}  # of windows behind it, by start and end in ms

    def labelling(self, found: Transcript, audio: RecentAudio, *, final: bool) -> Steps:
        """Label a transcript of the segment under way; its times, and those of `audio`, are of the stream.

        Args:
            final: whether the segment has ended with it.
        """
        pieces = self._pieces(found)
        windows = [window for piece in pieces for window in self._windows(piece)]
        yield from self._embed(windows, audio)
        before_s = np.inf if final else pieces[-1].end_s - SETTLED_S if pieces else 0.0
        settled = [each for each in windows if each.piece.end_s <= before_s]
        turns, self._last = self._labelled(settled, self.speakers, self._last)
        self._turns += turns
        if settled:
            self._settled_s = settled[-1].piece.end_s
            self._vectors = {span: each for span, each in self._vectors.items() if span[1] > 1000 * self._settled_s}
        while self._turns and self._turns[0].end_s < self._settled_s - KEPT_S:
            self._turns.popleft()
        guessed, _ = self._labelled(windows[len(settled) :], self.speakers.copied(), self._last)
        return with_speakers(found, [*self._turns, *guessed])

    def _pieces(self, found: Transcript) -> list[SpeechSegment]:
        """Where there is speech that is not settled, in order; long pieces are cut."""
        pieces = []
        shift_s = self._options.shift_s
        long_s = max(1, LONGEST_PIECE_S // shift_s) * shift_s  # so that the windows behind it stay where they are
        for each in speech_of(found):
            start_s = max(each.start_s, self._settled_s)
            while each.end_s - start_s > 2 * long_s:
                pieces.append(SpeechSegment(start_s, start_s + long_s))
                start_s += long_s
            if each.end_s > start_s:
                pieces.append(SpeechSegment(start_s, each.end_s))
        return pieces

    def _windows(self, piece: SpeechSegment) -> list[Window]:
        spans = spans_of(piece.start_s, piece.end_s, window_s=self._options.window_s, shift_s=self._options.shift_s)
        return [Window(*span, piece, NO_SAMPLES) for span in spans]

    def _embed(self, windows: Sequence[Window], audio: RecentAudio) -> Generator[Sequence[Waveform], Floats, None]:
        new: dict[tuple[int, int], Waveform] = {}
        for each in windows:
            if (span := _span(each)) not in self._vectors:
                samples = widened(resample(audio.during(each.start_s, each.end_s), audio.sample_rate, self._rate))
                self._vectors[span] = None
                if len(samples) >= LEAST_WINDOW_S * self._rate:
                    new[span] = samples
        if new:
            vectors = yield list(new.values())
            self._vectors |= {span: each if each.any() else None for span, each in zip(new, vectors, strict=True)}

    def _labelled(self, windows: Sequence[Window], speakers: OnlineSpeakers, last: str) -> tuple[list[Turn], str]:
        least_s = SHORT_SHARE * self._options.window_s
        whole = [each.end_s - each.start_s >= least_s for each in windows]
        labels = speakers.label([self._vectors[_span(each)] for each in windows], whole, last)
        return [Turn("", *each) for each in turns_of(windows, labels)], labels[-1] if labels else last


def _span(window: Window) -> tuple[int, int]:
    return round(1000 * window.start_s), round(1000 * window.end_s)


class VoiceWords:
    """A stream of a recogniser whose words have speakers by embeddings of their voices."""

    def __init__(
        self,
        text: TextStream,
        embed: Callable[[Sequence[Waveform]], Floats],
        *,
        sample_rate: int,
        audio_rate: int | None = None,
        options: SpeakerOptions | None = None,
        enrolled: Mapping[str, Floats] | None = None,
        enrolled_cosine: float | None = None,
    ) -> None:
        """Take an open stream, which is closed with this one, and the models as `Diarizer` does.

        Args:
            text: its words need times; it was opened for audio of `audio_rate`.
            embed, sample_rate: a speaker model and its rate in Hz.
            audio_rate: of the audio that comes, in Hz; None means `sample_rate`.
            options, enrolled, enrolled_cosine: as of `WordSpeakers`.
        """
        self._text, self._embed = text, embed
        self._recent = RecentAudio(audio_rate or sample_rate, AUDIO_S)
        self._words = WordSpeakers(sample_rate, options=options, enrolled=enrolled, enrolled_cosine=enrolled_cosine)

    def accept(self, samples: Samples) -> Transcript:
        """Take the next samples (samples,) and return the recogniser's answer with speakers; errors of both models."""
        self._recent.add(samples)
        return self._labelled(self._text.accept(samples))

    def finish(self) -> Transcript:
        """End the stream and return its last answer."""
        return self._labelled(self._text.finish())

    def close(self) -> None:
        """Give the stream up; does nothing if it has ended."""
        self._text.close()

    def __enter__(self) -> "VoiceWords":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _labelled(self, found: Transcript) -> Transcript:
        ended = tuple(self._perform(self._words.labelling(each, self._recent, final=True)) for each in found.ended)
        found = replace(found, ended=())
        return replace(self._perform(self._words.labelling(found, self._recent, final=found.is_final)), ended=ended)

    def _perform(self, steps: Steps) -> Transcript:
        try:
            waveforms = next(steps)
            while True:
                waveforms = steps.send(self._embed(waveforms))
        except StopIteration as end:
            labelled: Transcript = end.value
            return labelled
