"""Scores of voice activity: by hand, against counted milliseconds, and their sums."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.activity import SpeechSegment
from tritone.evaluate.activity import ActivityScore, score_activity


def speech(*spans: tuple[float, float]) -> list[SpeechSegment]:
    return [SpeechSegment(start, end) for start, end in spans]


def test_a_score_by_hand() -> None:
    score = score_activity(speech((1, 3), (5, 6)), speech((1.25, 3.5), (8, 9)), 10)
    assert (score.speech_s, score.silence_s) == (3, 7)
    assert (score.missed_s, score.false_s) == (1.25, 1.5)
    assert score.missed == pytest.approx(1.25 / 3)
    assert score.false_alarm == pytest.approx(1.5 / 7)
    assert score.detection_error == pytest.approx(2.75 / 3)
    assert (score.starts, score.ends) == ((0.25,), (0.5,))
    assert (score.missed_boundaries, score.false_boundaries) == (2, 2)
    assert score.boundary_error_s(50) == pytest.approx(0.375)


def test_what_is_right_has_no_errors() -> None:
    score = score_activity(speech((0, 1), (2, 3)), speech((2, 3), (0, 0.5), (0.5, 1)), 3)
    assert (score.missed_s, score.false_s, score.missed_boundaries, score.false_boundaries) == (0, 0, 0, 0)
    assert (score.starts, score.ends) == ((0, 0), (0, 0))


def test_a_collar_forgives_boundaries_that_are_a_little_off() -> None:
    score = score_activity(speech((1, 3)), speech((0.9, 3.2)), 5, collar_s=0.1)
    assert (score.speech_s, score.silence_s) == (pytest.approx(1.8), pytest.approx(2.8))
    assert (score.missed_s, score.false_s) == (0, pytest.approx(0.1))


def test_a_boundary_has_at_most_one_partner() -> None:
    score = score_activity(speech((1, 2), (2.2, 4)), speech((1.1, 4)), 5)
    assert (score.starts, score.ends) == ((pytest.approx(0.1),), (0,))
    assert (score.missed_boundaries, score.false_boundaries) == (2, 0)


def test_without_speech_or_silence_rates_are_told_apart_from_errors() -> None:
    nothing = score_activity([], [], 2)
    assert (nothing.missed, nothing.false_alarm, nothing.detection_error) == (0, 0, 0)
    assert math.isnan(nothing.boundary_error_s(50))
    alarm = score_activity([], speech((0, 1)), 2)
    assert (alarm.false_alarm, alarm.detection_error, alarm.false_boundaries) == (0.5, math.inf, 2)
    deaf = score_activity(speech((0, 9)), [], 2)
    assert (deaf.missed, deaf.speech_s, deaf.silence_s, deaf.false_alarm) == (1, 2, 0, 0)
    for values in ((-1, 0), (1, -1), (math.nan, 0)):
        with pytest.raises(ValueError, match="lengths must be at least 0 s"):
            score_activity([], [], values[0], collar_s=values[1])


MILLISECONDS = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 1500)), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(MILLISECONDS, MILLISECONDS, st.integers(0, 300))
def test_seconds_are_those_that_are_counted_one_by_one(
    true: list[tuple[int, int]], found: list[tuple[int, int]], collar: int
) -> None:
    length = 5000
    marked = np.zeros((2, length), bool)
    for row, spans in zip(marked, (true, found), strict=True):
        for start, size in spans:
            row[start : start + size] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked[0], [False]]).astype(int)))
    scored = np.ones(length, bool)
    for edge in edges:
        scored[max(0, edge - collar) : edge + collar] = False
    score = score_activity(
        speech(*((start / 1000, (start + size) / 1000) for start, size in true)),
        speech(*((start / 1000, (start + size) / 1000) for start, size in found)),
        length / 1000,
        collar_s=collar / 1000,
    )
    counts = (marked[0], ~marked[0], marked[0] & ~marked[1], ~marked[0] & marked[1])
    told = (score.speech_s, score.silence_s, score.missed_s, score.false_s)
    assert told == tuple(pytest.approx((each & scored).sum() / 1000, abs=1e-9) for each in counts)


def test_scores_of_recordings_add_up() -> None:
    first = score_activity(speech((1, 3)), speech((1.5, 3)), 5)
    second = score_activity(speech((0, 1)), speech((0, 1), (2, 3)), 4)
    both = first + second
    assert isinstance(both, ActivityScore)
    assert (both.speech_s, both.silence_s, both.missed_s, both.false_s) == (3, 6, 0.5, 1)
    assert (both.starts, both.ends, both.missed_boundaries, both.false_boundaries) == ((0.5, 0), (0, 0), 0, 2)


@pytest.mark.slow
def test_the_detection_error_is_that_of_pyannote() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        core = pytest.importorskip("pyannote.core")
        detection = pytest.importorskip("pyannote.metrics.detection")
        rng = np.random.default_rng(0)
        for collar_s in (0.0, 0.1, 0.25) * 5:
            times = [np.cumsum(rng.uniform(0.3, 4, 2 * rng.integers(1, 8))).reshape(-1, 2) for _ in range(2)]
            marked = [core.Annotation() for _ in times]
            for annotation, spans in zip(marked, times, strict=True):
                for start, end in spans:
                    annotation[core.Segment(start, end)] = "speech"
            whole = core.Timeline([core.Segment(0, 60)])
            theirs = detection.DetectionErrorRate(collar=2 * collar_s)(*marked, uem=whole)
            true, found = (speech(*map(tuple, spans)) for spans in times)
            ours = score_activity(true, found, 60, collar_s=collar_s)
            assert ours.detection_error == pytest.approx(theirs, abs=1e-9)
