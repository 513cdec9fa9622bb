"""Probabilities of speech to segments of speech.

    probabilities (frames,)  ->  [(start, end), ...] in samples

The rules are those of silero-vad (src/silero_vad/utils_vad.py): `segments_of` has those of `get_speech_timestamps` for
whole recordings, `SegmentTracker` those of `VADIterator` for streams. Options have the same meaning and defaults, with
times in seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tritone.options.fields import check_bounds, described, option, parse_parameters

THRESHOLD_GAP = 0.15  # by default speech ends this far below the probability that starts it
LEAST_END_THRESHOLD = 0.01
LEAST_CUT_SILENCE_S = 0.098  # a segment that is too long is cut in a silence longer than this, if it has one


@dataclass(frozen=True, kw_only=True)
class ActivityOptions:
    """How probabilities become segments; see the help of the fields. Streams do not use the lengths of speech."""

    threshold: float = option(
        0.5, "Probability from which a frame is speech.", least=0.01, most=1, flags=("--speech-threshold",)
    )
    end_threshold: float | None = option(
        None,
        "Probability below which speech may end; by default 0.15 below threshold, at least 0.01.",
        least=0,
        most=1,
    )
    min_speech_s: float = option(
        0.25, "Recordings: shorter segments are dropped, in seconds.", least=0, most=3600, unit=" seconds"
    )
    min_silence_s: float = option(
        0.1,
        "Silence that ends a segment, in seconds; shorter silence is part of it.",
        least=0,
        most=3600,
        unit=" seconds",
    )
    padding_s: float = option(
        0.03, "What segments are widened by at both ends, in seconds.", least=0, most=60, unit=" seconds"
    )
    max_segment_s: float = option(
        0.0, "Recordings: longest segment, in seconds; 0: any.", least=0, most=86400, unit=" seconds"
    )

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def end(self) -> float:
        """The probability below which speech may end."""
        if self.end_threshold is not None:
            return self.end_threshold
        return max(self.threshold - THRESHOLD_GAP, LEAST_END_THRESHOLD)

    def changed(self, parameters: Mapping[str, Any]) -> "ActivityOptions":
        """These options with some of them replaced, as a request's parameters ask for; numbers may be text.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        given = {name: value for name, value in parameters.items() if value is not None}
        return replace(self, **parse_parameters(described(ActivityOptions), given))

    def for_streams(self) -> "ActivityOptions":
        """These options without those that streams do not use."""
        usual = ActivityOptions()
        return replace(self, **{name: getattr(usual, name) for name in OF_RECORDINGS})


PARAMETERS = tuple(described(ActivityOptions))  # of a request
OF_RECORDINGS = ("min_speech_s", "max_segment_s")  # not used by streams


def segments_of(
    probabilities: Iterable[float], options: ActivityOptions, *, frame_samples: int, sample_rate: int, num_samples: int
) -> list[tuple[int, int]]:
    """The speech segments of a recording, in order, as (start, end) in samples; they do not overlap.

    Args:
        probabilities: of each frame; the last one may be shorter than the others.
        frame_samples: from one frame to the next.
        sample_rate: in Hz.
        num_samples: length of the recording.
    """
    rate, start_at, end_below = sample_rate, options.threshold, options.end
    min_speech, min_silence, padding = (
        _samples(each, rate) for each in (options.min_speech_s, options.min_silence_s, options.padding_s)
    )
    cut_silence = _samples(LEAST_CUT_SILENCE_S, rate)
    longest = float("inf")
    if options.max_segment_s:
        longest = _samples(options.max_segment_s, rate) - frame_samples - 2 * padding
    found: list[list[int]] = []
    start: int | None = None  # of the segment under way
    silence = 0  # start of the silence at its end; 0: there is none, since speech starts no later than it
    silences: list[tuple[int, int]] = []  # (start, length) of those in the segment, where it may be cut

    for index, probability in enumerate(probabilities):
        now = index * frame_samples
        if probability >= start_at:
            if silence:
                if now - silence > cut_silence:
                    silences.append((silence, now - silence))
                silence = 0
            if start is None:
                start = now
                continue
        if start is not None and now - start > longest:
            if silences:
                cut, length = max(silences, key=lambda each: each[1])
                found.append([start, cut])
                start, silence, silences = cut + length, 0, []
            else:
                found.append([start, now])
                start, silence = None, 0
                continue
        if start is not None and probability < end_below:
            silence = silence or now
            if now - silence >= min_silence:
                if silence - start > min_speech:
                    found.append([start, silence])
                start, silence, silences = None, 0, []
    if start is not None and num_samples - start > min_speech:
        found.append([start, num_samples])
    return _padded(found, padding, num_samples)


def _padded(found: list[list[int]], padding: float, num_samples: int) -> list[tuple[int, int]]:
    """Widen segments; two that are closer than two paddings share what is between them."""
    if found:
        found[0][0] = int(max(0, found[0][0] - padding))
        found[-1][1] = int(min(num_samples, found[-1][1] + padding))
    for before, after in pairwise(found):
        gap = after[0] - before[1]
        if gap < 2 * padding:
            before[1] += gap // 2
            after[0] = max(0, after[0] - gap // 2)
        else:
            before[1] = int(min(num_samples, before[1] + padding))
            after[0] = int(max(0, after[0] - padding))
    return [(start, end) for start, end in found]


class SegmentTracker:
    """The segments of one stream, frame by frame.

    `start`: of the segment under way, in samples, padding included; None outside of speech.
    """

    def __init__(self, options: ActivityOptions, *, frame_samples: int, sample_rate: int) -> None:
        self.start: int | None = None
        self._options = options
        self._frame = frame_samples
        self._min_silence = _samples(options.min_silence_s, sample_rate)
        self._padding = _samples(options.padding_s, sample_rate)
        self._now = 0  # start of the next frame
        self._silence: int | None = None  # start of the silence at the end of the segment

    def take(self, probabilities: Iterable[float]) -> list[tuple[int, int]]:
        """Take the next frames; returns the segments that they end, as (start, end) in samples."""
        ended = []
        for probability in probabilities:
            now, self._now = self._now, self._now + self._frame
            if probability >= self._options.threshold:
                self._silence = None
                if self.start is None:
                    self.start = int(max(0, now - self._padding))
            elif self.start is not None and probability < self._options.end:
                if self._silence is None:
                    self._silence = now
                if now - self._silence >= self._min_silence:
                    ended.append((self.start, int(self._silence + self._padding)))
                    self.start = self._silence = None
        return ended

    def finish(self, num_samples: int) -> list[tuple[int, int]]:
        """End the stream; returns the segment under way, which ends with the audio."""
        ended = [] if self.start is None else [(self.start, num_samples)]
        self.start = self._silence = None
        return ended


def _samples(seconds: float, sample_rate: int) -> float:
    """Seconds in samples; 0.035 s at 16 kHz are 560, not a little more."""
    return round(seconds * sample_rate, 6)
