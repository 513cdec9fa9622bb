"""Recordings joined from others, whose speech, speakers and words are therefore known.

    parts (samples, text, speaker)  ->  one waveform, and where in it each part and its speech are

The same parts, options and noise always give the same samples. Parts are taken one by one, so that hours can be
written in little memory (`write_joined`).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile

from tritone.activity import SpeechSegment
from tritone.audio.waveform import Waveform
from tritone.formats.rttm import Turn

FRAME_S = 0.01  # of the levels by which speech is found in clean audio
BELOW_PEAK_DB = 35.0  # frames so far below the loudest of a clean recording are no speech
ABOVE_FLOOR_DB = 12.0  # speech is so far above the quietest tenth of a recording
SILENCE_DB = -80.0  # relative to full scale: rounding to 16 bits makes noise of -101 dB, microphones of more than this
LEAST_PAUSE_S = 0.3  # shorter pauses, such as the closure of a stop, belong to the speech around them
LEAST_SPEECH_S = 0.05  # shorter sounds are clicks


@dataclass(frozen=True, kw_only=True)
class Part:
    """A clean recording to be joined with others: (samples,) float32, what is said, and by whom ("": unknown)."""

    id: str
    samples: Waveform
    text: str = ""
    speaker: str = ""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a part is in the joined recording, and the speech in it; seconds from the recording's start."""

    id: str
    start_s: float
    end_s: float
    text: str = ""
    speaker: str = ""
    speech: tuple[SpeechSegment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What is known of a joined recording: its parts in the order of their starts, and its length."""

    parts: tuple[Placed, ...]
    duration_s: float

    @property
    def text(self) -> str:
        """The words of all parts."""
        return " ".join(part.text for part in self.parts if part.text)

    @property
    def speech(self) -> tuple[SpeechSegment, ...]:
        """Where anybody speaks: in order, without overlaps."""
        found: list[SpeechSegment] = []
        for each in sorted((each for part in self.parts for each in part.speech), key=lambda each: each.start_s):
            if found and each.start_s <= found[-1].end_s:
                each = SpeechSegment(found[-1].start_s, max(found[-1].end_s, each.end_s))
                found.pop()
            found.append(each)
        return tuple(found)

    def turns(self, recording: str) -> list[Turn]:
        """Who speaks when, one turn for each stretch of speech of a part."""
        return [Turn(recording, each.start_s, each.end_s, part.speaker) for part in self.parts for each in part.speech]


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """How parts are joined. By default their samples stay as they are, but for the noise of a quiet microphone."""

    pauses_s: tuple[float, float] = (0.4, 1.6)  # between parts, drawn uniformly; below 0 the parts overlap
    edges_s: float = 0.5  # before the first part and after the last
    trim: bool = False  # cut each part to its speech, so that pauses are of exactly the length that was drawn
    level_dbfs: float | None = None  # RMS of each part's speech; None leaves the levels
    snr_db: float | None = None  # of the speech over the noise; needs `level_dbfs`
    floor_dbfs: float | None = -70.0  # white noise everywhere, as of a quiet microphone; None: pauses are zeros
    seed: int = 0

    def __post_init__(self) -> None:
        if not -math.inf < self.pauses_s[0] <= self.pauses_s[1] < math.inf:
            raise ValueError(f"pauses_s must be (least, most) in seconds, got {self.pauses_s}")
        if not 0 <= self.edges_s < math.inf:
            raise ValueError(f"edges_s must be at least 0, got {self.edges_s}")
        if self.snr_db is not None and self.level_dbfs is None:
            raise ValueError("snr_db needs level_dbfs: parts of different levels have no common ratio to the noise")


def join(
    parts: Iterable[Part], *, sample_rate: int, options: JoinOptions | None = None, noise: Waveform | None = None
) -> tuple[Waveform, Joined]:
    """Join parts in memory.

    Args:
        parts: at `sample_rate`, at least one.
        noise: (samples,) float32 that is repeated as needed, at `snr_db` of the options; None takes white noise.

    Returns:
        (samples,) float32 in [-1, 1], and what is known of it.

    Raises:
        ValueError: no parts, a part of no samples or without a sound, or noise without `snr_db`.
    """
    joining = _Joining(sample_rate, options or JoinOptions(), noise)
    samples = np.concatenate(list(joining.blocks(parts)))
    return samples, joining.result()


def write_joined(
    path: Path,
    parts: Iterable[Part],
    *,
    sample_rate: int,
    options: JoinOptions | None = None,
    noise: Waveform | None = None,
) -> Joined:
    """Join parts into a 16-bit file of the format of its suffix (FLAC, WAV); holds no more than two parts in memory.

    Arguments and errors are those of `join`.
    """
    joining = _Joining(sample_rate, options or JoinOptions(), noise)
    write_audio(path, joining.blocks(parts), sample_rate)
    return joining.result()


def write_audio(path: Path, blocks: Iterable[Waveform], sample_rate: int) -> None:
    """Write blocks of a mono waveform as they come to a 16-bit file, whose suffix (.flac, .wav) names its format.

    Args:
        blocks: each (samples,) float32; what is beyond [-1, 1] is clipped.
        sample_rate: in Hz.
    """
    with soundfile.SoundFile(path, "w", samplerate=sample_rate, channels=1, subtype="PCM_16") as file:
        for block in blocks:
            file.write(block)


def speech_of(samples: Waveform, sample_rate: int) -> list[tuple[int, int]]:
    """The speech of a clean recording by its level, as (start, end) in samples; to be trusted in clean audio alone.

    A frame of 10 ms is speech if it is less than 35 dB below the loudest one and more than 12 dB above the quietest
    tenth (but never needed to be within 20 dB of the loudest). Pauses under 0.3 s are part of it.
    """
    size = round(FRAME_S * sample_rate)
    count = len(samples) // size
    if count == 0:
        return [(0, len(samples))] if len(samples) else []
    frames = samples[: count * size].reshape(count, size).astype(np.float64)
    levels = 10 * np.log10(np.square(frames - frames.mean(axis=1, keepdims=True)).mean(axis=1) + 1e-12)
    peak = float(np.percentile(levels, 99))  # one click is no speech
    floor = float(np.percentile(levels, 10))
    threshold = max(min(max(peak - BELOW_PEAK_DB, floor + ABOVE_FLOOR_DB), peak - 20), SILENCE_DB)
    runs = _runs(levels > threshold)
    merged: list[list[int]] = []
    for start, end in runs:
        if merged and (start - merged[-1][1]) * FRAME_S < LEAST_PAUSE_S:
            merged[-1][1] = end
        else:
            merged.append([start, end])
    return [(start * size, end * size) for start, end in merged if (end - start) * FRAME_S >= LEAST_SPEECH_S]


def _runs(flags: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


@dataclass
class _Joining:
    """One recording being made: `blocks` gives its samples, `result` what is known once they are all taken."""

    sample_rate: int
    options: JoinOptions
    noise: Waveform | None
    _placed: list[Placed] = field(default_factory=list)
    _given: int = 0  # samples that left `blocks`

    def __post_init__(self) -> None:
        if self.noise is not None and self.options.snr_db is None:
            raise ValueError("noise needs options.snr_db, its distance from the speech in dB")
        self._rng = np.random.default_rng(self.options.seed)
        self._hiss = np.random.default_rng([self.options.seed, 1])  # of its own: noise changes no pause
        self._at = 0  # where in the noise
        if self.noise is not None:
            if not len(self.noise) or not (power := float(np.square(self.noise, dtype=np.float64).mean())):
                raise ValueError("the noise has no sound in it")
            self._noise = self.noise / np.float32(math.sqrt(power))
            self._at = int(self._hiss.integers(len(self._noise)))

    def blocks(self, parts: Iterable[Part]) -> Iterator[Waveform]:
        """The samples, in blocks of about one part."""
        pending = np.zeros(self._samples(self.options.edges_s), np.float32)  # not given yet: parts may overlap it
        for part in parts:
            samples, speech = self._prepared(part)
            if self._placed:
                gap = self._samples(float(self._rng.uniform(*self.options.pauses_s)))
                gap = max(gap, -min(len(pending), len(samples)))  # no part starts before the one before it
            else:
                gap = 0
            start = self._given + len(pending) + gap
            rate = self.sample_rate
            self._placed.append(
                Placed(
                    id=part.id,
                    start_s=start / rate,
                    end_s=(start + len(samples)) / rate,
                    text=part.text,
                    speaker=part.speaker,
                    speech=tuple(SpeechSegment((start + a) / rate, (start + b) / rate) for a, b in speech),
                )
            )
            if gap < 0:
                samples = samples.copy()
                samples[:-gap] += pending[gap:]
                done = pending[:gap]
            else:
                done = np.concatenate([pending, np.zeros(gap, np.float32)])
            yield self._finished(done)
            pending = samples
        if not self._placed:
            raise ValueError("no parts to join")
        yield self._finished(np.concatenate([pending, np.zeros(self._samples(self.options.edges_s), np.float32)]))

    def result(self) -> Joined:
        return Joined(parts=tuple(self._placed), duration_s=self._given / self.sample_rate)

    def _prepared(self, part: Part) -> tuple[Waveform, list[tuple[int, int]]]:
        """The samples of a part as they are joined, and the speech in them."""
        speech = speech_of(part.samples, self.sample_rate)
        if not speech:
            raise ValueError(f"part {part.id!r} has no speech in its {len(part.samples)} samples")
        samples = part.samples.astype(np.float32, copy=False)
        if self.options.trim:
            first, last = speech[0][0], speech[-1][1]
            samples, speech = samples[first:last], [(start - first, end - first) for start, end in speech]
        if self.options.level_dbfs is not None:
            total = sum(float(np.square(samples[start:end], dtype=np.float64).sum()) for start, end in speech)
            rms = math.sqrt(total / sum(end - start for start, end in speech))
            samples = samples * np.float32(10 ** (self.options.level_dbfs / 20) / rms)
        return samples, speech

    def _finished(self, samples: Waveform) -> Waveform:
        """Samples with the noise of their place; counts them as given."""
        options = self.options
        if options.floor_dbfs is not None:
            samples = samples + self._white(len(samples), options.floor_dbfs)
        if options.snr_db is not None and options.level_dbfs is not None:
            level = options.level_dbfs - options.snr_db
            samples = samples + (
                self._white(len(samples), level) if self.noise is None else self._recorded(len(samples), level)
            )
        self._given += len(samples)
        return np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False)

    def _white(self, count: int, dbfs: float) -> Waveform:
        noise: Waveform = self._hiss.standard_normal(count, dtype=np.float32)
        return noise * np.float32(10 ** (dbfs / 20))

    def _recorded(self, count: int, dbfs: float) -> Waveform:
        found = np.take(self._noise, np.arange(self._at, self._at + count), mode="wrap")
        self._at = (self._at + count) % len(self._noise)
        return found * np.float32(10 ** (dbfs / 20))

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.sample_rate)
