"""Comparing systems on the same utterances, the gate, and what a terminal shows of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.cli.shared.evaluation_printer import aligned
from tritone.corpus.dataset import Utterance
from tritone.errors import InputError
from tritone.evaluate import tables
from tritone.evaluate.compare import compare, gate
from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.result import Evaluation, Report, Row
from tritone.evaluate.score import score_utterance
from tritone.evaluate.series import journal_of, read_baseline
from tritone.report.stamp import Stamp

TEN = "one two three four five six seven eight nine ten"
REFERENCES = {f"u{number}": TEN for number in range(20)}


def evaluation(
    name: str, texts: Mapping[str, str | None], references: Mapping[str, str] = REFERENCES, **changes: Any
) -> Evaluation:
    """Texts as a system gave them; None is a failure."""
    normalization = changes.pop("normalization", Normalization())
    normalizer = Normalizer(normalization)
    rows = [
        Row(
            score=score_utterance(key, references[key], text, normalizer, error="lost" if text is None else None),
            audio=f"{key}.wav",
            audio_s=2.0,
            latency_s=0.1,
            compute_s=0.1,
        )
        for key, text in texts.items()
    ]
    fields: dict[str, Any] = {"total": len(rows), "wall_s": 4.0, "concurrencies": [8]} | changes
    return Evaluation(name=name, system={"kind": "fake"}, normalization=normalization, rows=rows, **fields)


def with_errors(errors: Sequence[int]) -> dict[str, str | None]:
    """Texts with so many words of each utterance replaced."""
    return {f"u{number}": " ".join([*["x"] * wrong, *TEN.split()[wrong:]]) for number, wrong in enumerate(errors)}


@pytest.fixture
def stamp() -> Stamp:
    return Stamp(
        command="x", date="d", commit="c", processor="p", cores=1, memory_gib=1.0, system="s", versions={}, load=0.0
    )


def test_a_difference_is_in_rates_absolute_and_relative():
    found = compare([evaluation("a", with_errors([1] * 20)), evaluation("b", with_errors([2] * 10 + [1] * 10))])
    base, other = found.changes
    assert (base.words, found.relative(base)) == (None, None)
    assert other.words is not None
    assert other.words.delta == pytest.approx(0.05)
    assert found.relative(other) == pytest.approx(0.5)
    assert other.words.interval.low < 0.05 < other.words.interval.high
    assert other.changed == 10
    assert other.words.p_value < 0.01  # ten sentences got worse, none better: 2 / 2**10


def test_equal_systems_differ_by_nothing_and_never_significantly():
    errors = [0, 1, 2, 3] * 5
    found = compare([evaluation("a", with_errors(errors)), evaluation("b", with_errors(errors))])
    (_, other) = found.changes
    assert other.words is not None
    assert (other.words.delta, other.words.p_value, other.changed) == (0.0, 1.0, 0)


def test_all_systems_are_scored_by_the_normalisation_of_the_first():
    strict = evaluation("a", dict.fromkeys(REFERENCES, TEN.title()), normalization=Normalization(case="keep"))
    loose = evaluation("b", dict.fromkeys(REFERENCES, TEN.title()))
    assert [change.wer for change in compare([strict, loose]).changes] == [1.0, 1.0]
    assert [change.wer for change in compare([loose, strict]).changes] == [0.0, 0.0]


def test_what_one_system_lacks_is_left_out_of_all_and_said():
    partial = {name: text for name, text in with_errors([1] * 20).items() if name != "u3"}
    found = compare([evaluation("a", with_errors([1] * 20)), evaluation("b", partial, complete=False)])
    assert found.left_out == 1
    assert {len(change.evaluation.rows) for change in found.changes} == {19}
    assert "1 utterances that not all have are left out" in tables.comparison(found).note


def test_a_text_of_nothing_and_none_at_all_are_different():
    found = compare([evaluation("a", {"u1": ""}), evaluation("b", {"u1": None})])
    assert (found.changes[1].words.delta, found.changes[1].changed) == (0.0, 1)  # type: ignore[union-attr]


def test_the_order_of_the_utterances_does_not_matter():
    texts = with_errors([0, 5] * 10)
    found = compare([evaluation("a", texts), evaluation("b", dict(reversed(texts.items())))])
    assert found.changes[1].changed == 0


def test_systems_with_one_name_other_references_or_nothing_in_common_cannot_be_compared():
    a = evaluation("a", with_errors([0] * 20))
    with pytest.raises(InputError, match="a comes twice"):
        compare([a, a])
    other = evaluation("b", {"u0": TEN}, {"u0": "something else"})
    with pytest.raises(InputError, match="u0: the reference is 'one two"):
        compare([a, other])
    with pytest.raises(InputError, match="no utterance in common"):
        compare([a, evaluation("b", {"v": TEN}, {"v": TEN})])


@pytest.mark.parametrize(("limit", "passes"), [(0.0, False), (0.49, False), (0.5, True), (3.0, True)])
def test_the_gate_is_in_percentage_points_and_lets_the_limit_itself_through(limit: float, passes: bool):
    """One more error in 200 words is half a point."""
    found = compare([evaluation("a", with_errors([1] * 20)), evaluation("b", with_errors([2] + [1] * 19))])
    problems = gate(found, limit)
    assert (problems == []) is passes
    if problems:
        assert problems[0].startswith("b: WER 10.50 % is 0.50 points above 10.00 % of a; allowed are")


@settings(max_examples=examples(20))
@given(st.integers(0, 10), st.integers(0, 10))
def test_the_gate_fails_exactly_who_is_worse_by_more_than_allowed(before: int, after: int):
    found = compare([evaluation("a", with_errors([before] * 20)), evaluation("b", with_errors([after] * 20))])
    for allowed in range(11):
        assert bool(gate(found, 10.0 * allowed)) == (after - before > allowed)


def test_the_gate_names_everybody_who_fails():
    worse, better = with_errors([3] * 20), with_errors([0] * 20)
    found = compare(
        [
            evaluation("a", with_errors([1] * 20)),
            evaluation("b", worse),
            evaluation("c", better),
            evaluation("d", worse),
        ]
    )
    assert [problem.partition(":")[0] for problem in gate(found, 1.0)] == ["b", "d"]


def test_failed_utterances_fail_the_gate_of_the_system_and_spoil_a_baseline():
    good = with_errors([0] * 20)
    broken: dict[str, str | None] = {**good, "u0": None}
    (problem,) = gate(compare([evaluation("a", good), evaluation("b", broken)]), 1.0)
    assert "1 failed utterances count as deleted" in problem
    (problem,) = gate(compare([evaluation("a", broken), evaluation("b", good)]), 1.0)
    assert "the baseline a has 1 failed utterances" in problem


def test_a_gate_without_words_to_count_is_not_passed():
    silent = {"u": ""}
    found = compare([evaluation("a", {"u": ""}, silent), evaluation("b", {"u": ""}, silent)])
    assert gate(found, 100.0) != []


def test_a_baseline_of_an_earlier_report_covers_the_utterances_or_is_refused(tmp_path: Path, stamp: Stamp):
    path = tmp_path / "old.json"
    Report(stamp=stamp, evaluations=[evaluation("old", with_errors([1] * 20))]).save(path)

    def wanted(*names: str, text: str = TEN) -> list[Utterance]:
        return [Utterance(name, Path(name), text) for name in names]

    found = read_baseline(path, Normalization(), wanted("u1", "u5", text=TEN.upper() + "!"))
    assert found.name == "old (old.json)"
    assert [row.id for row in found.rows] == ["u1", "u5"]
    with pytest.raises(InputError, match=r"lacks 1 of the 2 utterances, 'u99' for example"):
        read_baseline(path, Normalization(), wanted("u1", "u99"))
    # Found before hours of recognition, not when they are compared.
    with pytest.raises(InputError, match=r"u1: the reference is 'one .* ten' in .*old\.json and 'one' now"):
        read_baseline(path, Normalization(), wanted("u1", text="one"))
    with pytest.raises(InputError, match=r"u1: the reference is"):
        read_baseline(path, Normalization(case="keep"), wanted("u1", text=TEN.upper()))


def test_an_interrupted_run_is_no_baseline(tmp_path: Path, stamp: Stamp):
    path = tmp_path / "old.json"
    Report(stamp=stamp, evaluations=[evaluation("old", with_errors([1] * 20), complete=False)]).save(path)
    with pytest.raises(InputError, match="interrupted"):
        read_baseline(path, Normalization(), [])


def test_each_of_several_systems_has_a_journal_of_its_own():
    journal = Path("out/result.journal.jsonl")
    assert journal_of(journal, "fp16") == Path("out/result.fp16.journal.jsonl")
    odd = [journal_of(journal, name) for name in ("a/b", "a b", "../../etc/passwd", "字", "x" * 300)]
    assert len(set(odd)) == 5
    assert {path.parent for path in odd if path} == {Path("out")}
    assert all(path is not None and len(path.name) < 150 for path in odd)
    assert journal_of(None, "fp16") is None


def test_the_comparison_table_has_a_row_for_each_system():
    table = tables.comparison(
        compare([evaluation("a", with_errors([1] * 20)), evaluation("b", with_errors([2] * 10 + [1] * 10))])
    )
    shown = [dict(zip([column.key for column in table.columns], row, strict=True)) for row in table.texts()]
    assert [row["system"] for row in shown] == ["a", "b"]
    assert [row["wer"] for row in shown] == ["10.00", "15.00"]
    assert [row["delta"] for row in shown] == ["-", "5.00"]
    assert [row["relative"] for row in shown] == ["-", "50.0"]
    assert [row["rtfx"] for row in shown] == ["10.0", "10.0"]
    assert "final_ms" not in shown[0]  # nothing was streamed


def test_the_error_rate_by_length_sorts_utterances_by_their_references():
    references = {"short": "one", "middle": "a b c d", "long": " ".join("x" * 60)}
    found = evaluation("a", {"short": "two", "middle": "a b c", "long": references["long"]}, references)
    table = tables.by_length([found])
    assert [(row[0], row[-1]) for row in table.texts()] == [
        ("1-2", "100.00"),
        ("3-5", "25.00"),
        ("51 and more", "0.00"),
    ]


def test_aligned_texts_stand_word_under_word_and_fit_the_terminal():
    score = score_utterance("u", "one two three", "one tu three four", Normalizer())
    assert [line.plain for line in aligned(score, 80)] == [
        "u  2 errors in 3 words: 1 S, 0 D, 1 I",
        "  ref  one TWO three ****",
        "  hyp  one TU  three FOUR",
    ]
    assert [line.plain for line in aligned(score, 15)][1:] == [
        *("  ref  one TWO", "  hyp  one TU "),
        *("  ref  three", "  hyp  three"),
        *("  ref  ****", "  hyp  FOUR"),
    ]


def test_wide_characters_take_the_room_they_need():
    score = score_utterance("u", "你好", "我好", Normalizer())
    assert [line.plain for line in aligned(score, 80)][1:] == ["  ref  你 好", "  hyp  我 好"]
    score = score_utterance("u", "你好", "好", Normalizer())
    assert [line.plain for line in aligned(score, 80)][1:] == ["  ref  你 好", "  hyp  ** 好"]


def test_what_could_steer_a_terminal_is_not_printed():
    score = score_utterance(
        "\x1b[2Ju", "one \x1b]0;owned\x07", "\x1b[31mone two", Normalizer(Normalization(punctuation="keep"))
    )
    assert "\x1b" not in "".join(line.plain for line in aligned(score, 80))
