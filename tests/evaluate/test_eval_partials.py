"""Stability of partial results, against their definitions and examples done by hand."""

import json
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.evaluate.normalize import Normalizer
from tritone.evaluate.partials import (
    Answer,
    SetStability,
    StreamStability,
    measure_partials,
    pack_answers,
    unpack_answers,
)

TEXTS = st.lists(st.lists(st.sampled_from(["a", "b", "ab"]), max_size=5), min_size=1, max_size=8)


def stream(*texts: str) -> list[Answer]:
    """An answer every second to audio that was spoken half a second before."""
    return [Answer(number - 0.5, float(number), text) for number, text in enumerate(texts, start=1)]


def test_a_word_that_is_taken_back_costs_two_edits_and_is_unstable_once() -> None:
    found = measure_partials(stream("", "a b", "a b", "a c d", "a c d e"))
    assert (found.partials, found.changes, found.final_words, found.unstable_words) == (4, 2, 4, 1)
    assert found.unstable_ratio == 1 / 4
    assert found.edit_overhead == 2 / 6  # added a b c d e, b again taken back; four additions were needed
    assert found.first_partial_s == 2.0
    assert found.final_s == 0.5
    assert found.lags_s == (0.0, 0.0, 0.0, 0.0)


def test_a_word_that_flickers_is_stable_from_the_last_time_it_comes() -> None:
    found = measure_partials(stream("six", "sick", "six", "six two", "six too", "six two"))
    assert found.lags_s == (2.0, 2.0)
    assert found.stability_lag_s == 2.0
    assert found.unstable_words == 4


def test_a_stream_that_only_grows_is_perfectly_stable() -> None:
    found = measure_partials(stream("a", "a b", "a b c"))
    assert (found.unstable_ratio, found.edit_overhead, found.stability_lag_s) == (0.0, 0.0, 0.0)


def test_a_stream_that_takes_everything_back_is_all_overhead() -> None:
    found = measure_partials(stream("hello", ""))
    assert (found.unstable_ratio, found.edit_overhead, found.stability_lag_s) == (float("inf"), 1.0, None)
    assert found.first_partial_s == 1.0


@pytest.mark.parametrize("answers", [[], stream(""), stream("", "", "")])
def test_silence_is_stable_and_has_no_first_partial(answers: list[Answer]) -> None:
    found = measure_partials(answers)
    assert (found.unstable_ratio, found.edit_overhead, found.first_partial_s, found.changes) == (0.0, 0.0, None, 0)
    assert found.final_s == (0.5 if answers else None)


def test_a_comma_that_moves_is_no_change_of_normalised_words() -> None:
    texts = ("Well", "well,", "Well, yes.")
    assert measure_partials(stream(*texts), Normalizer().words).unstable_words == 0
    assert measure_partials(stream(*texts)).unstable_words == 2


def test_a_last_word_that_only_grows_was_not_taken_back() -> None:
    found = measure_partials(stream("sev", "seven six", "seven sixty two", "seven sixty too"))
    assert (found.grown_words, found.unstable_words, found.revisions, found.changes) == (2, 1, 1, 3)
    assert found.unstable_ratio == 1 / 3
    assert found.lags_s == (0.0, 0.0, 0.0)


def test_a_word_that_grows_before_others_takes_those_back() -> None:
    found = measure_partials(stream("six two", "sixty two"))
    assert (found.grown_words, found.unstable_words, found.revisions) == (0, 2, 1)


def test_a_revision_counts_once_however_many_words_it_takes_back() -> None:
    found = SetStability.of([measure_partials(stream("a b c", "x", "x y", "z")), measure_partials(stream("a"))])
    assert (found.revisions, found.unstable_words, found.unsteady_streams) == (2, 5, 1)
    assert found.revision_ratio == 1.0
    assert SetStability.of([]).revision_ratio == 0.0


@given(st.lists(st.text("aB,' \u3000\t的行\u0301<unk>", max_size=12), min_size=1, max_size=8))
def test_texts_are_split_as_if_each_were_split_as_a_whole(texts: list[str]) -> None:
    words = Normalizer().words
    whole = [Answer(float(number), number + 0.25, " ".join(words(text))) for number, text in enumerate(texts)]
    parts = [Answer(float(number), number + 0.25, text) for number, text in enumerate(texts)]
    assert measure_partials(parts, words) == measure_partials(whole, str.split)


@given(TEXTS)
def test_answers_that_were_packed_for_json_are_the_same_again(texts: list[list[str]]) -> None:
    answers = [Answer(float(number), number + 0.25, " ".join(text)) for number, text in enumerate(texts)]
    assert unpack_answers(json.loads(json.dumps(pack_answers(answers)))) == answers


def test_a_text_of_an_hour_is_split_once_and_not_at_every_answer() -> None:
    split: list[str] = []

    def words(text: str) -> list[str]:
        split.append(text)
        return text.split()

    text = " ".join(f"word{number}" for number in range(500))
    measure_partials([Answer(0.0, 0.0, text[:end]) for end in range(0, len(text), 3)], words)
    assert sum(map(len, split)) < 5 * len(text)


@given(TEXTS)
def test_every_measure_is_what_its_definition_says(texts: list[list[str]]) -> None:
    answers = [Answer(float(number), number + 0.25, " ".join(text)) for number, text in enumerate(texts)]
    found = measure_partials(answers)
    steps = list(zip([[], *texts], texts, strict=False))
    common = [len(list(takewhile(lambda pair: pair[0] == pair[1], zip(*step, strict=False)))) for step in steps]
    gone = [before[same:] for (before, _), same in zip(steps, common, strict=True)]
    new = [after[same:] for (_, after), same in zip(steps, common, strict=True)]
    grown = [len(old) == 1 and "".join(now[:1]).startswith(old[0]) for old, now in zip(gone, new, strict=True)]
    taken_back = sum(map(len, gone)) - sum(grown)
    added = sum(map(len, new)) - sum(grown)
    assert (found.unstable_words, found.grown_words) == (taken_back, sum(grown))
    assert found.revisions == sum(map(bool, gone)) - sum(grown)
    assert found.edit_overhead == pytest.approx((added + taken_back - len(texts[-1])) / max(1, added + taken_back))
    assert found.changes == sum(before != after for before, after in steps[:-1])
    for place, (word, lag) in enumerate(zip(texts[-1], found.lags_s, strict=True)):
        there = [text[place : place + 1] == [word] for text in texts]
        decided = max((number + 1 for number, yes in enumerate(there) if not yes), default=0)
        assert lag == decided - there.index(True)


def test_a_set_pools_words_and_keeps_the_times_of_every_stream() -> None:
    streams = [measure_partials(stream("a x", "a b c")), measure_partials(stream("d")), StreamStability()]
    found = SetStability.of(streams)
    assert (found.streams, found.unsteady_streams, found.partials, found.changes) == (3, 1, 1, 1)
    assert found.unstable_ratio == 1 / 4
    assert found.edit_overhead == 2 / 6
    assert found.stability_lag_s == 0.0
    assert found.first_partials_s == (1.0, 1.0)
    assert found.finals_s == (0.5, 0.5)
    assert SetStability.of([]).stability_lag_s is None
