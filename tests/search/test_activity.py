"""Probabilities to segments, by hand and against the package silero-vad."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from silero import package
from tritone.errors import InputError
from tritone.search.activity import ActivityOptions, SegmentTracker, segments_of

FRAME, RATE = 512, 16000
QUIET, LOUD, BETWEEN = 0.0, 0.9, 0.4


def found(probabilities: list[float], num_samples: int | None = None, **options: float) -> list[tuple[int, int]]:
    length = len(probabilities) * FRAME if num_samples is None else num_samples
    return segments_of(
        probabilities, ActivityOptions(**options), frame_samples=FRAME, sample_rate=RATE, num_samples=length
    )


def test_a_segment_is_widened_at_both_ends() -> None:
    assert found([QUIET] * 4 + [LOUD] * 20 + [QUIET] * 8) == [(4 * FRAME - 480, 24 * FRAME + 480)]


def test_short_silence_is_part_of_a_segment_and_short_speech_is_dropped() -> None:
    # 0.1 s of silence are 1600 samples: four frames of it are enough, and three are not.
    assert found([LOUD] * 10 + [QUIET] * 3 + [LOUD] * 10, padding_s=0) == [(0, 23 * FRAME)]
    assert found([LOUD] * 10 + [QUIET] * 5 + [LOUD] * 10, padding_s=0) == [(0, 10 * FRAME), (15 * FRAME, 25 * FRAME)]
    assert found([QUIET] * 4 + [LOUD] * 7 + [QUIET] * 9) == []
    assert found([QUIET] * 4 + [LOUD] * 7 + [QUIET] * 9, min_speech_s=0.2, padding_s=0) == [(4 * FRAME, 11 * FRAME)]


def test_speech_ends_below_another_probability_than_it_starts_at() -> None:
    assert found([LOUD] * 10 + [BETWEEN] * 10 + [QUIET] * 5, padding_s=0) == [(0, 20 * FRAME)]
    assert found([LOUD] * 10 + [BETWEEN] * 10 + [QUIET] * 5, padding_s=0, end_threshold=0.45) == [(0, 10 * FRAME)]


def test_the_end_of_the_audio_ends_a_segment() -> None:
    assert found([QUIET] * 2 + [LOUD] * 10, num_samples=12 * FRAME - 100) == [(2 * FRAME - 480, 12 * FRAME - 100)]
    assert found([]) == []


def test_two_segments_share_a_gap_that_is_shorter_than_their_padding() -> None:
    first, second = found([LOUD] * 10 + [QUIET] * 5 + [LOUD] * 10, padding_s=0.2)
    assert first == (0, 10 * FRAME + 1280)
    assert second == (15 * FRAME - 1280, 25 * FRAME)


def test_a_long_segment_is_cut_in_its_longest_silence_else_at_the_limit() -> None:
    speech = [LOUD] * 20 + [QUIET] * 4 + [LOUD] * 20 + [QUIET] * 5 + [LOUD] * 20
    cut = found(speech, max_segment_s=2.0, min_silence_s=10.0, padding_s=0)
    assert cut == [(0, 44 * FRAME), (49 * FRAME, 69 * FRAME)]
    whole = found([LOUD] * 50, max_segment_s=1.0, padding_s=0)
    assert whole[0] == (0, 31 * FRAME)
    assert all(end - start <= RATE for start, end in whole)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"threshold": 2}, "threshold must be 0.01 to 1"),
        ({"min_silence_s": -1}, "min_silence_s must be 0 to 3600 seconds"),
        ({"padding_s": float("nan")}, "padding_s must be"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options: dict[str, float], told: str) -> None:
    with pytest.raises(InputError, match=told):
        ActivityOptions(**options)
    with pytest.raises(InputError, match="unknown request parameter 'volume'; known are threshold"):
        ActivityOptions().changed({"volume": 11})


def recordings(count: int) -> Iterator[tuple[np.random.Generator, list[float]]]:
    """Probabilities that stay the same for some frames, many of them at a threshold; and a source of choices."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        runs = rng.integers(0, 40)
        levels = np.where(rng.random(runs) < 0.5, rng.random(runs), rng.choice([0.0, 0.34, 0.35, 0.5, 1.0], runs))
        yield rng, np.repeat(levels, rng.integers(1, 10, runs)).tolist()


def test_segments_are_those_of_the_package() -> None:
    theirs_of = package().get_speech_timestamps_from_probs
    lengths = []
    for rng, probabilities in recordings(600):
        rate = int(rng.choice([8000, 16000]))
        frame = rate * 32 // 1000
        length = max(0, len(probabilities) * frame - int(rng.integers(0, 200)))
        threshold, end_threshold = rng.choice([0.2, 0.5, 0.7]), rng.choice([None, 0.1, 0.5])
        min_speech_ms, min_silence_ms = int(rng.choice([0, 35, 250, 1000])), int(rng.choice([0, 64, 100, 500]))
        pad_ms, longest_s = int(rng.choice([0, 30, 35, 200])), rng.choice([0, 0.5, 1.0, 2.5])
        theirs = theirs_of(
            probabilities,
            sampling_rate=rate,
            threshold=threshold,
            neg_threshold=end_threshold,
            min_speech_duration_ms=min_speech_ms,
            min_silence_duration_ms=min_silence_ms,
            speech_pad_ms=pad_ms,
            max_speech_duration_s=longest_s or float("inf"),
            audio_length_samples=length,
        )
        options = ActivityOptions(
            threshold=threshold,
            end_threshold=end_threshold,
            min_speech_s=min_speech_ms / 1000,
            min_silence_s=min_silence_ms / 1000,
            padding_s=pad_ms / 1000,
            max_segment_s=longest_s,
        )
        ours = segments_of(probabilities, options, frame_samples=frame, sample_rate=rate, num_samples=length)
        assert ours == [(each["start"], each["end"]) for each in theirs]
        lengths.append(len(ours))
    assert max(lengths) > 10


class Spoken:
    """A model that says what it was given."""

    def reset_states(self) -> None: ...

    def __call__(self, samples: Any, rate: int) -> Any:
        return samples[0].double()


def test_streams_have_the_starts_and_ends_of_the_packages_iterator() -> None:
    iterator_of = package().VADIterator
    for rng, probabilities in recordings(100):
        threshold, min_silence_ms = rng.choice([0.3, 0.5, 0.7]), int(rng.choice([0, 64, 100, 500]))
        pad_ms = int(rng.choice([0, 30, 200]))
        iterator = iterator_of(
            Spoken(), threshold=threshold, min_silence_duration_ms=min_silence_ms, speech_pad_ms=pad_ms
        )
        theirs = []
        for each in probabilities:
            frame = torch.zeros(FRAME, dtype=torch.float64)
            frame[0] = each
            theirs += (iterator(frame) or {}).items()
        options = ActivityOptions(threshold=threshold, min_silence_s=min_silence_ms / 1000, padding_s=pad_ms / 1000)
        tracker = SegmentTracker(options, frame_samples=FRAME, sample_rate=RATE)
        segments = [segment for each in probabilities for segment in tracker.take([each])]
        ours = [each for start, end in segments for each in (("start", start), ("end", end))]
        if tracker.start is not None:
            ours.append(("start", tracker.start))
            assert tracker.finish(10**6) == [(ours[-1][1], 10**6)]
        assert ours == theirs
