"""CTC prefix beam search against upstream's results, its definition, brute force and numpy."""

import ast
import errno
import itertools
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.caching import FunctionCache

from arpa_oracle import Bonus, Oracle
from effort import examples
from parity.golden_cases import DEFAULT_FOLDERS, Case, find_cases, load, rows
from tritone.search.beam import beam as beam_module
from tritone.search.compiled import compiler as compiled
from tritone.search.compiled import kept
from tritone.search.ctc.prefix_beam import PrefixBeam, prefix_beam_search, top_tokens
from tritone.search.hypothesis import Hypothesis
from tritone.search.ngram.model import NgramModel
from tritone.search.scoring.scorer import Scorer, extend

INF = math.inf
Words = tuple[int, ...]


@pytest.fixture(autouse=True, scope="module")
def _little_room() -> Iterator[None]:
    """Searches drop what they no longer need every few frames instead of every few hundred."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_module, "MIN_ROOM", 4)
        yield


def search(log_probs: np.ndarray, beam: int, nbest: int | None = None, **options: Any) -> list[Hypothesis]:
    frames = np.array([len(log_probs)])
    return prefix_beam_search(log_probs[None], frames, blank_id=0, beam=beam, nbest=nbest or beam, **options)[0]


def words(hypothesis: Hypothesis) -> Words:
    return tuple(token.id for token in hypothesis.tokens)


def random_log_probs(seed: int, frames: int, vocab: int, sharpness: float = 2.0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(0, sharpness, (frames, vocab))
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def alignments(log_probs: np.ndarray) -> dict[Words, float]:
    """The log-probability of every token sequence, by summing over every alignment."""
    sums: dict[Words, float] = defaultdict(lambda: -INF)
    frames, vocab = log_probs.shape
    for path in itertools.product(range(vocab), repeat=frames):
        said = tuple(label for label, _ in itertools.groupby(path) if label != 0)
        score = float(sum(float(log_probs[frame, label]) for frame, label in enumerate(path)))
        sums[said] = float(np.logaddexp(sums[said], score))
    return sums


def log_add(a: float, b: float) -> float:
    top = max(a, b)
    return top if top == -INF else top + math.log(math.exp(a - top) + math.exp(b - top))


def by_definition(
    log_probs: np.ndarray, beam: int, bonus: Callable[[Words], float] = lambda said: 0.0
) -> list[tuple[Words, float]]:
    """Words and total of each kept prefix: every prefix with every token, all of them sorted, no shortcut."""
    kept: dict[Words, tuple[float, float]] = {(): (0.0, -INF)}  # sums ending in a blank, ending in a token
    for row in log_probs.astype(np.float64):
        grown: dict[Words, list[float]] = {}
        for token in np.argsort(-row, kind="stable")[:beam].tolist():
            for said, (blank, other) in kept.items() if row[token] > -INF else ():
                both = log_add(blank, other)
                if token == 0:
                    steps = [(said, 0, both)]
                elif said and token == said[-1]:
                    steps = [(said, 1, other), ((*said, token), 1, blank)]
                else:
                    steps = [((*said, token), 1, both)]
                for key, kind, score in steps:
                    scores = grown.setdefault(key, [-INF, -INF])
                    scores[kind] = log_add(scores[kind], score + row[token])
        possible = {said: (scores[0], scores[1]) for said, scores in grown.items() if max(scores) > -INF}
        if possible:
            ranked = sorted(possible, key=lambda said: -(log_add(*possible[said]) + bonus(said)))
            kept = {said: possible[said] for said in ranked[:beam]}
    return [(said, log_add(*scores) + bonus(said)) for said, scores in kept.items()]


def assert_same(found: Sequence[Hypothesis], expected: Sequence[tuple[Words, float]]) -> None:
    assert [words(h) for h in found] == [said for said, _ in expected]
    assert [h.score for h in found] == pytest.approx([total for _, total in expected], abs=1e-9)


# --- upstream's results


def assert_upstream(
    found: Sequence[Hypothesis], nbest: list[list[int]], times: list[list[int]], scores: np.ndarray
) -> None:
    count = int((scores > -INF).sum())  # upstream may keep sequences that no alignment gives
    assert [list(words(h)) for h in found] == nbest[:count]
    assert [[token.start_frame for token in h.tokens] for h in found] == times[:count]
    assert [h.score for h in found] == pytest.approx(scores[:count].tolist(), abs=1e-9)


@pytest.mark.parametrize("case", find_cases(list(DEFAULT_FOLDERS), "ctc_search"), ids=lambda case: case.name)
def test_random_matrices_give_upstreams_n_best(case: Case) -> None:
    arrays = load(case.path / "cases.npz")
    for index in range(int(arrays["num_cases"])):
        log_probs, nbest, nbest_lens, scores, times, times_lens, beam = (
            arrays[f"case{index}_{name}"]
            for name in ("log_probs", "nbest", "nbest_lens", "scores", "times", "times_lens", "beam")
        )
        assert_upstream(search(log_probs, int(beam)), rows(nbest, nbest_lens), rows(times, times_lens), scores)


@pytest.mark.parametrize("case", find_cases(list(DEFAULT_FOLDERS), "wenet"), ids=lambda case: case.name)
def test_models_give_upstreams_n_best(case: Case) -> None:
    golden = case.expected
    beam, frames = int(golden["beam_size"]), golden["encoder_lens"]
    batch = prefix_beam_search(golden["ctc_log_probs"], frames, blank_id=0, beam=beam, nbest=beam)
    for row, found in enumerate(batch):
        tokens, times = (rows(golden[name][row], golden["beam_lens"][row]) for name in ("beam_tokens", "beam_times"))
        assert_upstream(found, tokens, times, golden["beam_scores"][row])


# --- the search


def test_repeats_merge_and_a_blank_keeps_equal_tokens_apart() -> None:
    a, b = 1, 2
    path = [a, a, 0, a, b, b]
    log_probs = np.log(np.full((6, 3), 0.05) + 0.85 * np.eye(3)[path]).astype(np.float32)
    best = search(log_probs, beam=3)[0]
    assert words(best) == (a, a, b)
    assert [token.start_frame for token in best.tokens] == [1, 3, 5]  # the last frame that says it
    assert [token.end_frame for token in best.tokens] == [2, 4, 6]
    assert [token.confidence for token in best.tokens] == pytest.approx([0.9] * 3)


@pytest.mark.parametrize(
    ("frames", "vocab", "seed"), [(5, 3, 0), (6, 3, 1), (4, 4, 2), (3, 5, 3), (7, 2, 4), (1, 4, 5)]
)
def test_a_wide_beam_finds_the_sum_over_all_alignments_of_every_sequence(frames: int, vocab: int, seed: int) -> None:
    log_probs = random_log_probs(seed, frames, vocab)
    expected = sorted(alignments(log_probs).items(), key=lambda item: -item[1])
    found = search(log_probs, beam=2000)
    assert [words(h) for h in found] == [said for said, _ in expected]
    assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-12)


@given(
    seed=st.integers(0, 10**6),
    frames=st.integers(0, 14),
    vocab=st.integers(1, 9),
    beam=st.integers(1, 12),
    sharpness=st.sampled_from([0.0, 0.3, 2.0, 8.0]),
    ruled_out=st.sampled_from([0.0, 0.3, 0.9]),
)
@settings(max_examples=examples(200))
def test_shortcuts_change_nothing_not_even_the_order_of_ties(
    seed: int, frames: int, vocab: int, beam: int, sharpness: float, ruled_out: float
) -> None:
    log_probs = random_log_probs(seed, frames, vocab, sharpness)
    log_probs[np.random.default_rng(seed).random(log_probs.shape) < ruled_out] = -INF
    assert_same(search(log_probs, beam), by_definition(log_probs, beam))


@given(
    seed=st.integers(0, 10**6),
    frames=st.integers(0, 80),
    beam=st.integers(1, 8),
    cuts=st.lists(st.integers(0, 80), max_size=8),
    history=st.sampled_from([None, 1, 5, 20]),
)
@settings(max_examples=examples(60))
def test_any_cutting_into_chunks_gives_the_same(
    seed: int, frames: int, beam: int, cuts: list[int], history: int | None
) -> None:
    ids, values = top_tokens(random_log_probs(seed, frames, 7, 4.0), beam)
    whole, parts = (PrefixBeam(beam=beam, blank_id=0, history=history) for _ in range(2))
    whole.advance(ids, values)
    for start, end in itertools.pairwise([0, *sorted(min(cut, frames) for cut in cuts), frames]):
        parts.advance(ids[start:end], values[start:end])
        parts.hypotheses(2)
    assert parts.hypotheses(beam) == whole.hypotheses(beam)
    assert parts.num_frames == whole.num_frames == frames


@given(seed=st.integers(0, 10**6), lengths=st.lists(st.integers(0, 20), max_size=6), threads=st.integers(1, 4))
@settings(max_examples=examples(30))
def test_a_row_does_not_depend_on_its_batch(seed: int, lengths: list[int], threads: int) -> None:
    rows = [random_log_probs(seed + row, length, 6) for row, length in enumerate(lengths)]
    padded = np.full((len(rows), 20, 6), np.nan, dtype=np.float32)
    for row, log_probs in enumerate(rows):
        padded[row, : len(log_probs)] = log_probs
    found = prefix_beam_search(padded, np.array(lengths, int), blank_id=0, beam=4, nbest=3, threads=threads)
    assert found == [search(log_probs, 4, 3) for log_probs in rows]


def test_no_frames_give_the_empty_hypothesis() -> None:
    [only] = search(np.zeros((0, 5), dtype=np.float32), beam=3)
    assert (words(only), only.score) == ((), 0.0)


@pytest.mark.parametrize("bad", [np.nan, INF, -INF])
@pytest.mark.parametrize("where", ["all", "one frame", "one token"])
def test_log_probs_that_are_no_numbers_are_passed_over(bad: float, where: str) -> None:
    log_probs = random_log_probs(3, 9, 5)
    spoilt = log_probs.copy()
    spoilt[{"all": np.s_[:], "one frame": np.s_[4], "one token": np.s_[:, 2]}[where]] = bad
    found = search(spoilt, beam=4)
    if where == "all":
        assert [(words(h), h.score) for h in found] == [((), 0.0)]
    elif where == "one frame":
        assert [words(h) for h in found] == [words(h) for h in search(np.delete(log_probs, 4, axis=0), beam=4)]
    elif bad != INF:  # +inf takes one of the four places, -inf and NaN come last
        assert_same(found, by_definition(np.where(np.isnan(spoilt), -INF, spoilt), 4))


def test_tokens_may_come_unsorted_doubled_and_negative() -> None:
    ids, values = np.array([[2, 0, 2, -1, 1]]), np.log([[0.2, 0.5, 0.2, 0.9, 0.3]])
    beam = PrefixBeam(beam=9, blank_id=0)
    beam.advance(ids, values)
    assert [(words(h), round(math.exp(h.score), 6)) for h in beam.hypotheses(9)] == [
        ((), 0.5),
        ((1,), 0.3),
        ((2,), 0.2),
    ]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="beam must be at least 1"):
        PrefixBeam(beam=0, blank_id=0)
    with pytest.raises(ValueError, match="history must be at least 1"):
        PrefixBeam(beam=1, blank_id=0, history=0)
    beam = PrefixBeam(beam=1, blank_id=0)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        beam.advance(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="count"):
        beam.hypotheses(0)
    with pytest.raises(ValueError, match="2 rows need as many scorers"):
        prefix_beam_search(np.zeros((2, 1, 3)), np.array([1, 1]), blank_id=0, beam=1, nbest=1, scorer=[None])
    with pytest.raises(ValueError, match="k=0"):
        top_tokens(np.zeros((2, 3)), 0)


def long_stream(frames: int) -> tuple[np.ndarray, np.ndarray]:
    """The ten best tokens of a long stream with many near ties."""
    rng = np.random.default_rng(1)
    labels = np.where(rng.random(frames) < 0.3, rng.integers(1, 40, frames), 0)
    logits = rng.normal(0, 1, (frames, 40)) + 7 * np.eye(40)[labels]
    return top_tokens(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True), 10)


def test_memory_of_a_long_stream_is_that_of_its_tokens() -> None:
    ids, values = long_stream(30_000)
    stream, sizes = PrefixBeam(beam=10, blank_id=0), []
    for start in range(0, len(ids), 16):
        stream.advance(ids[start : start + 16], values[start : start + 16])
        sizes.append(stream.num_bytes)
    tokens = stream.hypotheses(1)[0].tokens
    assert tokens == [*stream.take_settled(), *stream.hypotheses(1)[0].tokens]
    assert len(tokens) > 6000
    assert max(sizes) < 2 * 20 * len(tokens) + 1_000_000  # room for tokens is doubled when it is full
    middle = len(sizes) // 2
    assert max(sizes[middle:]) - max(sizes[:middle]) < 2 * 20 * len(tokens)


@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(3, 5),
    beam=st.integers(2, 10),
    history=st.integers(1, 8),
    sharpness=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_what_is_decided_early_leaves_all_hypotheses_in_order(
    seed: int, vocab: int, beam: int, history: int, sharpness: float
) -> None:
    stream = PrefixBeam(beam=beam, blank_id=0, history=history)
    ids, log_probs = top_tokens(random_log_probs(seed, 40, vocab, sharpness), beam)
    settled = []
    for at in range(40):
        stream.advance(ids[at : at + 1], log_probs[at : at + 1])
        settled += stream.take_settled()
        found = stream.hypotheses(beam)
        assert len({words(each) for each in found}) == len(found)
        for each in found:
            times = [token.start_frame for token in [*settled, *each.tokens]]
            assert times == sorted(set(times))
            assert all(0 <= time < stream.num_frames for time in times)
            assert all(0 < token.id < vocab for token in each.tokens)


def test_what_is_decided_after_a_while_is_what_the_whole_search_finds_best() -> None:
    ids, values = long_stream(4000)
    endless, exact = PrefixBeam(beam=10, blank_id=0, history=100), PrefixBeam(beam=10, blank_id=0, history=None)
    for stream in (endless, exact):
        stream.advance(ids, values)
    [found], [expected] = endless.hypotheses(1), exact.hypotheses(1)
    assert list(found.tokens) == list(expected.tokens)
    assert found.score == pytest.approx(expected.score, abs=1.0)  # without alignments that start in other words
    old = [tuple(t for t in h.tokens if t.start_frame < 3800) for h in endless.hypotheses(10)]
    assert len(set(old)) == 1


# --- with a scorer

SPELLINGS = ("", "a", "b", " ", "ab")
HOTWORDS = (("ab", 1.5), ("b a", -0.7), ("aa", 2.0))


def hotword_bonus(said: Words) -> float:
    """What whole occurrences of the hotwords add; for the text is complete."""
    text = " ".join("".join(SPELLINGS[id] for id in said).split())
    padded = f" {text} "
    return sum(weight * _occurrences(padded, f" {phrase} ") for phrase, weight in HOTWORDS)


def _occurrences(text: str, phrase: str) -> int:
    return sum(text.startswith(phrase, at) for at in range(len(text)))


@given(seed=st.integers(0, 10**6), frames=st.integers(0, 6))
@settings(max_examples=examples(20))
def test_a_wide_beam_with_hotwords_adds_their_weights_to_every_sequence(seed: int, frames: int) -> None:
    log_probs = random_log_probs(seed, frames, len(SPELLINGS))
    scorer = Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=HOTWORDS)
    found = search(log_probs, beam=3000, scorer=scorer)
    expected = {said: (score, hotword_bonus(said)) for said, score in alignments(log_probs).items()}
    assert len(found) == len(expected)
    for hypothesis in found:
        score, bonus = expected[words(hypothesis)]
        assert hypothesis.log_prob == pytest.approx(score, abs=1e-9)
        assert hypothesis.bonus == pytest.approx(bonus, abs=1e-9)
        assert hypothesis.score == pytest.approx(score + bonus, abs=1e-9)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def walk(scorer: Scorer) -> Callable[[Words], float]:
    """What a scorer adds, token by token."""

    def bonus(said: Words) -> float:
        total, state = 0.0, scorer.start
        for id in said:
            following = np.zeros_like(state)
            total += extend(scorer.address, state, id, following)
            state = following
        return total

    return bonus


@given(seed=st.integers(0, 10**6), frames=st.integers(0, 12), beam=st.integers(1, 8))
@settings(max_examples=examples(60))
def test_shortcuts_change_nothing_with_a_scorer(seed: int, frames: int, beam: int) -> None:
    """The bonus by walking the scorer along the tokens, and every prefix with every token."""
    scorer = Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=HOTWORDS)
    assert scorer is not None
    log_probs = random_log_probs(seed, frames, len(SPELLINGS))
    found = frames_of(beam, scorer, log_probs).hypotheses(beam)
    assert_same(found, by_definition(log_probs, beam, walk(scorer)))


ARPA = Path(__file__).resolve().parents[1] / "data" / "ngram" / "four.arpa"
# Letters, words that begin with a space, letters with a space between them, and characters that are words.
WRITTEN = ("", " to", "t", "o", "a", "n", " ", "d", "ay", " new", "北", " 京", "n t")
TRAVEL = (("to day", 1.5), ("new", 0.7), ("北 京", 2.0), ("an", -1.0))


@pytest.fixture(scope="module")
def model() -> NgramModel:
    return NgramModel.read(ARPA)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(ARPA)


def frames_of(beam: int, scorer: Scorer | None, log_probs: np.ndarray, step: int = 5) -> PrefixBeam:
    stream = PrefixBeam(beam=beam, blank_id=0, scorer=scorer, history=None)
    for start in range(0, len(log_probs), step):
        stream.advance(*top_tokens(log_probs[start : start + step], beam))
    return stream


@given(
    seed=st.integers(0, 10**6),
    frames=st.integers(0, 14),
    beam=st.integers(1, 13),
    sharpness=st.sampled_from([0.5, 3.0, 8.0]),
    weight=st.sampled_from([0.5, 1.5]),
    bonus=st.sampled_from([0.0, 2.0, -1.0]),
)
@settings(max_examples=examples(60))
def test_shortcuts_change_nothing_with_a_language_model(
    model: NgramModel,
    oracle: Oracle,
    seed: int,
    frames: int,
    beam: int,
    sharpness: float,
    weight: float,
    bonus: float,
) -> None:
    scorer = Scorer.build(WRITTEN, lm=model, lm_weight=weight, word_bonus=bonus, unknown_penalty=6.0)
    expected = Bonus(oracle, WRITTEN, weight, bonus, 6.0)
    log_probs = random_log_probs(seed, frames, len(WRITTEN), sharpness)
    stream = frames_of(beam, scorer, log_probs)
    kept = by_definition(log_probs, beam, expected.prefix)
    found = stream.hypotheses(beam)
    assert [words(h) for h in found] == [said for said, _ in kept]
    assert [h.score for h in found] == pytest.approx([total for _, total in kept], abs=1e-4)  # float32 in the tables
    for hypothesis in stream.hypotheses(beam, final=True):
        assert hypothesis.bonus == pytest.approx(expected.finished(words(hypothesis)), abs=1e-4)


@given(
    seed=st.integers(0, 10**6),
    frames=st.integers(0, 14),
    beam=st.integers(1, 13),
    weight=st.sampled_from([0.0, 0.5, -0.5]),
    unit=st.sampled_from(["word", "token"]),
    hotwords=st.sets(st.sampled_from(TRAVEL), max_size=4).map(sorted),
)
@settings(max_examples=examples(60))
def test_shortcuts_change_nothing_with_a_language_model_and_hotwords(
    model: NgramModel,
    seed: int,
    frames: int,
    beam: int,
    weight: float,
    unit: Any,
    hotwords: list[tuple[str, float]],
) -> None:
    """The bonus by walking the scorer along the tokens; less likely words may be better, and tokens may be words."""
    scorer = Scorer.build(WRITTEN, lm=model, lm_weight=weight, word_bonus=0.5, lm_unit=unit, hotwords=hotwords)
    assert scorer is not None
    log_probs = random_log_probs(seed, frames, len(WRITTEN), 3.0)
    stream = frames_of(beam, scorer, log_probs)
    assert_same(stream.hypotheses(beam), by_definition(log_probs, beam, walk(scorer)))


def test_tokens_that_a_scorer_does_not_know_are_refused() -> None:
    scorer = Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=HOTWORDS)
    stream = PrefixBeam(beam=2, blank_id=0, scorer=scorer)
    with pytest.raises(ValueError, match=r"below 5.* got 5"):
        stream.advance(np.array([[0, 5]]), np.log([[0.5, 0.5]]))
    stream.advance(np.array([[0, 4]]), np.log([[0.5, 0.5]]))
    stream.advance(np.zeros((0, 2)), np.zeros((0, 2)))
    assert stream.num_frames == 1


def test_rows_with_different_scorers_share_a_batch() -> None:
    log_probs = random_log_probs(5, 8, len(SPELLINGS))
    scorer = Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=HOTWORDS)
    batch, frames = np.stack([log_probs] * 3), np.array([8, 8, 8])
    scorers = [None, scorer, None]
    plain, biased, again = prefix_beam_search(batch, frames, blank_id=0, beam=4, nbest=4, scorer=scorers, threads=2)
    assert plain == again == search(log_probs, 4)
    assert biased == search(log_probs, 4, scorer=scorer)
    assert biased != plain
    assert {h.bonus for h in plain} == {0.0}


# --- top tokens


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(3, 1), (2, 7), (1, 64), (2, 3, 300), (0, 5), (1, 5000), (2, 1000)]),
    k=st.integers(1, 140),
    levels=st.sampled_from([2, 5, 10**6]),
    nan=st.booleans(),
)
@settings(max_examples=examples(150))
def test_top_tokens_are_those_of_a_stable_sort(
    seed: int, shape: tuple[int, ...], k: int, levels: int, nan: bool
) -> None:
    rng = np.random.default_rng(seed)
    log_probs = (-rng.integers(0, levels, shape) * (20 / levels)).astype(np.float32)
    log_probs[rng.random(shape) < 0.1] = -INF
    if nan:
        log_probs[rng.random(shape) < 0.3] = np.nan
    ids, values = top_tokens(log_probs, k)
    expected = np.argsort(-log_probs, axis=-1, kind="stable")[..., :k]  # numpy puts NaN last too
    if nan:  # where -inf and NaN follow each other, both are worth nothing
        good = np.take_along_axis(log_probs, expected, -1) > -INF
        ids, expected = np.where(good, ids, -1), np.where(good, expected, -1)
    assert np.array_equal(ids, expected)
    if not nan:
        assert np.array_equal(values, np.take_along_axis(log_probs, expected, -1))
    assert (ids.dtype, values.dtype) == (np.int32, np.float32) or nan


def test_top_tokens_share_many_frames_among_threads() -> None:
    log_probs = np.random.default_rng(0).standard_normal((3, 400, 1000), dtype=np.float32)
    ids, values = top_tokens(log_probs, 5, threads=3)
    assert np.array_equal(ids, np.argsort(-log_probs, axis=-1, kind="stable")[..., :5])
    assert np.array_equal(values, -np.sort(-log_probs, axis=-1)[..., :5])


def test_top_tokens_of_positive_and_read_only_numbers() -> None:
    values = np.array([0.0, -0.0, 3.5, -2.0, 1e-30, -1e-30], dtype=np.float64)
    values.flags.writeable = False
    ids, found = top_tokens(values, 4)
    assert ids.tolist() == [2, 4, 0, 1]
    assert found.tolist() == pytest.approx([3.5, 1e-30, 0.0, 0.0])


# --- compiling


def test_a_search_that_cannot_be_cached_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nowhere(function: Callable[..., Any], cache: bool = False, **options: Any) -> Callable[..., Any]:
        if cache:
            raise RuntimeError("cannot cache function 'double': no locator available for file 'x.py'")
        return function

    monkeypatch.setattr(compiled.numba, "njit", nowhere)
    assert compiled.compiled(lambda number: 2 * number)(21) == 42
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_a_full_disk_under_the_cache_costs_compiling_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FunctionCache, "save_overload", full)
    monkeypatch.setattr(FunctionCache, "load_overload", lambda *_: None)
    compiled._warn_of_the_cache.cache_clear()
    assert compiled.compiled(_double)(21) == 42
    assert "No space left on device. Free space there, or set NUMBA_CACHE_DIR" in caplog.text


def _double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("name", ["beam/records.py", "scoring/alphabet.py", "ctc/prefix_kernel.py"])
def test_machine_code_is_made_anew_when_any_module_of_the_search_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    def stamp() -> str:
        return kept.sources_stamp.__wrapped__()

    copy = tmp_path / "search"
    shutil.copytree(kept.SOURCES, copy)
    before = stamp()
    monkeypatch.setattr(kept, "SOURCES", copy)
    assert stamp() == before
    with (copy / name).open("a", encoding="utf-8") as file:
        file.write("# another state\n")
    assert stamp() != before


def test_no_compiled_function_has_more_than_seven_parameters() -> None:
    decorators = {"compiled", "inlined", "merged", "summing"}
    counts = {
        f"{path.name}:{node.name}": len(node.args.args)
        for path in kept.SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and {ast.unparse(each) for each in node.decorator_list} & decorators
    }
    assert len(counts) > 80
    assert {name: count for name, count in counts.items() if count > 7} == {}
