"""Frames in which speakers talk become turns; expected turns are counted by hand."""

import numpy as np
import pytest

from tritone.diarization.activity import ActivityTurns, TurnRules, turns_of_activity
from tritone.formats.rttm import Turn

Spans = list[tuple[float, float, str]]


def spans(turns: list[Turn]) -> Spans:
    return [(round(each.start_s, 6), round(each.end_s, 6), each.speaker) for each in turns]


def test_speakers_who_talk_at_once_have_turns_that_overlap() -> None:
    activity = np.array([[0, 0], [1, 0], [1, 1], [1, 1], [0, 1], [0, 0], [1, 0]])
    found = turns_of_activity(activity, 0.5, recording="call")
    assert spans(found) == [(0.5, 2.0, "speaker1"), (1.0, 2.5, "speaker2"), (3.0, 3.5, "speaker1")]
    assert {each.recording for each in found} == {"call"}
    assert spans(turns_of_activity(activity, 0.5, start_s=10.0, speakers=("a", "b")))[0] == (10.5, 12.0, "a")
    assert turns_of_activity(np.zeros((0, 2)), 0.5) == []


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (TurnRules(), [(1, 3), (5, 6), (9, 10)]),
        (TurnRules(onset=0.5, offset=0.3), [(1, 4), (5, 6), (9, 10)]),
        (TurnRules(onset=0.7), [(1, 3), (5, 6)]),
        (TurnRules(min_pause_s=2), [(1, 3), (5, 6), (9, 10)]),
        (TurnRules(min_pause_s=2.5), [(1, 6), (9, 10)]),
        (TurnRules(min_turn_s=1.5), [(1, 3)]),
        (TurnRules(min_pause_s=2.5, min_turn_s=1.5), [(1, 6)]),
        (TurnRules(pad_onset_s=1, pad_offset_s=1), [(0, 7), (8, 11)]),
        (TurnRules(pad_onset_s=2, pad_offset_s=0.5), [(0, 6.5), (7, 10.5)]),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 100])
def test_rules_close_pauses_and_drop_what_is_short_however_frames_are_divided(
    rules: TurnRules, expected: list[tuple[float, float]], step: int
) -> None:
    activity = np.array([0, 0.9, 0.6, 0.4, 0, 0.8, 0.2, 0.1, 0, 0.6, 0, 0, 0, 0])[:, None]
    turns = ActivityTurns(["anna"], 1.0, rules=rules)
    found = [each for start in range(0, len(activity), step) for each in turns.accept(activity[start : start + step])]
    assert spans(found + turns.finish()) == [(start, end, "anna") for start, end in expected]
    assert turns.now_s == len(activity)


def test_a_turn_is_given_when_its_pause_is_long_enough_and_is_under_way_before() -> None:
    turns = ActivityTurns(["a", "b"], 0.1, rules=TurnRules(min_pause_s=0.2))
    assert turns.accept([[1, 0], [1, 1]]) == []
    assert spans(turns.under_way) == [(0.0, 0.2, "a"), (0.1, 0.2, "b")]
    assert turns.accept([[0, 1]]) == []
    assert spans(turns.under_way) == [(0.0, 0.2, "a"), (0.1, 0.3, "b")]
    assert spans(turns.accept([[0, 1]])) == [(0.0, 0.2, "a")]
    assert spans(turns.finish()) == [(0.1, 0.4, "b")]
    assert turns.finish() == turns.under_way == []


def test_what_is_no_activity_of_these_speakers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"activity must be \(frames, 2\), got \(4, 3\)"):
        ActivityTurns(["a", "b"], 0.1).accept(np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"offset \(0.6\) must not be above onset \(0.5\)"):
        TurnRules(offset=0.6)
