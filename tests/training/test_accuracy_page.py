"""The accuracy benchmark without its model: rows that are kept and resumed, figures that can be counted by hand."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.accuracy import page as accuracy_page  # noqa: E402
from benchmarks.accuracy import rows as accuracy  # noqa: E402
from benchmarks.accuracy import tuning as accuracy_tuning  # noqa: E402

from tritone.bundle import Bundle  # noqa: E402
from tritone.report.stamp import Stamp  # noqa: E402
from tritone.search.options import SearchOptions  # noqa: E402

TEXTS = ["a b c", "one two", "enter six", "stop"]
WEIGHTS = {"prefix beam + LM": {"lm_weight": 0.3, "word_bonus": 1.0}, "rescoring": {"ctc_weight": 0.7}}


@pytest.fixture
def corpus() -> accuracy.Corpus:
    spoken = [
        accuracy.Spoken(f"u{number}", np.full(160, number, np.float32), text) for number, text in enumerate(TEXTS)
    ]
    return accuracy.Corpus("an4_test", "AN4 test", ROOT / "training" / "lm" / "digits.arpa", spoken)


class Recogniser:
    """Knows every text; greedy search loses its last word, where there are two. Counts its calls."""

    def __init__(self) -> None:
        self.calls: list[SearchOptions] = []
        self.opened: list[tuple[str, int | None]] = []

    def open(self, bundle: Bundle, precision: str, left_chunks: int | None, lm: Path) -> accuracy.Recognize:
        self.opened.append((precision, left_chunks))
        return self.recognize

    def recognize(self, waveforms: Sequence[np.ndarray], options: SearchOptions) -> list[str]:
        self.calls.append(options)
        texts = [TEXTS[int(each[0])] for each in waveforms]
        if options.mode == "greedy":
            return [text.rsplit(" ", 1)[0] for text in texts]
        return texts


def cases(searches: Sequence[str] = ("greedy", "prefix beam + LM")) -> list[accuracy.Case]:
    return [
        accuracy.Case(set="an4_test", precision=precision, left_chunks=left, search=search)
        for precision in ("fp32", "int8")
        for left in (None, 5)
        for search in searches
    ]


def test_a_pipeline_is_opened_once_for_its_searches_and_finished_rows_are_not_run_again(
    corpus: accuracy.Corpus, toy_bundle: Path, tmp_path: Path
) -> None:
    bundle, journal, first = Bundle.open(toy_bundle), tmp_path / "new" / "rows.jsonl", Recogniser()
    rows = accuracy.measured(bundle, [corpus], cases(), WEIGHTS, journal, first.open)
    for _ in range(3):
        next(rows)
    del rows  # as a run that is ended here
    assert first.opened == [("fp32", None), ("fp32", 5)]
    with journal.open("a", encoding="utf-8") as file:
        file.write('{"key": "cut of')  # as a run leaves it that is killed while it writes
    second = Recogniser()
    found = list(accuracy.measured(bundle, [corpus], cases(), WEIGHTS, journal, second.open))
    assert second.opened == [("fp32", 5), ("int8", None), ("int8", 5)]
    assert [row["case"] for row in found] == cases()
    assert [row["texts"]["u0"] for row in found[:2]] == ["a b", "a b c"]
    third = Recogniser()
    assert list(accuracy.measured(bundle, [corpus], cases(), WEIGHTS, journal, third.open)) == found
    assert third.calls == []


def test_other_weights_are_another_row(corpus: accuracy.Corpus, toy_bundle: Path, tmp_path: Path) -> None:
    bundle, journal = Bundle.open(toy_bundle), tmp_path / "rows.jsonl"
    list(accuracy.measured(bundle, [corpus], cases(), WEIGHTS, journal, Recogniser().open))
    again = Recogniser()
    changed = {"prefix beam + LM": {"lm_weight": 0.5, "word_bonus": 1.0}}
    list(accuracy.measured(bundle, [corpus], cases(), changed, journal, again.open))
    assert {options.mode for options in again.calls} == {"prefix-beam"}
    assert {options.lm_weight for options in again.calls} == {0.5}


def test_a_search_without_a_language_model_switches_it_off() -> None:
    assert accuracy.options_of("prefix beam", WEIGHTS).lm_weight == 0
    assert accuracy.options_of("rescoring", WEIGHTS).lm_weight == 0
    assert accuracy.options_of("rescoring", WEIGHTS).ctc_weight == 0.7
    with_lm = accuracy.options_of("prefix beam + LM", WEIGHTS)
    assert (with_lm.mode, with_lm.lm_weight, with_lm.word_bonus) == ("prefix-beam", 0.3, 1.0)


def test_the_page_counts_errors_and_compares_with_greedy_and_fp32(
    corpus: accuracy.Corpus, toy_bundle: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "rows.jsonl"
    rows = list(accuracy.measured(Bundle.open(toy_bundle), [corpus], cases(), WEIGHTS, journal, Recogniser().open))
    content = accuracy_page.report(rows, [corpus], Stamp.here("python -m benchmarks.accuracy"), WEIGHTS)
    content = json.loads(json.dumps(content))  # as it is written
    greedy, beam = content["rows"][:2]
    # Three of four utterances lose one of eight words.
    assert (greedy["errors"], greedy["deletions"], greedy["words"], greedy["wer"]) == (3, 3, 8, 3 / 8)
    assert greedy["wrong"] == {"u0": "a b", "u1": "one", "u2": "enter"}
    assert greedy["interval"][0] < 3 / 8 < greedy["interval"][1]
    assert greedy["against_greedy"] is None
    assert (beam["errors"], beam["wrong"]) == (0, {})
    assert beam["against_greedy"]["delta"] == -3 / 8
    assert beam["against_greedy"]["changed"] == 3
    assert beam["options"] == {"mode": "prefix-beam", "beam": 10, "lm_weight": 0.3, "word_bonus": 1.0}
    assert content["rows"][4]["against_fp32"]["delta"] == 0
    page = accuracy_page.to_markdown(content)
    assert "| offline | 37.50 (3) | 0.00 (0) |" in page
    assert "| streaming, 5 left | 37.50 (3) | 0.00 (0) |" in page
    assert "| offline | greedy | 37.50 |" in page
    assert "python -m benchmarks.accuracy" in page
    assert "| prefix beam + LM | 0.3000 | 1 | - |" in page


def test_tuning_takes_the_best_neighbourhood_not_a_lucky_trial() -> None:
    def trial(lm_weight: float, word_bonus: float, errors: int, character_errors: int = 9) -> accuracy_tuning.Trial:
        weights = {"lm_weight": lm_weight, "word_bonus": word_bonus}
        return {"weights": weights, "errors": errors, "character_errors": character_errors}

    lucky = [trial(0.1, 0, 2), trial(0.2, 0, 9), trial(0.5, 0, 4), trial(0.7, 0, 4), trial(1.0, 0, 4)]
    assert accuracy_tuning.best(lucky)["weights"]["lm_weight"] == 0.7
    ties = [trial(0.1, 0, 4, 9), trial(0.2, 0, 4, 7), trial(0.1, 1, 4, 9), trial(0.2, 1, 4, 8), trial(0.5, 1, 4, 1)]
    assert accuracy_tuning.best(ties)["weights"] == {"lm_weight": 0.5, "word_bonus": 1}


def test_scores_of_rescoring_are_added_up_as_the_decoder_does() -> None:
    found = accuracy_tuning.Scored("a b", ctc=-2.0, left=-3.0, right=-5.0)
    assert found.score(0.5, 0.25) == pytest.approx(0.75 * -3.0 + 0.25 * -5.0 + 0.5 * -2.0)
