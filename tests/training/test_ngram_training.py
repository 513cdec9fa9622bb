"""The n-gram estimator: probabilities that sum to one, KenLM's own figures for the same text, the shipped files."""

import gzip
import itertools
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from ngram_scores import log10_of

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from training import ngram  # noqa: E402

DATA = ROOT.parent / "shared" / "data"
LM = ROOT / "training" / "lm"

Gram = tuple[str, ...]

TOY = ["enter a b one", "enter a b two", "erase one two", "a b one", "enter one one", "help"]
# What `lmplz -o 3 --discount_fallback` (KenLM 4cb443e) writes for these sentences: log10 P, and log10 of the backoff.
TOY_BY_LMPLZ = {
    "<unk>": (-1.3174205, 0),
    "</s>": (-0.74116766, 0),
    "enter": (-1.0889411, -0.18905623),
    "a": (-1.0081179, -0.1697511),
    "one": (-0.605289, -0.17929637),
    "one </s>": (-0.5499623, 0),
    "<s> enter": (-1.173262, -0.30103),
    "<s> a": (-0.85495466, -0.30103),
    "a b": (-0.4217629, -0.30103),
    "one one": (-0.5978229, -0.30103),
    "b one </s>": (-0.19318847, 0),
    "<s> help </s>": (-0.13360329, 0),
    "<s> enter a": (-0.3435928, 0),
    "a b two": (-0.5426393, 0),
}
# The same of `lmplz -o 3` for AN4's training transcripts, whose counts have discounts of their own.
AN4_BY_LMPLZ = {
    "<unk>": (-2.8177357, 0),
    "</s>": (-1.349337, 0),
    "a": (-1.64754, -0.5736071),
    "nineteen": (-1.8656478, -0.56281555),
    "<s> enter": (-1.0387721, -0.44580573),
    "oh five": (-1.144585, -0.34848788),
    "e r </s>": (-0.81647646, 0),
    "<s> enter six": (-1.3009169, 0),
    "nineteen sixty five": (-0.9298809, 0),
}


def read_arpa(text: str) -> tuple[dict[Gram, float], dict[Gram, float]]:
    """Probabilities and backoffs, and a check that the header counts what is there."""
    log_probs: dict[Gram, float] = {}
    backoffs: dict[Gram, float] = {}
    announced: dict[int, int] = {}
    order = 0
    for line in text.splitlines():
        if line.startswith("ngram "):
            number, count = line.removeprefix("ngram ").split("=")
            announced[int(number)] = int(count)
        elif line.endswith("-grams:"):
            order = int(line[1 : line.index("-")])
        elif "\t" in line:
            value, words, *rest = line.split("\t")
            gram = tuple(words.split(" "))
            assert len(gram) == order
            log_probs[gram] = float(value)
            if rest:
                backoffs[gram] = float(rest[0])
    assert text.endswith("\n\\end\\\n")
    assert announced == {number: sum(len(gram) == number for gram in log_probs) for number in announced}
    return log_probs, backoffs


def probability(log_probs: dict[Gram, float], backoffs: dict[Gram, float], gram: Gram) -> float:
    """P of the last word after the others, as the format defines it: by recursion, apart from what the module does."""
    if gram in log_probs:
        return float(10 ** log_probs[gram])
    return float(10 ** backoffs.get(gram[:-1], 0.0)) * probability(log_probs, backoffs, gram[1:])


def assert_sums_to_one(text: str) -> None:
    """All that may follow any context, known or not, has probability 1 together."""
    log_probs, backoffs = read_arpa(text)
    words = [gram[0] for gram in log_probs if len(gram) == 1 and gram[0] != "<s>"]
    assert {"</s>", "<unk>"} <= set(words)
    longest = max(map(len, log_probs))
    contexts = {gram for gram in log_probs if len(gram) < longest and gram[-1] != "</s>"} | {()}
    contexts |= {(*pair, "<unk>") for pair in itertools.islice(contexts, 5)}
    assert set(backoffs) <= contexts
    for context in contexts:
        total = sum(probability(log_probs, backoffs, (*context, word)) for word in words)
        assert total == pytest.approx(1.0, abs=1e-5), context  # seven digits are written


def lmplz_agrees(model: ngram.BackoffModel, table: dict[str, tuple[float, float]]) -> bool:
    for words, (log_prob, backoff) in table.items():
        gram = tuple(words.split())
        assert model.log_probs[gram] == pytest.approx(log_prob, abs=1e-6), words
        assert model.backoffs.get(gram, 0.0) == pytest.approx(backoff, abs=1e-6), words
    return True


def sentences(*texts: str) -> list[list[str]]:
    return [text.split() for text in texts]


WORDS = st.lists(st.sampled_from("abcde"), max_size=6)


@settings(max_examples=examples(40))
@given(st.lists(WORDS, min_size=1, max_size=25).filter(any), st.integers(1, 4))
def test_probabilities_after_every_context_sum_to_one(texts: list[list[str]], order: int) -> None:
    assert_sums_to_one(ngram.estimate(texts, order).to_arpa())


def test_a_few_sentences_give_what_kenlm_gives_with_its_fallback_discounts() -> None:
    model = ngram.estimate(sentences(*TOY), 3)
    assert lmplz_agrees(model, TOY_BY_LMPLZ)
    assert [sum(len(gram) == order for gram in model.log_probs) for order in (1, 2, 3)] == [10, 15, 14]


def test_the_shipped_model_has_the_probabilities_that_kenlm_estimates() -> None:
    log_probs, backoffs = read_arpa((LM / "an4-3gram.arpa").read_text(encoding="utf-8"))
    assert lmplz_agrees(ngram.BackoffModel(log_probs=log_probs, backoffs=backoffs), AN4_BY_LMPLZ)
    assert [sum(len(gram) == order for gram in log_probs) for order in (1, 2, 3)] == [97, 1125, 2545]


@pytest.mark.parametrize("name", ["an4-3gram.arpa", "digits.arpa"])
def test_the_shipped_models_sum_to_one(name: str) -> None:
    assert_sums_to_one((LM / name).read_text(encoding="utf-8"))


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the data folder beside the repository")
def test_the_shipped_model_holds_nothing_but_the_training_transcripts() -> None:
    model = ngram.estimate(ngram.read_texts(DATA, "train"), 3)
    assert (LM / "an4-3gram.arpa").read_text(encoding="utf-8") == model.to_arpa()


def test_the_shipped_digit_grammar_is_what_the_module_makes() -> None:
    assert (LM / "digits.arpa").read_text(encoding="utf-8") == ngram.digit_grammar().to_arpa()


def test_discounts_are_those_of_chen_and_goodman() -> None:
    # t1..t4 = 4, 3, 2, 1, so Y = 4 / (4 + 6)
    counts = [1] * 4 + [2] * 3 + [3] * 2 + [4] + [9]
    expected = (1 - 2 * 0.4 * 3 / 4, 2 - 3 * 0.4 * 2 / 3, 3 - 4 * 0.4 * 1 / 2)
    assert ngram._discounts(counts) == pytest.approx(expected)


@pytest.mark.parametrize(
    "counts",
    [[], [1, 1, 2], [2, 2, 3], [1] * 4 + [2] + [3] * 2 + [4], [1, 1, 2, 3] + [4] * 9],
    ids=["nothing", "no threes", "no ones", "twos lose less than nothing", "threes lose less than nothing"],
)
def test_counts_that_give_no_usable_discounts_take_fixed_ones(counts: list[int]) -> None:
    assert ngram._discounts(counts) == (0.5, 1.0, 1.5)


def test_a_word_that_is_frequent_in_one_place_is_less_likely_elsewhere_than_one_of_many_places() -> None:
    # "francisco" is said more often than "glasses", but after one word only: Chen & Goodman's example.
    colours = ["red", "new", "my", "old", "dark"]
    texts = sentences(*["san francisco"] * 9, *(f"{colour} glasses" for colour in colours), "the red", "the new")
    model = ngram.estimate(texts, 2)
    assert model.log_prob("glasses", ("the",)) > model.log_prob("francisco", ("the",))
    assert model.log_prob("francisco", ("san",)) > model.log_prob("glasses", ("san",))


def test_perplexity_counts_ends_of_sentences_and_tells_unknown_words_apart() -> None:
    model = ngram.BackoffModel(
        log_probs={("a",): math.log10(0.5), ("</s>",): math.log10(0.25), ("<unk>",): math.log10(0.25), ("<s>",): -99.0},
        backoffs={},
    )
    found = model.perplexity(sentences("a a", "a new"))
    # a a </s> a <unk> </s>
    assert found.all == pytest.approx((0.5**3 * 0.25**3) ** (-1 / 6))
    assert found.known == pytest.approx((0.5**3 * 0.25**2) ** (-1 / 5))
    assert found.unknown == 1
    assert model.perplexity([]) == (math.inf, math.inf, 0)


def test_the_digit_grammar_likes_all_strings_of_a_length_equally_and_none_below_three() -> None:
    model = ngram.digit_grammar()

    def log_prob(text: str) -> float:
        words = ("<s>", *text.split(), "</s>")
        return sum(model.log_prob(words[place], words[:place]) for place in range(1, len(words)))

    assert log_prob("one two three four") == pytest.approx(log_prob("nine nine oh zero"))
    assert 10 ** log_prob("one two three") == pytest.approx(11**-3 / 3.5, rel=1e-4)
    assert 10 ** log_prob("one two three four") == pytest.approx(11**-4 * (1 - 1 / 3.5) / 3.5, rel=1e-4)
    assert 10 ** log_prob("one two") == pytest.approx(11**-2 * 1e-6, rel=1e-4)
    assert 0 < 10 ** log_prob("one two tree") < 1e-8


def test_a_compressed_file_holds_the_same_text_and_is_the_same_every_time(tmp_path: Path) -> None:
    model = ngram.estimate(sentences(*TOY), 2)
    for name in ("a.arpa.gz", "b.arpa.gz", "c.arpa"):
        model.write(tmp_path / name)
    assert (tmp_path / "a.arpa.gz").read_bytes() == (tmp_path / "b.arpa.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.arpa.gz").read_bytes()).decode() == (tmp_path / "c.arpa").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("word", ["<s>", "</s>", "<unk>", "two words", "", "tab\tbed"])
def test_what_cannot_be_a_word_of_a_file_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="cannot be a word"):
        ngram.estimate([["a", word]], 2)


def test_nothing_to_learn_from_is_refused() -> None:
    nothing: list[list[list[str]]] = [[], [[]], [[], []]]
    for texts in nothing:
        with pytest.raises(ValueError, match="no words"):
            ngram.estimate(texts, 2)
    with pytest.raises(ValueError, match="order"):
        ngram.estimate([["a"]], 0)


@pytest.mark.parametrize("name", ["an4-3gram.arpa", "digits.arpa"])
def test_the_search_reads_from_the_shipped_models_what_the_estimator_says(name: str) -> None:
    from tritone.search.ngram.model import NgramModel

    log_probs, backoffs = read_arpa((LM / name).read_text(encoding="utf-8"))
    model, read = ngram.BackoffModel(log_probs=log_probs, backoffs=backoffs), NgramModel.read(LM / name)
    assert read.order == model.order
    for text in ("one two three four", "one", "enter six", "e r thirteen"):
        words = ("<s>", *text.split(), "</s>")
        expected = sum(model.log_prob(words[place], words[:place]) for place in range(1, len(words)))
        assert log10_of(read, text) == pytest.approx(expected, rel=1e-5), text
