"""Alignments and rates, against kaldialign and a table of all cells."""

import kaldialign
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritone.errors import InputError
from tritone.evaluate import score
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.score import Counts, Pair, SetScore, align, count_errors, pool, score_utterance

WORDS = st.lists(st.sampled_from(["a", "b", "c", "的", "don't"]), max_size=12)
NORMALIZER = Normalizer()


def fewest_errors(reference: list[str], hypothesis: list[str]) -> int:
    """The textbook's table, one row at a time."""
    row = list(range(len(hypothesis) + 1))
    for expected in reference:
        above, row = row, [row[0] + 1]
        for place, found in enumerate(hypothesis):
            row.append(min(above[place + 1] + 1, row[place] + 1, above[place] + (expected != found)))
    return row[-1]


@given(WORDS, WORDS)
def test_an_alignment_has_the_fewest_errors_and_is_one_of_the_two_sequences(ref: list[str], hyp: list[str]) -> None:
    pairs = align(ref, hyp)
    assert [pair.reference for pair in pairs if pair.op != "insertion"] == ref
    assert [pair.hypothesis for pair in pairs if pair.op != "deletion"] == hyp
    for pair in pairs:
        assert (pair.op == "hit") == (pair.reference == pair.hypothesis)
        assert (pair.op == "insertion") == (pair.reference == "")
        assert (pair.op == "deletion") == (pair.hypothesis == "")
    assert sum(pair.op != "hit" for pair in pairs) == fewest_errors(ref, hyp)


@given(WORDS, WORDS)
def test_counts_agree_with_kaldialign(ref: list[str], hyp: list[str]) -> None:
    ours, theirs = count_errors(ref, hyp), kaldialign.edit_distance(ref, hyp)
    # Of several best alignments each may take its own, so the kinds of errors may differ, but not like this:
    assert ours.errors == theirs["total"] == ours.substitutions + ours.deletions + ours.insertions
    assert ours.insertions - ours.deletions == theirs["ins"] - theirs["del"] == len(hyp) - len(ref)
    assert ours.reference_length == len(ref)


@given(WORDS, WORDS)
def test_an_utterance_is_scored_by_words_and_by_characters(ref: list[str], hyp: list[str]) -> None:
    scored = score_utterance("u", " ".join(ref), " ".join(hyp), Normalizer(Normalization(units="words")))
    assert scored.words == count_errors(ref, hyp)
    assert scored.words.errors == kaldialign.edit_distance(ref, hyp)["total"]
    characters = list("".join(ref)), list("".join(hyp))
    assert scored.characters.errors == kaldialign.edit_distance(*characters)["total"]
    assert scored.characters.reference_length == len(characters[0])
    assert scored.exact == (ref == hyp)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a b c", "a b c", Counts(hits=3)),
        ("a b c", "a x c", Counts(hits=2, substitutions=1)),
        ("a b c", "a c", Counts(hits=2, deletions=1)),
        ("a b c", "a b b c", Counts(hits=3, insertions=1)),
        ("a b", "", Counts(deletions=2)),
        ("", "a b", Counts(insertions=2)),
        ("", "", Counts()),
    ],
)
def test_errors_are_counted_by_kind(reference: str, hypothesis: str, expected: Counts) -> None:
    assert count_errors(reference.split(), hypothesis.split()) == expected
    assert score_utterance("u", reference, hypothesis, NORMALIZER).words == expected


def test_a_pair_shows_what_was_said_and_what_was_heard() -> None:
    scored = score_utterance("u", "the CAT sat on", "the bat sat on, too", NORMALIZER)
    assert scored.pairs == (
        Pair("hit", "the", "the"),
        Pair("substitution", "cat", "bat"),
        Pair("hit", "sat", "sat"),
        Pair("hit", "on", "on"),
        Pair("insertion", "", "too"),
    )
    assert (scored.reference, scored.hypothesis) == ("the CAT sat on", "the bat sat on, too")


def test_the_rate_of_a_set_is_pooled_over_its_words_and_not_over_its_utterances() -> None:
    assert pool([Counts(substitutions=1), Counts(hits=8, deletions=1)]) == Counts(8, 1, 1, 0)
    assert pool([Counts(substitutions=1), Counts(hits=8, deletions=1)]).rate == 0.2
    assert pool([]) == Counts()


def test_a_rate_without_reference_is_infinite_only_if_something_was_made_up() -> None:
    assert Counts(insertions=1).rate == float("inf")
    assert Counts().rate == 0.0
    scores = [score_utterance("noise", "", "oh", NORMALIZER), score_utterance("speech", "a b", "a b", NORMALIZER)]
    assert SetScore.of(scores).words.rate == 0.5
    assert SetScore.of(scores[:1]).words.rate == float("inf")


def test_mandarin_and_mixed_text_is_counted_as_by_compute_wer() -> None:
    # tools/compute-wer.py --char=1 of WeNet: upper case, Han one by one, Latin by the word, N = C + S + D
    normalizer = Normalizer(Normalization(case="upper", units="mixed"))
    scored = score_utterance("u", "我用GPU训练。", "我用 gpu 集训 练", normalizer)
    assert scored.words == Counts(hits=5, insertions=1)  # 我 用 GPU 训 练
    scored = score_utterance("u", "今天 hello world", "天 hello word", normalizer)
    assert scored.words == Counts(hits=2, substitutions=1, deletions=1)


def test_a_failed_utterance_counts_its_words_as_deleted_and_is_told_apart() -> None:
    failed = score_utterance("b", "so long 好", None, NORMALIZER, error="connection lost")
    silent = score_utterance("c", "", None, NORMALIZER)
    scores = SetScore.of([score_utterance("a", "hello there", "hello there", NORMALIZER), failed, silent])
    assert (failed.words, failed.characters) == (Counts(deletions=3), Counts(deletions=7))
    assert failed.error == "connection lost"
    assert silent.error is not None
    assert not silent.exact
    assert scores.words == Counts(hits=2, deletions=3)
    assert scores.sentence_accuracy == 1 / 3
    assert scores.worst() == []
    assert scores.confusions().deletions == ()


def test_a_text_that_came_with_an_error_is_not_scored() -> None:
    assert score_utterance("a", "hello", "hello", NORMALIZER, error="timeout").words == Counts(deletions=1)


def test_confusions_are_ranked_by_how_often_they_occur_then_by_the_alphabet() -> None:
    texts = [("a x b", "a y b"), ("x", "y"), ("u b", "v b"), ("o p", "o"), ("o", "o q"), ("o", "o r")]
    found = SetScore.of(score_utterance(str(i), *text, NORMALIZER) for i, text in enumerate(texts)).confusions(2)
    assert [(each.reference, each.hypothesis, each.times) for each in found.substitutions] == [
        ("x", "y", 2),
        ("u", "v", 1),
    ]
    assert [(each.reference, each.times) for each in found.deletions] == [("p", 1)]
    assert [(each.hypothesis, each.times) for each in found.insertions] == [("q", 1), ("r", 1)]


def test_the_worst_utterances_are_those_with_the_most_errors() -> None:
    texts = {"one": ("a b c d", "a b c x"), "two": ("a b c d e", "x y c d e"), "all": ("a", "b"), "none": ("a", "a")}
    scores = SetScore.of(score_utterance(name, *text, NORMALIZER) for name, text in texts.items())
    assert [each.id for each in scores.worst()] == ["two", "all", "one"]
    assert [each.id for each in scores.worst(1)] == ["two"]


def test_an_hour_of_speech_is_aligned() -> None:
    reference = [f"w{index * 7919 % 3001}" for index in range(10_000)]
    hypothesis = [word for index, word in enumerate(reference) if index % 10]
    assert count_errors(reference, hypothesis).deletions == 1000
    scored = score_utterance("hour", " ".join(reference), " ".join(hypothesis), NORMALIZER)
    assert scored.words.errors == 1000
    assert scored.characters.errors >= 2000


def test_a_text_without_end_is_a_failed_utterance_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = score_utterance("u", "one two", "na " * 1_000_000, NORMALIZER)
    assert endless.words == Counts(deletions=2)
    assert "3,000,000 characters" in str(endless.error)
    assert endless.hypothesis == ""
    monkeypatch.setattr(score, "MAX_CELLS", 100)
    with pytest.raises(InputError, match="11 units and a hypothesis of 10 are too long"):
        align(["a"] * 11, ["b"] * 10)
    assert "Cut the recording" in str(score_utterance("u", "a " * 11, "b " * 10, NORMALIZER).error)


def test_an_empty_set_has_neither_errors_nor_failures() -> None:
    empty = SetScore.of([])
    assert (empty.words.rate, empty.sentence_accuracy, empty.worst()) == (0.0, 1.0, [])
