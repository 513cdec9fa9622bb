"""What language models and hotwords add to a search, against the definition worked out from the finished text."""

from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from arpa_oracle import LN_10, Oracle, words_of
from effort import examples
from tritone.bundle import manifest
from tritone.bundle.vocabulary import Vocabulary
from tritone.errors import InputError, LanguageModelError
from tritone.search.hotwords import read_hotwords_file
from tritone.search.ngram.model import NgramModel
from tritone.search.scoring.scorer import Scorer, extend, finish

ARPA = Path(__file__).resolve().parents[1] / "data" / "ngram" / "four.arpa"
TOKENS = [
    *("<blank>", "<unk>", "▁", "a", "n", "t", "o", "m", "e", "k", "w", "y", "r", "b", "x"),
    *(
        "▁to",
        "▁new",
        "▁york",
        "▁the",
        "▁anna",
        "an",
        "na",
        "tom",
        "▁a",
        "ork",
        "day",
        "北",
        "京",
        "▁上",
        "海",
        "x海n",
        "n▁t",
    ),
]
PHRASES = [
    *(
        "new york",
        "york",
        "to new york",
        "a",
        "an",
        "tom",
        "anna",
        "北京",
        "上 海 to",
        "海",
        "x",
        "an a",
        "a an",
        "n t",
    ),
    *("京 to", "to to", "tom tom", "e"),
]
VOCABULARY = Vocabulary(TOKENS, manifest.Vocabulary(size=len(TOKENS), blank_id=0, unk_id=1, units="bpe"))
SPELLINGS = [VOCABULARY.spelling(id) for id in range(len(TOKENS))]


def occurrences(words: list[str], phrase: list[str]) -> int:
    return sum(words[i : i + len(phrase)] == phrase for i in range(len(words) - len(phrase) + 1))


def run(scorer: Scorer, ids: list[int]) -> tuple[list[float], float, list[list[int]]]:
    """What each token adds, what the end adds, and all states."""
    state, following = scorer.start, np.full(scorer.state_size, 99, dtype=np.int32)
    gains, states = [], [state.tolist()]
    for id in ids:
        gains.append(extend(scorer.address, state, id, following))
        state, following = following, np.full(scorer.state_size, 99, dtype=np.int32)
        states.append(state.tolist())
    return gains, finish(scorer.address, state), states


def total(scorer: Scorer, text: str, spellings: list[str] = SPELLINGS) -> float:
    """What a text that is spelled letter by letter gets."""
    gains, end, _ = run(scorer, [spellings.index(char) for char in text])
    return sum(gains) + end


@pytest.fixture(scope="module")
def model() -> NgramModel:
    return NgramModel.read(ARPA)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(ARPA)


def build(lm: NgramModel | None, *hotwords: tuple[str, float], **options: float) -> Scorer:
    settings = {"lm_weight": 0.0 if lm is None else 0.5, "word_bonus": 0.0, **options}
    scorer = Scorer.build(SPELLINGS, lm=lm, hotwords=hotwords, **settings)
    assert scorer is not None
    return scorer


tokens = st.lists(st.integers(0, len(TOKENS) - 1), max_size=25)
weights = st.sampled_from([0.0, 0.5, 1.7, -0.4])
phrases = st.lists(st.tuples(st.sampled_from(PHRASES), st.sampled_from([3.0, 0.5, -2.0, 8.0, 0.0])), max_size=8)


@hypothesis.settings(max_examples=examples(300))
@hypothesis.given(ids=tokens, weight=weights, bonus=weights, hotwords=phrases, with_lm=st.booleans())
def test_the_sum_is_what_the_finished_text_gets(
    model: NgramModel,
    oracle: Oracle,
    ids: list[int],
    weight: float,
    bonus: float,
    hotwords: list[tuple[str, float]],
    with_lm: bool,
) -> None:
    lm = model if with_lm else None
    scorer = Scorer.build(SPELLINGS, lm=lm, lm_weight=weight, word_bonus=bonus, hotwords=hotwords, unknown_penalty=6.0)
    words = [word.text for word in VOCABULARY.words(ids)]
    expected = oracle.total(words, weight, bonus, 6.0) if with_lm else 0.0
    expected += sum(occurrences(words, words_of(phrase)) * value for phrase, value in hotwords)
    if scorer is None:
        assert not any(value for _, value in hotwords) or expected == 0
        assert not (with_lm and (weight or bonus))
        return
    gains, end, _ = run(scorer, ids)
    assert sum(gains) + end == pytest.approx(expected, abs=1e-4)
    assert max(gains, default=0.0) <= scorer.record["max_gain"] + 1e-9


@hypothesis.given(ids=tokens)
def test_the_same_tokens_lead_to_the_same_state_and_what_says_nothing_changes_nothing(
    model: NgramModel, ids: list[int]
) -> None:
    scorer = build(model, ("new york", 5.0), ("an", -1.0))
    gains, _, states = run(scorer, ids)
    again, _, states_again = run(scorer, ids)
    assert (gains, states) == (again, states_again)
    for id, gain, before, after in zip(ids, gains, states[:-1], states[1:], strict=True):
        if not SPELLINGS[id]:
            assert (gain, after) == (0.0, before)


def test_a_phrase_is_credited_on_the_way_and_pays_back_when_it_breaks_off() -> None:
    scorer = build(None, ("anna tom", 8.0))
    gains, end, _ = run(scorer, [SPELLINGS.index(char) for char in "anna tom"])
    np.testing.assert_allclose(gains, np.full(8, 8.0 / 9))  # the ninth symbol is the end of the word
    assert sum(gains) + end == pytest.approx(8.0)
    gains, end, _ = run(scorer, [SPELLINGS.index(char) for char in "anna tomb"])
    assert sum(gains[:8]) == pytest.approx(8.0 * 8 / 9)
    assert sum(gains) == pytest.approx(0.0)
    assert end == 0.0


def test_a_phrase_is_found_between_word_borders_only() -> None:
    scorer = build(None, ("an", 2.0))
    totals = [total(scorer, text) for text in ("an", "a an", "an a", "ann", "ban", " an ")]
    assert totals == pytest.approx([2, 2, 2, 0, 0, 2])


def test_chinese_phrases_are_found_anywhere_with_or_without_spaces() -> None:
    scorer = build(None, ("北京", 2.0), ("京", 1.0))
    assert [total(scorer, text) for text in ("北京", "tom北京x", "北 京")] == pytest.approx([3.0] * 3)
    assert total(scorer, "京北京京") == pytest.approx(2.0 + 3 * 1.0)


def test_overlapping_occurrences_all_count() -> None:
    scorer = build(None, ("tom tom", 2.0), ("tom", 1.0), ("tom tom anna", 4.0))
    assert total(scorer, "tom tom tom anna") == pytest.approx(2 * 2.0 + 3 * 1.0 + 4.0)


def test_a_negative_phrase_costs_nothing_before_it_is_complete() -> None:
    scorer = build(None, ("tom", -5.0))
    gains, end, _ = run(scorer, [SPELLINGS.index(char) for char in "tom"])
    assert (gains, end) == ([0.0, 0.0, 0.0], -5.0)


@pytest.mark.parametrize(("letters", "phrase", "text"), [("an", "AN", "an"), ("AN", "an", "AN"), ("aNn", "aN", "aN")])
def test_case_does_not_matter_where_tokens_have_only_one(letters: str, phrase: str, text: str) -> None:
    spellings = ["", "<unk>" if letters.islower() else "<UNK>", *letters]
    scorer = Scorer.build(spellings, lm=None, lm_weight=0, word_bonus=0, hotwords=[(phrase, 1.0)])
    assert scorer is not None
    assert total(scorer, text, spellings) == 1.0


def test_a_phrase_that_no_token_can_write_is_refused() -> None:
    with pytest.raises(InputError, match=r"hotword 'zoo' cannot occur: .* 'z'"):
        build(None, ("zoo", 1.0))


def test_nothing_to_add_is_no_scorer(model: NgramModel) -> None:
    assert Scorer.build(SPELLINGS, lm=None, lm_weight=1.0, word_bonus=1.0) is None
    assert Scorer.build(SPELLINGS, lm=model, lm_weight=0.0, word_bonus=0.0) is None
    assert Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=[("tom", 0.0)]) is None


def test_the_beginning_of_a_frequent_word_costs_less_than_what_begins_no_word(model: NgramModel) -> None:
    scorer = build(model, lm_weight=1.0)
    good, bad = (run(scorer, [SPELLINGS.index(char) for char in text])[0] for text in ("to", "tx"))
    assert sum(good) > sum(bad) + 5.0
    # leaving all words costs as much as the unknown word that it is; nothing is left to pay but the context's share
    gains, _, _ = run(scorer, [SPELLINGS.index(char) for char in "tx "])
    assert abs(gains[-1]) < 2.0


TOKEN_ARPA = """\\data\\
ngram 1=6

\\1-grams:
-1.0 <unk>
-9 <s>
-0.5 </s>
-0.25 ▁a
-0.75 n
-1.25 b

\\end\\
"""


def test_a_model_of_tokens_scores_every_token_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pieces.arpa"
    path.write_text(TOKEN_ARPA, encoding="utf-8")
    spellings = ["", "<unk>", " a", "n", "b", " ", "x"]
    scorer = Scorer.build(spellings, lm=NgramModel.read(path), lm_weight=1.0, word_bonus=0.125, unknown_penalty=2.0)
    assert scorer is not None
    gains, end, _ = run(scorer, [2, 3, 5, 0, 6])
    # the space is no word of this model; x is unknown: never less likely than the rarest word, and the penalty
    expected = [-0.25 * LN_10 + 0.125, -0.75 * LN_10 + 0.125, 0.0, 0.0, -1.0 * LN_10 - 2.0 + 0.125]
    np.testing.assert_allclose(gains, expected, atol=1e-6)
    assert end == pytest.approx(-0.5 * LN_10)


def write_unigrams(folder: Path, *words: str) -> NgramModel:
    path = folder / "words.arpa"
    lines = "".join(f"-1.5\t{word}\n" for word in ("<unk>", "<s>", "</s>", *words))
    path.write_text(f"\\data\\\nngram 1={len(words) + 3}\n\n\\1-grams:\n{lines}\n\\end\\\n", encoding="utf-8")
    return NgramModel.read(path)


@pytest.mark.parametrize(
    ("words", "spellings", "by_token"),
    [
        (["he", "hello", "the", "a"], ["", " ", *"ahelot"], False),
        (["h", "e", "l", "o", "<space>"], ["", " ", *"helo"], True),
        (["▁he", "llo", "▁the"], ["", " he", "llo", " the"], True),
        (["你", "好", "hello", "he"], ["", "你", "好", " he", "llo"], False),
        (["one", "two", "a"], ["", " one", " two", " a", "b"], False),
    ],
)
def test_whether_words_or_tokens_are_the_units_is_found_out(
    tmp_path: Path, words: list[str], spellings: list[str], by_token: bool
) -> None:
    scorer = Scorer.build(spellings, lm=write_unigrams(tmp_path, *words), lm_weight=1.0, word_bonus=0.0)
    assert scorer is not None
    assert scorer.record["by_token"] == by_token


@pytest.mark.parametrize(
    ("words", "spellings", "unit", "message"),
    [
        (["HELLO", "THE"], ["", " ", *"helot"], "auto", r"'HELLO', 'THE'.*upper case.*lower case"),
        (["hello", "the"], ["", "<unk>", " ", *"HELOT"], "auto", r"lower case.*upper case"),
        (["你好", "中国"], ["", *"你好中国"], "auto", r"Each Chinese or Japanese character is a word"),
        (["hello", "the"], ["", " ", *"helot"], "token", r"0 of its 2 words are tokens.*unit.*word"),
        (["hello"], ["", *"你好"], "word", r"same language"),
    ],
)
def test_a_model_that_does_not_fit_the_tokens_is_refused(
    tmp_path: Path, words: list[str], spellings: list[str], unit: str, message: str
) -> None:
    with pytest.raises(LanguageModelError, match=message):
        Scorer.build(
            spellings,
            lm=write_unigrams(tmp_path, *words),
            lm_weight=1.0,
            word_bonus=0.0,
            lm_unit=unit,  # type: ignore[arg-type]
        )


def test_an_unknown_unit_is_a_mistake_of_the_caller(model: NgramModel) -> None:
    with pytest.raises(ValueError, match="lm_unit must be one of auto, word, token"):
        Scorer.build(SPELLINGS, lm=model, lm_weight=1.0, word_bonus=0.0, lm_unit="letters")  # type: ignore[arg-type]


def test_hotword_files_are_read(tmp_path: Path) -> None:
    yaml = tmp_path / "hotwords.yaml"
    yaml.write_text("# names\n停滞: 10\nnew  york: -2.5\nno: 1e1\n'a: b': 3\n", encoding="utf-8")
    assert read_hotwords_file(yaml) == (("停滞", 10.0), ("new york", -2.5), ("no", 10.0), ("a: b", 3.0))
    text = tmp_path / "hotwords.txt"
    text.write_text("\ufeff# names\nnew york\t5\n\n停滞 10\r\n", encoding="utf-8")
    assert read_hotwords_file(text) == (("new york", 5.0), ("停滞", 10.0))
    text.write_text("", encoding="utf-8")
    assert read_hotwords_file(text) == ()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", "anna: 5\ntom: much\n", r"line 2: the weight of 'tom' must be a number"),
        ("a.yaml", "anna: 5\ntom: [1]\n", r"line 2: expected `phrase: weight`"),
        ("a.yaml", "anna: 5\nanna: 6\n", r"line 2: 'anna' is there twice"),
        ("a.yaml", "- anna\n", r"line 1: expected a map"),
        ("a.yaml", "anna: 5\n\ttom: 6\n", r"line 2: "),
        ("a.yml", "anna: 1000\n", r"within ±100"),
        ("a.yaml", "[" * 500, r"a\.yaml"),
        ("a.yaml", "anna: 5\n--- \ntom: 6\n", r"line 2: expected a single document"),
        ("a.yaml", "a1: 1\n" * 150_000, r"line 2: 'a1' is there twice"),  # 9 s to read them all
        ("a.yaml", "x: !!python/object/apply:os.system [ls]\n", r"line 1: expected `phrase: weight`"),
        ("a.txt", "anna 5\ntom\n", r"line 2: expected a phrase and its weight"),
        ("a.txt", "anna nan\n", r"line 1: .*number"),
        ("a.txt", "x" * 101 + " 5\n", r"line 1: a phrase has 1 to 100 characters"),
        ("a.txt", "".join(f"w{i} 1\n" for i in range(1001)), r"line 1001: at most 1000"),
        ("a.txt", "x" * 2**20 + " 1\n", r"more than 1048576 bytes"),
        ("a.txt", b"\xff\xfe 5", r"not UTF-8"),
        ("a.txt", "anna " + "9" * 50_000 + "e", r"line 1: the weight of 'anna' must be a number"),  # 54 s to match
        ("a.yaml", "anna: " + "9" * 50_000 + "e", r"line 1: the weight of 'anna' must be a number"),
    ],
)
def test_a_malformed_hotword_file_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LanguageModelError, match=message):
        read_hotwords_file(path)
