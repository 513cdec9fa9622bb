"""Greedy and modified beam search of transducers, on networks whose logits are sums of two tables."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpa_oracle import Oracle, words_of
from effort import examples
from tritone.search.beam import beam as beam_module
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.ngram.model import NgramModel
from tritone.search.scoring.scorer import STATE_SIZE, Scorer, extend, finish
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.greedy import GreedyState, advance_greedy
from tritone.search.transducer.modified_beam import ModifiedBeam
from tritone.search.transducer.predictor import PredictorCache

BLANK = 0
ARPA = Path(__file__).resolve().parents[1] / "data" / "ngram" / "four.arpa"
SEEDS = st.integers(0, 2**32 - 1)
Sequence_ = tuple[int, ...]
Array = npt.NDArray[Any]


@pytest.fixture(autouse=True, scope="module")
def _little_room() -> Iterator[None]:
    """Searches make room every few frames instead of every few hundred."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam_module, "MIN_ROOM", 4)
        patch.setattr(ModifiedBeam, "spare_frames", 2)
        yield


class TableNetwork:
    """The logits of a frame are what the encoder says of each token, and what the tokens before it add to that."""

    blank_id = BLANK

    def __init__(
        self, vocab_size: int, *, start: Sequence_ = (-1, 0), unk_id: int | None = None, seed: int = 0
    ) -> None:
        self.vocab_size = vocab_size
        self.start = start
        self.unk_id = unk_id
        self.asked: list[Sequence_] = []
        self.num_calls = self.num_rows = 0
        self._weights = np.random.default_rng(seed).standard_normal((len(start), vocab_size + 1, vocab_size))

    def predict(self, contexts: Array) -> npt.NDArray[np.float32]:
        self.asked += map(tuple, contexts.tolist())
        vectors = [sum(self._weights[i, token] for i, token in enumerate(context)) for context in contexts]
        return np.array(vectors, dtype=np.float32).reshape(len(contexts), self.vocab_size)

    def join(self, encoder_out: Array, predictor_out: Array) -> Array:
        self.num_calls += 1
        self.num_rows += len(encoder_out)
        return encoder_out + predictor_out

    def logits(self, frame: Array, tokens: Sequence_) -> Array:
        context = (*self.start, *tokens)[-len(self.start) :]
        return frame + self.predict(np.array([context]))[0]


def log_softmax(logits: Array, blank_penalty: float = 0.0, temperature: float = 1.0) -> Array:
    logits = logits.astype(np.float64)
    logits[BLANK] -= blank_penalty
    logits /= temperature
    return logits - np.logaddexp.reduce(logits)


def random_frames(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(np.float32)


def ids(found: list[Token] | Hypothesis) -> Sequence_:
    return tuple(token.id for token in (found.tokens if isinstance(found, Hypothesis) else found))


def greedy(network: TableNetwork, frames: Array, num_frames: Any = None, **options: Any) -> list[list[Token]]:
    cache = PredictorCache(network)
    lengths = [len(row) for row in frames] if num_frames is None else num_frames
    return advance_greedy([GreedyState(cache, **options) for _ in frames], frames, np.array(lengths, dtype=np.int64))


def modified(
    network: TableNetwork, frames: Array, num_frames: Any = None, *, nbest: int = 1000, **options: Any
) -> list[list[Hypothesis]]:
    cache = PredictorCache(network)
    beams = [ModifiedBeam(cache, **options) for _ in frames]
    lengths = [len(row) for row in frames] if num_frames is None else num_frames
    advance_beams(beams, frames, np.array(lengths, dtype=np.int64))
    return [beam.hypotheses(nbest, final=True) for beam in beams]


def greedy_oracle(
    network: TableNetwork, frames: Array, blank_penalty: float, max_symbols: int
) -> list[tuple[int, int, float]]:
    said: list[tuple[int, int, float]] = []
    for number, frame in enumerate(frames):
        for _ in range(max_symbols):
            log_probs = log_softmax(network.logits(frame, tuple(token for token, _, _ in said)), blank_penalty)
            best = int(log_probs.argmax())
            if best in (BLANK, network.unk_id):
                break
            said.append((best, number, math.exp(log_probs[best])))
    return said


def beam_oracle(
    network: TableNetwork, frames: Array, beam: int, **options: float
) -> dict[Sequence_, tuple[float, Any]]:
    """Log-probability and times of the hypotheses after the last frame, as upstream finds them."""
    alive: dict[Sequence_, tuple[float, Any]] = {(): (0.0, ())}
    for number, frame in enumerate(frames):
        extended = [
            (score + log_prob, tokens if token in (BLANK, network.unk_id) else (*tokens, token), times, tokens)
            for tokens, (score, times) in alive.items()
            for token, log_prob in enumerate(log_softmax(network.logits(frame, tokens), **options))
        ]
        alive = {}
        for score, tokens, times, before in sorted(extended, key=lambda each: -each[0])[:beam]:
            if tokens in alive:
                alive[tokens] = np.logaddexp(alive[tokens][0], score), alive[tokens][1]
            else:
                alive[tokens] = score, times if tokens == before else (*times, number)
    return alive


@given(SEEDS, st.integers(1, 4), st.sampled_from([0.0, 1.5, -2.0]), st.sampled_from([None, 2]), st.integers(1, 3))
def test_greedy_search_says_the_best_token_until_a_blank_is_better(
    seed: int, max_symbols: int, blank_penalty: float, unk_id: int | None, context_size: int
) -> None:
    network = TableNetwork(6, start=(-1,) * (context_size - 1) + (0,), unk_id=unk_id, seed=seed)
    frames = random_frames(seed, 9, 6) + 2 * np.eye(6, dtype=np.float32)[BLANK]
    [found] = greedy(network, frames[None], blank_penalty=blank_penalty, max_symbols=max_symbols)
    expected = greedy_oracle(network, frames, blank_penalty, max_symbols)
    assert [(token.id, token.start_frame, token.end_frame) for token in found] == [
        (t, f, f + 1) for t, f, _ in expected
    ]
    assert [token.confidence for token in found] == pytest.approx([p for *_, p in expected], abs=1e-5)


@given(SEEDS, st.lists(st.integers(0, 12), min_size=1, max_size=6), st.sampled_from([1, 10, 1000]))
def test_greedy_search_does_not_depend_on_neighbours_chunks_or_the_size_of_blocks(
    seed: int, lengths: list[int], call_rows: int
) -> None:
    network = TableNetwork(7, seed=seed)
    frames = random_frames(seed, len(lengths), 12, 7) + 2.5 * np.eye(7, dtype=np.float32)[BLANK]
    options: list[Any] = [{"blank_penalty": row / 2, "max_symbols": 1 + row % 3} for row in range(len(lengths))]
    alone = [greedy(network, frames[row : row + 1, :length], **options[row])[0] for row, length in enumerate(lengths)]
    cache = PredictorCache(network)
    states = [GreedyState(cache, **each) for each in options]
    found: list[list[Token]] = [[] for _ in lengths]
    rest = np.array(lengths)
    chances = np.random.default_rng(seed)
    while rest.any():
        steps = np.minimum(chances.integers(0, 6, len(lengths)), rest)
        chunk = np.full((len(lengths), 6, 7), 1e9, dtype=np.float32)  # what is beyond a row's frames is not looked at
        for row, step in enumerate(steps):
            first = lengths[row] - rest[row]
            chunk[row, :step] = frames[row, first : first + step]
        for row, new in enumerate(advance_greedy(states, chunk, steps, call_rows=call_rows)):
            found[row] += new
        rest -= steps
    assert found == alone


def test_greedy_search_asks_for_blanks_in_bulk() -> None:
    network = TableNetwork(5)
    frames = np.zeros((4, 300, 5), dtype=np.float32)
    frames[:, :, BLANK] = 50.0
    frames[:, 100::50, 3] = 100.0
    found = greedy(network, frames)
    assert [[token.start_frame for token in tokens] for tokens in found] == [[100, 150, 200, 250]] * 4
    assert network.num_calls < 60
    assert network.num_rows < 4 * 300 * 1.5
    assert len(network.asked) == len({(-1, 0), (0, 3), (3, 3)})


@given(
    SEEDS, st.integers(1, 5), st.sampled_from([0.0, 2.0]), st.sampled_from([1.0, 0.5, 3.0]), st.sampled_from([None, 1])
)
def test_modified_beam_search_keeps_what_upstream_keeps(
    seed: int, beam: int, blank_penalty: float, temperature: float, unk_id: int | None
) -> None:
    network = TableNetwork(5, unk_id=unk_id, seed=seed)
    frames = random_frames(seed, 7, 5)
    options: Any = {"blank_penalty": blank_penalty, "temperature": temperature}
    [found] = modified(network, frames[None], beam=beam, **options)
    expected = beam_oracle(network, frames, beam, **options)
    assert {ids(each): tuple(token.start_frame for token in each.tokens) for each in found} == {
        tokens: times for tokens, (_, times) in expected.items()
    }
    for each in found:
        assert each.log_prob == pytest.approx(expected[ids(each)][0], abs=1e-4)
        assert each.score == pytest.approx(each.log_prob / (len(each.tokens) + 2), abs=1e-9)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@given(SEEDS, st.integers(1, 3))
def test_a_beam_that_drops_nothing_adds_up_all_alignments(seed: int, context_size: int) -> None:
    network = TableNetwork(3, start=(-1,) * (context_size - 1) + (0,), seed=seed)
    frames = random_frames(seed, 4, 3)
    sums: dict[Sequence_, float] = {(): 0.0}
    for frame in frames:
        after: dict[Sequence_, float] = {}
        for tokens, score in sums.items():
            for token, log_prob in enumerate(log_softmax(network.logits(frame, tokens))):
                longer = (*tokens, token) if token else tokens
                after[longer] = np.logaddexp(after.get(longer, -np.inf), score + log_prob)
        sums = after
    [found] = modified(network, frames[None], beam=128)
    assert {ids(each): pytest.approx(each.log_prob, abs=1e-4) for each in found} == sums
    assert np.logaddexp.reduce([each.log_prob for each in found]) == pytest.approx(0.0, abs=1e-4)


@given(SEEDS, st.lists(st.integers(0, 12), min_size=1, max_size=5), st.booleans())
def test_a_modified_beam_does_not_depend_on_neighbours_or_chunks(
    seed: int, lengths: list[int], takes_settled: bool
) -> None:
    network = TableNetwork(7, seed=seed)
    frames = random_frames(seed, len(lengths), 12, 7) * 2
    scorer = Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=[("甲乙", 2.0), ("乙", -1.0)])
    options: list[dict[str, Any]] = [
        {"beam": 1 + row, "blank_penalty": row / 2, "temperature": 1 + row / 4, "scorer": scorer if row % 2 else None}
        for row in range(len(lengths))
    ]
    alone = [modified(network, frames[row : row + 1, :length], **options[row])[0] for row, length in enumerate(lengths)]
    cache = PredictorCache(network)
    beams = [ModifiedBeam(cache, **each) for each in options]
    settled: list[list[Token]] = [[] for _ in lengths]
    rest = np.array(lengths)
    chances = np.random.default_rng(seed)
    while rest.any():
        steps = np.minimum(chances.integers(0, 6, len(lengths)), rest)
        chunk = np.full((len(lengths), 6, 7), np.nan, dtype=np.float32)
        for row, step in enumerate(steps):
            first = lengths[row] - rest[row]
            chunk[row, :step] = frames[row, first : first + step]
        advance_beams(beams, chunk, steps)
        rest -= steps
        for row, beam in enumerate(beams if takes_settled else []):
            settled[row] += beam.take_settled()
    for beam, before, expected, length in zip(beams, settled, alone, lengths, strict=True):
        assert beam.num_frames == length
        found = beam.hypotheses(1000, final=True)
        assert [Hypothesis([*before, *each.tokens], each.log_prob, each.bonus, None, each.score) for each in found] == [
            Hypothesis([*each.tokens], each.log_prob, each.bonus, None, each.score) for each in expected
        ]


SPELLINGS = ("", "甲", "乙", "丙", "丁", "戊", "己")


def worth(text: str, phrases: dict[str, float], overlapping: bool) -> float:
    """What phrases add to a whole text."""
    if overlapping:
        return sum(weight * text.startswith(p, i) for i in range(len(text)) for p, weight in phrases.items())
    total, first = 0.0, 0
    for end in range(1, len(text) + 1):
        complete = [p for p in phrases if text[first:end].endswith(p)]
        if complete:
            total += phrases[max(complete, key=len)]
            first = end
    return total


PHRASES = st.dictionaries(
    st.text(SPELLINGS[1] + SPELLINGS[2] + SPELLINGS[3], min_size=1, max_size=3),
    st.sampled_from([0.75, 2.0]),
    min_size=1,
)


@given(st.lists(st.integers(0, 3), max_size=12), PHRASES, st.booleans())
def test_all_that_is_lent_to_phrases_is_taken_back_at_the_end(
    tokens: list[int], phrases: dict[str, float], overlapping: bool
) -> None:
    scorer = Scorer.build(
        SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=[*phrases.items()], overlapping=overlapping
    )
    assert scorer is not None
    state, total = scorer.start.copy(), 0.0
    for token in tokens:
        total += extend(scorer.address, state, token, following := np.zeros(STATE_SIZE, dtype=np.int32))
        state = following
    total += finish(scorer.address, state)
    assert total == pytest.approx(worth("".join(SPELLINGS[t] for t in tokens), phrases, overlapping), abs=1e-9)


@given(SEEDS, PHRASES, st.booleans())
def test_a_wide_modified_beam_adds_phrases_to_every_hypothesis(
    seed: int, phrases: dict[str, float], overlapping: bool
) -> None:
    network = TableNetwork(4, seed=seed)
    frames = random_frames(seed, 3, 4)
    scorer = Scorer.build(
        SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=[*phrases.items()], overlapping=overlapping
    )
    [found] = modified(network, frames[None], beam=128, scorer=scorer)
    [plain] = modified(network, frames[None], beam=128)
    log_probs = {ids(each): each.log_prob for each in plain}
    assert len(found) == len(plain) == 1 + 3 + 9 + 27
    for each in found:
        assert each.log_prob == pytest.approx(log_probs[ids(each)], abs=1e-9)
        text = "".join(SPELLINGS[token] for token in ids(each))
        assert each.bonus == pytest.approx(worth(text, phrases, overlapping), abs=1e-9)
        assert each.score == pytest.approx((each.log_prob + each.bonus) / (len(each.tokens) + 2), abs=1e-9)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@given(SEEDS, st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 1.5]))
@settings(max_examples=examples(15))
def test_a_wide_modified_beam_adds_the_language_model_to_every_hypothesis(
    seed: int, weight: float, word_bonus: float
) -> None:
    spellings = ("", " to", "day", " n", "北")
    network = TableNetwork(len(spellings), seed=seed)
    frames = random_frames(seed, 3, len(spellings))
    scorer = Scorer.build(
        spellings, lm=NgramModel.read(ARPA), lm_weight=weight, word_bonus=word_bonus, unknown_penalty=6.0
    )
    oracle = Oracle(ARPA)
    [found] = modified(network, frames[None], beam=128, scorer=scorer)
    assert len(found) == 1 + 4 + 16 + 64
    for each in found:
        words = words_of("".join(spellings[token] for token in ids(each)))
        expected = oracle.total(words, weight, word_bonus, 6.0) if scorer is not None else 0.0
        assert each.bonus == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_hurt_neither_neighbours_nor_other_frames(bad: float) -> None:
    network = TableNetwork(6, seed=3)
    frames = random_frames(5, 3, 10, 6)
    broken = frames.copy()
    broken[1, 4] = bad  # a frame that says nothing
    broken[1, 6, 2] = bad  # and one that rules a token out
    clean = frames.copy()
    clean[1, 6, 2] = -1e30
    without = np.delete(clean[1:2], 4, axis=1)
    found, expected = greedy(network, broken), greedy(network, frames)
    assert (found[0], found[2]) == (expected[0], expected[2])
    assert ids(found[1]) == ids(greedy(network, without)[0])
    nbest, expected_nbest = modified(network, broken, beam=4), modified(network, frames, beam=4)
    assert (nbest[0], nbest[2]) == (expected_nbest[0], expected_nbest[2])
    assert [ids(each) for each in nbest[1]] == [ids(each) for each in modified(network, without, beam=4)[0]]


def test_an_endless_stream_needs_no_more_memory_and_hands_over_all_tokens() -> None:
    network = TableNetwork(6, seed=1)
    cache = PredictorCache(network)
    beams = [ModifiedBeam(cache, beam=4, history=50) for _ in range(8)]
    sizes: list[int] = []
    settled: list[list[Token]] = [[] for _ in beams]
    for step in range(60):
        frames = random_frames(step, 8, 25, 6)
        frames[:, :, 4] = frames[:, :, 5] + 1e-3  # two tokens that are nearly the same keep hypotheses apart
        advance_beams(beams, frames, np.full(8, 25))
        for beam, tokens in zip(beams, settled, strict=True):
            tokens += beam.take_settled()
        sizes.append(sum(beam.num_bytes for beam in beams))
    assert max(sizes) < 8 * 80_000  # twice what four hypotheses of 100 frames need, and room as much again
    for beam, tokens in zip(beams, settled, strict=True):
        assert beam.num_frames == 60 * 25
        times = [token.start_frame for token in [*tokens, *beam.hypotheses(1)[0].tokens]]
        assert len(times) > 500
        assert times == sorted(set(times))


@given(SEEDS, st.integers(3, 5), st.integers(2, 10), st.integers(1, 8), st.sampled_from([0.1, 0.5, 1.0]))
@settings(max_examples=examples(40))
def test_what_is_decided_early_leaves_all_hypotheses_in_order(
    seed: int, vocab_size: int, beam: int, history: int, contrast: float
) -> None:
    network = TableNetwork(vocab_size, seed=seed)
    network._weights *= contrast
    search = ModifiedBeam(PredictorCache(network), beam=beam, history=history)
    settled: list[Token] = []
    for frame in random_frames(seed, 40, 1, 1, vocab_size) * contrast / 2:
        advance_beams([search], frame, np.array([1]))
        settled += search.take_settled()
        found = search.hypotheses(beam)
        assert len({ids(each) for each in found}) == len(found)
        for each in found:
            times = [token.start_frame for token in [*settled, *each.tokens]]
            assert times == sorted(set(times))
            assert all(0 <= time < search.num_frames for time in times)
            assert all(0 < token.id < vocab_size for token in each.tokens)


def test_what_is_decided_is_what_the_best_hypothesis_says_by_the_mean_over_its_tokens() -> None:
    network = TableNetwork(3)
    network._weights[:] = 0.0
    frames = np.full((1, 4, 3), -30.0, dtype=np.float32)
    frames[:, :, BLANK] = 0.0
    frames[:, 0, 1] = -0.15  # without this token it is likelier, -0.62 to -0.77, but of 3 and 4 tokens
    frames[:, 1, 2] = 30.0
    for history in (None, 1):
        [[best, *_]] = modified(network, frames, beam=4, history=history)
        assert ids(best) == (1, 2)


def test_no_frames_and_no_rows_find_nothing() -> None:
    network = TableNetwork(4)
    assert greedy(network, np.zeros((2, 0, 4), dtype=np.float32)) == [[], []]
    assert greedy(network, random_frames(0, 2, 3, 4), [-2, 0]) == [[], []]
    assert advance_greedy([], np.zeros((0, 5, 4), dtype=np.float32), np.zeros(0, dtype=np.int64)) == []
    [[empty], _] = modified(network, np.zeros((2, 0, 4), dtype=np.float32), beam=3)
    assert empty == Hypothesis([], log_prob=0.0)
    advance_beams([], np.zeros((0, 5, 4), dtype=np.float32), np.zeros(0, dtype=np.int64))


def test_mistakes_of_callers_are_told() -> None:
    network = TableNetwork(4)
    cache = PredictorCache(network)
    frames = random_frames(0, 2, 3, 4)
    state, beam = GreedyState(cache), ModifiedBeam(cache, beam=2)
    for states in ([state], [state, state]):
        with pytest.raises(ValueError, match="each row needs a search of its own"):
            advance_greedy(states, frames, np.array([3, 3]))
    with pytest.raises(ValueError, match="share one PredictorCache, got 2"):
        advance_beams([beam, ModifiedBeam(PredictorCache(network), beam=2)], frames, np.array([3, 3]))
    with pytest.raises(ValueError, match="temperature must be above 0"):
        ModifiedBeam(cache, beam=2, temperature=0.0)
    with pytest.raises(ValueError, match="max_symbols must be at least 1"):
        GreedyState(cache, max_symbols=0)
    with pytest.raises(ValueError, match=r"contexts must be \(rows, 2\)"):
        cache(np.zeros((3, 1), dtype=np.int64))
    small = Scorer.build(SPELLINGS[:3], lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=[(SPELLINGS[1], 1.0)])
    with pytest.raises(ValueError, match="built for 3 tokens, but the model has 4"):
        ModifiedBeam(cache, beam=2, scorer=small)
    cache(np.array([network.start]))
    narrow = PredictorCache(network)
    narrow(np.array([network.start]))
    network.predict = lambda contexts: np.zeros((len(contexts), 3), dtype=np.float32)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="vectors of one width; got 3 after 4"):
        narrow(np.array([[1, 2]]))
    network.vocab_size = 5  # what the joiner gives is 4
    with pytest.raises(ValueError, match=r"logits must be \(2, 5\), got \(2, 4\)"):
        advance_beams([beam, ModifiedBeam(cache, beam=2)], frames, np.array([3, 3]))


@given(SEEDS, st.sampled_from([1, 40, 1 << 20]), st.integers(1, 4))
def test_a_cache_gives_what_the_predictor_gives_and_asks_once_while_there_is_room(
    seed: int, max_bytes: int, context_size: int
) -> None:
    network, reference = (TableNetwork(5, start=(0,) * context_size, seed=seed) for _ in range(2))
    cache = PredictorCache(network, max_bytes=max_bytes)
    chances = np.random.default_rng(seed)
    for _ in range(6):
        contexts = chances.integers(-1, 5, (int(chances.integers(1, 20)), context_size))
        np.testing.assert_array_equal(cache(contexts), reference.predict(contexts))
        assert len(cache) <= max(1, max_bytes // 20)
    if max_bytes > 1 << 19:
        assert len(set(network.asked)) == len(network.asked) == len(cache)


def test_threads_share_a_cache() -> None:
    network, reference = TableNetwork(9), TableNetwork(9)
    cache = PredictorCache(network, max_bytes=36 * 30)  # so few that contexts are forgotten all the time
    contexts = [np.random.default_rng(thread).integers(-1, 9, (200, 12, 2)) for thread in range(4)]
    wrong: list[int] = []

    def ask(thread: int) -> None:
        for some in contexts[thread]:
            if not np.array_equal(cache(some), reference.predict(some)):
                wrong.append(thread)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cache) <= 30
