"""Diarization and Jaccard error rates, against numbers by hand and pyannote.metrics."""

import warnings
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.diarization.assignment import best_pairs
from tritone.diarization.error_rates import Errors, score_turns, sum_errors
from tritone.formats.rttm import Turn

# Times in hundredths of a second: pieces shorter than a microsecond count differently in pyannote.
TURNS = st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 600), st.sampled_from("abcd")), max_size=12).map(
    lambda each: [Turn("r", start / 100, (start + length) / 100, speaker) for start, length, speaker in each]
)


def turns(*parts: tuple[float, float, str]) -> list[Turn]:
    return [Turn("r", *part) for part in parts]


def test_each_kind_of_error_is_counted_in_seconds_and_labels_are_matched() -> None:
    reference = turns((0, 10, "anna"), (10, 20, "ben"))
    hypothesis = turns((1, 12, "x"), (12, 20, "y"), (20, 21, "y"))
    found = score_turns(reference, hypothesis)
    assert found == Errors(
        total_s=20,
        missed_s=1,
        false_alarm_s=1,
        confusion_s=2,
        speakers=2,
        jaccard=pytest.approx((1 - 9 / 12) + (1 - 8 / 11)),
    )
    assert found.der == pytest.approx(4 / 20)
    assert found.jer == pytest.approx(((1 - 9 / 12) + (1 - 8 / 11)) / 2)


def test_a_collar_and_overlap_are_left_out() -> None:
    reference = turns((0, 10, "anna"), (8, 20, "ben"))
    hypothesis = turns((0, 9, "x"), (9, 20, "y"))
    assert score_turns(reference, hypothesis).missed_s == pytest.approx(2)
    assert score_turns(reference, hypothesis, skip_overlap=True).der == 0
    assert score_turns(reference, hypothesis, collar_s=1).missed_s == 0
    assert score_turns(reference, hypothesis, scored=[(0, 5), (9.5, 20)]).missed_s == pytest.approx(0.5)


def test_nothing_on_one_side_is_no_error_or_all_of_it() -> None:
    speech = turns((0, 1, "anna"))
    assert score_turns([], []) == Errors()
    assert (score_turns([], []).der, score_turns([], []).jer) == (0, 0)
    assert (score_turns([], speech).der, score_turns(speech, []).der) == (1, 1)
    assert score_turns(speech, []).jer == 1


def test_sums_weigh_recordings_by_their_speech() -> None:
    total = sum_errors(
        [Errors(total_s=9, missed_s=1, speakers=1), Errors(total_s=1, missed_s=1, speakers=1, jaccard=1)]
    )
    assert (total.der, total.jer) == (0.2, 0.5)


def test_a_negative_collar_is_refused() -> None:
    with pytest.raises(ValueError, match="collar_s must be 0 or more, got -1"):
        score_turns([], [], collar_s=-1)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_pairs_have_the_greatest_sum(rows: int, columns: int, seed: int) -> None:
    gains = np.random.default_rng(seed).integers(-3, 9, (rows, columns))
    pairs = best_pairs(gains)
    assert len(pairs) == min(rows, columns) == len({row for row, _ in pairs}) == len({column for _, column in pairs})
    wide = gains if rows <= columns else gains.T
    best = max(
        sum(wide[row, column] for row, column in enumerate(each))
        for each in permutations(range(wide.shape[1]), len(wide))
    )
    assert sum(gains[pair] for pair in pairs) == best


@pytest.mark.slow  # imports pyannote.metrics
@settings(max_examples=examples(25), deadline=None)
@given(
    TURNS, TURNS, st.sampled_from([0.0, 0.05, 0.25]), st.booleans(), st.sampled_from([None, [(1.0, 9.0), (12.0, 30.0)]])
)
def test_error_rates_are_those_of_pyannote(
    reference: list[Turn],
    hypothesis: list[Turn],
    collar_s: float,
    skip_overlap: bool,
    scored: Sequence[tuple[float, float]] | None,
) -> None:
    core = pytest.importorskip("pyannote.core")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diarization = pytest.importorskip("pyannote.metrics.diarization")

        def annotation(turns: Sequence[Turn]) -> object:
            made = core.Annotation()
            for number, each in enumerate(turns):
                made[core.Segment(each.start_s, each.end_s), number] = each.speaker
            return made

        uem = None if scored is None else core.Timeline([core.Segment(*each) for each in scored])
        sides = annotation(reference), annotation(hypothesis)
        options = {"collar": 2 * collar_s, "skip_overlap": skip_overlap}
        metric = diarization.DiarizationErrorRate(**options)
        theirs = metric.compute_components(*sides, uem=uem)
        first, second = metric.uemify(*sides, uem=uem, **options)
        jaccard = diarization.JaccardErrorRate(**options).compute_components(*sides, uem=uem)
    ours = score_turns(reference, hypothesis, collar_s=collar_s, skip_overlap=skip_overlap, scored=scored)
    assert ours.total_s == pytest.approx(theirs["total"], abs=1e-6)
    assert ours.missed_s == pytest.approx(theirs["missed detection"], abs=1e-6)
    assert ours.false_alarm_s == pytest.approx(theirs["false alarm"], abs=1e-6)
    assert ours.confusion_s == pytest.approx(theirs["confusion"], abs=1e-6)
    assert ours.speakers == jaccard["speaker count"]
    if len(best_mappings(first * second)) == 1:  # of several each tool takes one that it finds
        assert ours.jaccard == pytest.approx(jaccard["speaker error"], abs=1e-6)


def best_mappings(together: npt.NDArray[np.float64]) -> set[frozenset[tuple[int, int]]]:
    """The pairs of speakers with the greatest sum of seconds together, without those that never are."""
    size = max(together.shape, default=0)
    square = np.zeros((size, size))
    square[: together.shape[0], : together.shape[1]] = together
    sums = {each: sum(square[row, column] for row, column in enumerate(each)) for each in permutations(range(size))}
    best = max(sums.values())
    return {
        frozenset(pair for pair in enumerate(each) if square[pair] > 0) for each in sums if sums[each] > best - 1e-6
    }
