"""Whether the answers that were timed are right. Error counts are worked out by hand."""

import numpy as np
import pytest

from tritone.evaluate.normalize import Normalization
from tritone.loadtest.workload.answers import judge
from tritone.loadtest.workload.workload import Workload


def workload(*references: str | None) -> Workload:
    waveforms = [np.zeros(1, np.float32)] * len(references)
    return Workload(seconds="files", sample_rate=8000, waveforms=waveforms, references=references)


def test_right_answers_have_no_errors_and_no_remarks():
    verdict = judge({(0, "one two"): 5, (1, "three"): 4}, workload("one two", "three"))
    assert verdict.wer == 0
    assert verdict.wer_words == 5 * 2 + 4
    assert (verdict.different_texts, verdict.notes) == (0, ())


def test_errors_count_as_often_as_they_were_given():
    texts = {(0, "one two"): 3, (0, "one too many"): 1, (1, ""): 2}
    verdict = judge(texts, workload("one two", "three"))
    # "one too many": a substitution and an insertion; "" for "three": a deletion, twice
    assert verdict.wer == pytest.approx((2 + 2) / (4 * 2 + 2 * 1))
    assert verdict.wer_words == 10
    assert verdict.different_texts == 1
    assert verdict.notes == ("1 of 2 recordings got more than one text, for example 'one two' / 'one too many'",)


def test_recordings_without_a_reference_are_left_out():
    verdict = judge({(0, "one"): 1, (1, "anything"): 1}, workload("one", None))
    assert (verdict.wer, verdict.wer_words) == (0, 1)
    assert judge({(1, "anything"): 1}, workload("one", None)).wer is None


def test_without_references_there_is_no_error_rate_but_contradictions_are_seen():
    verdict = judge({(0, "a"): 9, (0, "b"): 1, (1, "c"): 9}, workload(None, None))
    assert verdict.wer is None
    assert verdict.different_texts == 1


def test_normalisation_is_the_callers():
    texts, pool = {(0, "One, two"): 1}, workload("one two")
    assert judge(texts, pool).wer == 0
    strict = judge(texts, pool, Normalization(case="keep", punctuation="keep"))
    assert strict.wer is not None
    assert strict.wer > 0


def test_a_server_that_says_the_same_or_nothing_to_everything_is_remarked_upon():
    pool = workload(None, None)
    assert judge({(0, "hello"): 1, (1, "hello"): 2}, pool).notes == ("all 2 recordings got the same text: 'hello'",)
    assert judge({(0, ""): 1, (1, ""): 2}, pool).notes == ("every text was empty",)
    assert judge({(0, "hello"): 1}, workload(None)).notes == ()
    assert judge({}, pool).notes == ()
