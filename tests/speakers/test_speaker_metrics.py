"""Error rates and costs against brute force over all thresholds; intervals; pictures."""

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import InputError, OperatorError
from tritone.speakers.det import check_picture, draw_det, save_picture
from tritone.speakers.metrics import Cost, ErrorCurve, evaluate
from tritone.speakers.score_file import Scores
from tritone.speakers.trials import Trials

scored = st.tuples(
    st.lists(st.integers(-4, 6), min_size=1, max_size=15), st.lists(st.integers(-6, 4), min_size=1, max_size=15)
)


def curve_of(targets: list[int], others: list[int], seed: int = 0) -> ErrorCurve:
    """The curve of these scores, in any order."""
    order = np.random.default_rng(seed).permutation(len(targets) + len(others))
    labels = np.array([True] * len(targets) + [False] * len(others))
    return ErrorCurve.of(labels[order], np.array(targets + others, dtype=np.float64)[order])


def points(targets: list[int], others: list[int]) -> list[tuple[Fraction, Fraction]]:
    """Misses and false alarms at each threshold that can be told from another one: refuse what is not above it."""
    return [
        (
            Fraction(sum(score <= threshold for score in targets), len(targets)),
            Fraction(sum(score > threshold for score in others), len(others)),
        )
        for threshold in [-1000, *sorted({*targets, *others})]
    ]


def brute_eer(targets: list[int], others: list[int]) -> Fraction:
    """Where the polygon through all points meets the diagonal, in exact numbers."""
    corners = points(targets, others)
    for (miss_1, alarm_1), (miss_2, alarm_2) in itertools.pairwise(corners):
        if miss_1 < alarm_1 and miss_2 >= alarm_2:
            share = (alarm_1 - miss_1) / ((miss_2 - miss_1) + (alarm_1 - alarm_2))
            return miss_1 + share * (miss_2 - miss_1)
    raise AssertionError("the ends of a curve lie on both sides of the diagonal")


@settings(max_examples=examples(100), deadline=None)
@given(scored, st.integers(0, 3))
def test_the_equal_error_rate_is_that_of_all_thresholds_in_any_order_of_trials(
    scores: tuple[list[int], list[int]], seed: int
) -> None:
    assert curve_of(*scores, seed).eer().value == pytest.approx(float(brute_eer(*scores)), abs=1e-12)


@settings(max_examples=examples(100), deadline=None)
@given(
    scored, st.sampled_from([0.001, 0.01, 0.05, 0.5, 0.9]), st.sampled_from([1.0, 10.0]), st.sampled_from([1.0, 3.0])
)
def test_the_least_cost_is_that_of_all_thresholds(
    scores: tuple[list[int], list[int]], p_target: float, c_miss: float, c_fa: float
) -> None:
    costs = [
        (c_miss * p_target * float(miss) + c_fa * (1 - p_target) * float(alarm))
        / min(c_miss * p_target, c_fa * (1 - p_target))
        for miss, alarm in points(*scores)
    ]
    found = curve_of(*scores).min_dcf(Cost(p_target, c_miss, c_fa))
    assert found.value == pytest.approx(min(costs), abs=1e-12)
    assert found.value <= 1 + 1e-12


def upstream(targets: list[int], others: list[int], cost: Cost) -> tuple[float, float]:
    """The definition in WeSpeaker's compute_metrics.py, with a point for each trial."""
    ordered = sorted([(score, True) for score in targets] + [(score, False) for score in others])
    misses = np.cumsum([label for _, label in ordered]) / len(targets)
    alarms = 1 - np.cumsum([not label for _, label in ordered]) / len(others)
    after = int(np.flatnonzero(misses - alarms >= 0)[0])
    before = int(np.flatnonzero(misses - alarms < 0)[-1])
    share = (misses[after] - alarms[after]) / (alarms[before] - alarms[after] - (misses[before] - misses[after]))
    costs = cost.c_miss * misses * cost.p_target + cost.c_fa * alarms * (1 - cost.p_target)
    least = costs.min() / min(cost.c_miss * cost.p_target, cost.c_fa * (1 - cost.p_target))
    return misses[after] + share * (misses[before] - misses[after]), least


@settings(max_examples=examples(100), deadline=None)
@given(scored)
def test_without_a_score_of_both_kinds_the_figures_are_upstreams(scores: tuple[list[int], list[int]]) -> None:
    targets, others = [2 * each + 1 for each in scores[0]], [2 * each for each in scores[1]]
    others += [min(targets) - 1, min(targets) - 3]  # upstream has no point at which all are accepted, and may need it
    curve, cost = curve_of(targets, others), Cost(0.05)
    assert (curve.eer().value, curve.min_dcf(cost).value) == pytest.approx(upstream(targets, others, cost), abs=1e-12)


def test_a_perfect_system_errs_never_and_a_deaf_one_half_the_time() -> None:
    assert curve_of([3, 4], [1, 2]).eer().value == 0
    assert curve_of([3, 4], [1, 2]).min_dcf(Cost()).value == 0
    assert curve_of([1] * 5, [1] * 7).eer().value == 0.5
    assert curve_of([1] * 5, [1] * 7).min_dcf(Cost()).value == 1
    assert curve_of([1], [2]).eer().value == 1


@pytest.mark.parametrize(
    ("labels", "scores", "complaint"),
    [
        ([True], [1.0], "1 target and 0 non-target trials"),
        ([False, False], [1.0, 2.0], "0 target and 2 non-target trials"),
        ([], [], "0 target and 0 non-target"),
        ([True, False], [1.0, float("nan")], "1 of 2 scores are not finite"),
        ([True, False], [float("inf"), 1.0], "1 of 2 scores are not finite"),
    ],
)
def test_trials_that_have_no_error_rates_are_refused(labels: list[bool], scores: list[float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ErrorCurve.of(np.array(labels, dtype=bool), scores)


@pytest.mark.parametrize("wrong", [{"p_target": 0.0}, {"p_target": 1.0}, {"c_miss": 0.0}, {"c_fa": float("inf")}])
def test_costs_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Cost(**wrong)


def simulated(speakers: int, each: int, seed: int, spread: float = 1.0) -> Scores:
    """All pairs of recordings of speakers that are hard or easy to know, with scores that lie on a line."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(speakers), each)
    left, right = np.triu_indices(len(owner), 1)
    same = owner[left] == owner[right]
    habit = rng.normal(size=speakers) * spread
    values = rng.normal(size=len(left)) + 2 * same + 0.5 * (habit[owner[left]] + habit[owner[right]])
    names = tuple(f"{speaker}-{index}" for index, speaker in enumerate(owner))
    return Scores(Trials(names, names, left.astype(np.int32), right.astype(np.int32), same), values)


def owners(scores: Scores) -> dict[str, str]:
    return {name: name.split("-")[0] for name in scores.trials.enrol_names}


def test_an_interval_holds_the_true_rate_about_as_often_as_it_says() -> None:
    truth = evaluate(simulated(300, 4, seed=99), [], resamples=0).eer.value
    held = 0
    for seed in range(24):
        scores = simulated(20, 3, seed)
        interval = evaluate(scores, [], speakers=owners(scores), resamples=80, seed=seed).eer.interval
        assert interval is not None
        held += interval.low <= truth <= interval.high
    # 95 % of 24 is 23 with a deviation of 1.1; the bootstrap of few speakers is a little off
    assert held >= 20


def test_speakers_that_differ_make_wider_intervals_than_recordings_tell() -> None:
    scores = simulated(12, 10, seed=3, spread=2.0)
    by_recording = evaluate(scores, [], resamples=150).eer.interval
    by_speaker = evaluate(scores, [], speakers=owners(scores), resamples=150).eer.interval
    assert by_recording is not None
    assert by_speaker is not None
    assert by_speaker.high - by_speaker.low > 1.3 * (by_recording.high - by_recording.low)


def test_the_same_trials_have_the_same_intervals_and_one_for_each_figure() -> None:
    scores = simulated(8, 3, seed=1)
    costs = [Cost(0.01), Cost(0.5)]
    first, second = (evaluate(scores, costs, resamples=50) for _ in range(2))
    assert (first.eer, first.min_dcfs) == (second.eer, second.min_dcfs)
    for figure in (first.eer, *first.min_dcfs.values()):
        assert figure.interval is not None
        assert figure.interval.low <= figure.interval.high
    assert evaluate(scores, costs, resamples=0).eer.interval is None


def test_two_trials_have_figures_and_no_intervals() -> None:
    where = np.array([0, 1], dtype=np.int32)
    scores = Scores(Trials(("a", "b"), ("a", "b"), where, where, np.array([True, False])), np.array([1.0, 0.0]))
    assert evaluate(scores, [Cost()]).eer.interval is None


def test_no_errors_at_all_have_no_interval_as_they_tell_little() -> None:
    scores = simulated(8, 3, seed=1)
    assert scores.trials.targets is not None
    perfect = evaluate(Scores(scores.trials, scores.trials.targets.astype(np.float64)), [Cost()], resamples=50)
    assert (perfect.eer.value, perfect.eer.interval, perfect.min_dcfs[Cost()].interval) == (0, None, None)


def test_a_name_of_no_speaker_and_trials_without_labels_are_told() -> None:
    scores = simulated(4, 2, seed=1)
    with pytest.raises(InputError, match="8 names of the trials are of no speaker in the list: 0-0, 0-1, 1-2 and more"):
        evaluate(scores, [], speakers={"other": "x"})
    bare = Scores(Trials(("a",), ("b",), np.zeros(1, np.int32), np.zeros(1, np.int32)), np.zeros(1))
    with pytest.raises(InputError, match="no labels"):
        evaluate(bare, [])


def test_a_long_curve_is_thinned_without_losing_its_ends() -> None:
    rng = np.random.default_rng(0)
    labels = rng.random(50_000) < 0.3
    curve = ErrorCurve.of(labels, rng.normal(size=50_000) + labels)
    misses, alarms = curve.thinned(500)
    assert 300 < len(misses) <= 502
    assert (misses[0], alarms[0], misses[-1], alarms[-1]) == (0, 1, 1, 0)


def test_a_picture_is_drawn_of_a_curve_that_has_no_errors(tmp_path: Path) -> None:
    scores = simulated(6, 3, seed=2)
    assert scores.trials.targets is not None
    scores = Scores(scores.trials, scores.trials.targets.astype(np.float64))
    figure = draw_det(evaluate(scores, [Cost(0.01), Cost(0.05, 10)], resamples=0), scores, title="$x_1")
    save_picture(figure, tmp_path / "d.png")
    save_picture(figure, tmp_path / "d.svg")
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "d.svg").read_bytes()
    with pytest.raises(ValueError, match=r"neither \.png nor \.svg"):
        check_picture(tmp_path / "d.gif")
    with pytest.raises(OperatorError, match="cannot write"):
        save_picture(figure, tmp_path / "none" / "d.png")
