"""Where there is speech, without a voice activity model: by its level, or as it is given.

    stream.accept(samples)  ->  SpeechActivity of this step, as of `Detector.stream`

Levels are for clean recordings: loud noise counts as speech.
"""

from collections.abc import Iterable

import numpy as np

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.waveform import Waveform

FRAME_S = 0.02
BELOW_DB = 35.0  # quieter than the loudest by this much is silence
SILENCE_DB = -65.0  # and so is what has this level, relative to a full-scale square wave
FORGET_DB_S = 0.5  # how fast the loudest level is forgotten, in dB a second: a speaker farther off is heard again
MIN_SILENCE_S = 0.3
MIN_SPEECH_S = 0.1
PADDING_S = 0.05


class LevelStream:
    """Speech of one stream by its level, in one pass; what it finds does not depend on how the audio is divided."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._frame = round(FRAME_S * sample_rate)
        self._rest = np.zeros(0, np.float32)
        self._frames = 0
        self._loudest_db = SILENCE_DB + BELOW_DB
        self._start: int | None = None  # frames
        self._last = 0  # behind the last loud frame
        self._samples = 0

    def accept(self, samples: Waveform) -> SpeechActivity:
        """Take the next samples, (samples,) float32 in [-1, 1]."""
        return self._advance(samples, final=False)

    def finish(self) -> SpeechActivity:
        """End the stream, and the segment under way."""
        return self._advance(np.zeros(0, np.float32), final=True)

    def close(self) -> None:
        """Nothing is held."""

    def _advance(self, samples: Waveform, final: bool) -> SpeechActivity:
        self._samples += len(samples)
        self._rest = np.concatenate([self._rest, samples])
        count = len(self._rest) // self._frame
        frames = self._rest[: count * self._frame].reshape(count, self._frame).astype(np.float64)
        self._rest = self._rest[count * self._frame :]
        levels = 10 * np.log10(np.square(frames - frames.mean(axis=1, keepdims=True)).mean(axis=1) + 1e-12)
        found: list[SpeechSegment] = []
        for level in levels.tolist():
            self._loudest_db = max(level, self._loudest_db - FORGET_DB_S * FRAME_S)
            if level > max(self._loudest_db - BELOW_DB, SILENCE_DB):
                if self._start is None:
                    self._start = self._frames
                self._last = self._frames + 1
            elif self._start is not None and (self._frames + 1 - self._last) * FRAME_S >= MIN_SILENCE_S:
                found += self._ended()
            self._frames += 1
        if final and self._start is not None:
            found += self._ended()
        since = None if self._start is None else max(0.0, self._start * FRAME_S - PADDING_S)
        return SpeechActivity(tuple(found), self._samples / self._rate, FRAME_S, speaking_since_s=since, is_final=final)

    def _ended(self) -> list[SpeechSegment]:
        assert self._start is not None
        start_s, end_s = self._start * FRAME_S, self._last * FRAME_S
        self._start = None
        if end_s - start_s < MIN_SPEECH_S:
            return []
        return [SpeechSegment(max(0.0, start_s - PADDING_S), min(end_s + PADDING_S, self._samples / self._rate))]


class GivenSpeechStream:
    """Speech that is known beforehand, reported as a detector would."""

    def __init__(self, speech: Iterable[SpeechSegment], sample_rate: int) -> None:
        """Take the segments, in any order; those that overlap are one."""
        self._rate, self._samples = sample_rate, 0
        self._coming = joined_segments(speech)[::-1]

    def accept(self, samples: Waveform) -> SpeechActivity:
        """Take the next samples (samples,)."""
        return self._advance(len(samples), final=False)

    def finish(self) -> SpeechActivity:
        """End the stream; what was given of later times is left out."""
        return self._advance(0, final=True)

    def close(self) -> None:
        """Nothing is held."""

    def _advance(self, samples: int, final: bool) -> SpeechActivity:
        self._samples += samples
        received_s = self._samples / self._rate
        ended: list[SpeechSegment] = []
        while self._coming and (
            self._coming[-1].end_s <= received_s or (final and self._coming[-1].start_s < received_s)
        ):
            ended.append(self._coming.pop())
        since = self._coming[-1].start_s if self._coming and self._coming[-1].start_s < received_s else None
        return SpeechActivity(tuple(ended), received_s, FRAME_S, speaking_since_s=since, is_final=final)


def joined_segments(speech: Iterable[SpeechSegment]) -> list[SpeechSegment]:
    """Segments in order, those that overlap or touch as one."""
    found: list[SpeechSegment] = []
    for each in sorted(speech, key=lambda one: one.start_s):
        if found and each.start_s <= found[-1].end_s:
            found[-1] = SpeechSegment(found[-1].start_s, max(found[-1].end_s, each.end_s))
        elif each.end_s > each.start_s:
            found.append(each)
    return found
