"""Fast beam search against its definition, brute force over all paths, and itself in other batches and chunks."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpa_oracle import Bonus, Oracle, words_of
from effort import examples
from tritone.search.hypothesis import Hypothesis
from tritone.search.ngram.model import NgramModel
from tritone.search.scoring.scorer import Scorer, extend
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.fast_beam import FastBeam
from tritone.search.transducer.predictor import PredictorCache

INF = math.inf
Words = tuple[int, ...]
ARPA = Path(__file__).resolve().parents[1] / "data" / "ngram" / "four.arpa"
DIM = 6


class ToyNetwork:
    """A network of random numbers that counts its calls. An encoder output of NaN spoils its row."""

    def __init__(self, vocab_size: int, context_size: int = 2, unk_id: int | None = None, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.vocab_size, self.blank_id, self.unk_id = vocab_size, 0, unk_id
        self.start = (-1,) * (context_size - 1) + (0,)
        self._said = rng.normal(0, 1, (vocab_size + 1, context_size, DIM)).astype(np.float32)
        self._out = rng.normal(0, 2, (DIM, vocab_size)).astype(np.float32)
        self.asked: list[int] = []

    def predict(self, contexts: np.ndarray) -> np.ndarray:
        return self._said[contexts, np.arange(contexts.shape[1])].sum(axis=1)

    def join(self, encoder_out: np.ndarray, predictor_out: np.ndarray) -> np.ndarray:
        self.asked.append(len(encoder_out))
        with np.errstate(invalid="ignore"):  # a product of infinities
            # Not by @, which on some CPUs rounds a row as it likes best for the number of rows.
            return (np.tanh(encoder_out + predictor_out)[:, :, None] * self._out).sum(axis=1)


def frames_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1.5, (count, DIM)).astype(np.float32)


def search(network: ToyNetwork, frames: np.ndarray, **options: Any) -> FastBeam:
    beam = FastBeam(PredictorCache(network), **options)
    advance_beams([beam], frames[None], np.array([len(frames)]))
    return beam


def words(hypothesis: Hypothesis) -> Words:
    return tuple(token.id for token in hypothesis.tokens)


def log_probs(network: ToyNetwork, frame: np.ndarray, context: Sequence[int], **options: float) -> np.ndarray:
    """Log-probabilities (vocab,), with the best of blank and unknown token as blank's, and the unknown one's gone."""
    logits = network.join(frame[None], network.predict(np.array([context])))[0].astype(np.float64)
    logits[0] -= options.get("blank_penalty", 0.0)
    logits /= options.get("temperature", 1.0)
    row = logits - np.logaddexp.reduce(logits)
    if network.unk_id is not None:
        row[0] = max(row[0], row[network.unk_id])
        row[network.unk_id] = -INF
    return row


# What a scorer adds to a sequence, and what of it is the same for sequences that will go on alike.
Graph = Callable[[Words], tuple[float, Any]]


def no_graph(said: Words) -> tuple[float, Any]:
    return 0.0, None


def by_definition(
    network: ToyNetwork,
    frames: np.ndarray,
    *,
    beam: float,
    max_states: int,
    max_contexts: int,
    nbest: int = 1,
    final_arc: bool = False,
    graph: Graph = no_graph,
    **options: float,
) -> list[tuple[Words, float]]:
    """Tokens and scores, best first: every state with every token, each sequence by its best alignment."""
    size = len(network.start)

    def context_of(said: Words) -> Words:
        return ((0,) * size + said)[-size:]

    def state_of(said: Words) -> tuple[Words, Any]:
        return context_of(said), graph(said)[1]

    alive: dict[Any, dict[Words, float]] = {state_of(()): {(): 0.0}}  # what leads to each state, without bonus
    finals: dict[Any, dict[Words, float]] = {}
    for frame in frames:
        rows = {context: log_probs(network, frame, context, **options) for context in {key for key, _ in alive}}

        def total(said: Words, score: float) -> float:
            return score + graph(said)[0]

        def best(sequences: dict[Words, float]) -> float:
            return max(itertools.starmap(total, sequences.items()))

        def the_best(sequences: dict[Words, float]) -> dict[Words, float]:
            ranked = sorted(sequences, key=lambda said: total(said, sequences[said]), reverse=True)
            return {said: sequences[said] for said in ranked[:nbest]}

        lowest = max(map(best, alive.values())) - beam
        reached: dict[Any, dict[Words, float]] = defaultdict(dict)
        ends: dict[Any, tuple[dict[Words, float], float]] = {}
        for state, sequences in alive.items():
            row = rows[state[0]]
            leader = max(sequences, key=lambda said: total(said, sequences[said]))
            for token in range(network.vocab_size):
                after = total((*leader, token) if token else leader, sequences[leader] + row[token])
                if token and not (after >= lowest and row[token] > -INF):
                    continue
                for said, score in sequences.items():
                    longer = (*said, token) if token else said
                    sums = reached[state_of(longer)]
                    sums[longer] = max(sums.get(longer, -INF), score + row[token])
            if final_arc:
                ends[state] = dict(sequences), best(sequences) + row[0]
        ranked = [(-best(sequences), state[0], 0, state) for state, sequences in reached.items()]
        ranked += [(-value, state[0], 1, state) for state, (_, value) in ends.items()]
        ranked = sorted(ranked, key=lambda item: item[:3])[:max_states]
        ranked = [item for item in ranked if item[0] <= ranked[0][0] + beam]
        contexts = list(dict.fromkeys(item[1] for item in ranked))[:max_contexts]
        ranked = [item for item in ranked if item[1] in contexts]
        alive = {state: the_best(reached[state]) for _, _, is_final, state in ranked if not is_final}
        finals = {state: ends[state][0] for _, _, is_final, state in ranked if is_final}
    last = finals if final_arc and len(frames) else alive
    found = [(said, score) for sequences in last.values() for said, score in sequences.items()]
    return sorted(((said, score + graph(said)[0]) for said, score in found), key=lambda item: -item[1])


def assert_same(found: Sequence[Hypothesis], expected: Sequence[tuple[Words, float]]) -> None:
    assert [h.score for h in found] == pytest.approx([score for _, score in expected], abs=1e-4)  # float32 sums
    assert [words(h) for h in found] == [said for said, _ in expected]


def alignments(network: ToyNetwork, frames: np.ndarray) -> dict[Words, float]:
    """The best alignment of every token sequence, by trying all of them."""
    best: dict[Words, float] = {(): 0.0}
    size = len(network.start)
    for frame in frames:
        row_of = {context: log_probs(network, frame, context) for context in {((0,) * size + s)[-size:] for s in best}}
        longer: dict[Words, float] = {}
        for said, score in best.items():
            row = row_of[((0,) * size + said)[-size:]].tolist()
            for token in range(network.vocab_size):
                key = (*said, token) if token else said
                longer[key] = max(longer.get(key, -INF), score + row[token])
        best = longer
    return best


WIDE = {"beam": 1e6, "max_states": 400, "max_contexts": 400}


# --- without a scorer


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(0, 8),
    vocab_size=st.integers(2, 6),
    context_size=st.integers(1, 3),
    beam=st.sampled_from([0.5, 3.0, 20.0]),
    max_states=st.integers(1, 15),
    max_contexts=st.integers(1, 9),
    nbest=st.integers(1, 4),
    final_arc=st.booleans(),
    has_unk=st.booleans(),
    changes=st.sampled_from([{}, {"blank_penalty": 1.5}, {"temperature": 2.0, "blank_penalty": -0.5}]),
)
@settings(max_examples=examples(60))
def test_shortcuts_change_nothing(
    seed: int, count: int, vocab_size: int, context_size: int, has_unk: bool, changes: dict[str, float], **options: Any
) -> None:
    network = ToyNetwork(
        vocab_size, context_size, unk_id=1 if has_unk and not options["final_arc"] else None, seed=seed
    )
    frames = frames_of(seed, count)
    expected = by_definition(network, frames, **options, **changes)
    found = search(network, frames, **options, **changes).hypotheses(1000, final=True)
    if expected:
        assert_same(found, expected)
    else:
        assert [(words(h), h.score) for h in found] == [((), -INF)]


@pytest.mark.parametrize(("count", "vocab_size", "context_size"), [(5, 3, 1), (4, 4, 2), (6, 3, 3)])
def test_a_wide_beam_finds_the_best_alignment_of_every_sequence(count: int, vocab_size: int, context_size: int) -> None:
    network, frames = ToyNetwork(vocab_size, context_size, seed=count), frames_of(count, count)
    expected = sorted(alignments(network, frames).items(), key=lambda item: -item[1])
    options = {**WIDE, "max_states": 40} if context_size == 3 else {**WIDE, "max_states": 20}
    found = search(network, frames, **options, nbest=50).hypotheses(10_000)
    assert_same(found[:25], expected[:25])
    assert_same(search(network, frames, **WIDE).hypotheses(1), expected[:1])


def test_tokens_have_the_frames_and_probabilities_of_the_best_alignment() -> None:
    network, frames = ToyNetwork(5, seed=3), frames_of(3, 9)
    [found] = search(network, frames, **WIDE).hypotheses(1)
    said, score = [0, 0], 0.0
    at = {token.start_frame: token for token in found.tokens}
    for number, frame in enumerate(frames):
        row = log_probs(network, frame, said[-2:])
        token = at.get(number)
        score += float(row[token.id if token else 0])
        if token:
            assert token.end_frame == number + 1
            assert token.confidence == pytest.approx(math.exp(row[token.id]), rel=1e-4)
            said.append(token.id)
    assert len(found.tokens) > 2
    assert (found.log_prob, found.bonus) == pytest.approx((score, 0.0), abs=1e-4)


def test_a_search_starts_with_blanks_or_what_it_is_told() -> None:
    network, frame = ToyNetwork(5, seed=4), frames_of(4, 1)
    for start in (None, (-1, 0), (3, 4)):
        [best] = search(network, frame, start=start).hypotheses(1)
        row = log_probs(network, frame[0], start or (0, 0))
        assert best.log_prob == pytest.approx(row.max(), abs=1e-5)


def test_an_unknown_token_is_never_said_and_counts_as_blank() -> None:
    network, frames = ToyNetwork(4, unk_id=2, seed=5), frames_of(5, 40)
    network._out[:, 2] *= 3.0
    found = search(network, frames, nbest=20).hypotheses(20)
    assert all(2 not in words(h) for h in found)
    assert_same(found[:1], by_definition(network, frames, beam=20.0, max_states=64, max_contexts=8)[:1])


# --- batches, chunks, streams

MIXED: tuple[dict[str, Any], ...] = (
    {"max_contexts": 3, "nbest": 2},
    {"beam": 2.0, "blank_penalty": 1.0},
    {"temperature": 1.7, "max_states": 5, "nbest": 3},
    {"final_arc": True},
)


@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    history=st.sampled_from([None, 1, 4, 9]),
    hotwords=st.booleans(),
)
@settings(max_examples=examples(50))
def test_neighbours_with_other_options_and_any_chunks_change_nothing(
    seed: int, lengths: list[int], cuts: list[int], history: int | None, hotwords: bool
) -> None:
    network = ToyNetwork(len(SPELLINGS), seed=seed)
    options = [dict(MIXED[row % len(MIXED)], history=history) for row in range(len(lengths))]
    if hotwords:
        options[0]["scorer"] = hotword_scorer()
    utterances = [frames_of(seed + row, length) for row, length in enumerate(lengths)]
    alone = [search(network, frames, **each).hypotheses(9) for frames, each in zip(utterances, options, strict=True)]
    batch = np.full((len(lengths), 30, DIM), np.nan, dtype=np.float32)
    for row, frames in enumerate(utterances):
        batch[row, : len(frames)] = frames
    cache = PredictorCache(network)
    beams = [FastBeam(cache, **each) for each in options]
    for start, end in itertools.pairwise([0, *sorted(cuts), 30]):
        advance_beams(beams, batch[:, start:end], np.array(lengths) - start)
    for beam, expected, length in zip(beams, alone, lengths, strict=True):
        assert beam.num_frames == length
        assert [(words(h), [t.start_frame for t in h.tokens]) for h in beam.hypotheses(9)] == [
            (words(h), [t.start_frame for t in h.tokens]) for h in expected
        ]
        assert [h.score for h in beam.hypotheses(9)] == pytest.approx([h.score for h in expected], abs=1e-5)


def test_a_frame_costs_one_call_of_the_joiner_whatever_the_batch() -> None:
    network = ToyNetwork(6)
    cache = PredictorCache(network)
    beams = [FastBeam(cache, max_contexts=4) for _ in range(20)]
    advance_beams(beams, np.stack([frames_of(row, 50) for row in range(20)]), np.full(20, 50))
    assert len(network.asked) == 50
    assert max(network.asked) == 80


@pytest.mark.parametrize("bad", [np.nan, INF, -INF])
def test_frames_that_are_no_numbers_are_passed_over_and_neighbours_do_not_notice(bad: float) -> None:
    network = ToyNetwork(5)
    frames = frames_of(1, 20)
    spoilt = frames.copy()
    spoilt[7] = bad
    join = network.join

    def spoiling(encoder_out: np.ndarray, predictor_out: np.ndarray) -> np.ndarray:
        logits = join(encoder_out, predictor_out)
        logits[~np.isfinite(encoder_out).all(axis=1)] = bad
        return logits

    network.join = spoiling  # type: ignore[method-assign]
    cache = PredictorCache(network)
    beams = [FastBeam(cache, nbest=3) for _ in range(2)]
    advance_beams(beams, np.stack([spoilt, frames]), np.array([20, 20]))
    expected = search(network, np.delete(frames, 7, axis=0), nbest=3).hypotheses(3)
    assert [words(h) for h in beams[0].hypotheses(3)] == [words(h) for h in expected]
    # The joiner multiplies the rows of both beams at once, and BLAS may sum another number of rows in another order.
    found, alone = beams[1].hypotheses(3), search(network, frames, nbest=3).hypotheses(3)
    assert [words(h) for h in found] == [words(h) for h in alone]
    assert [h.score for h in found] == pytest.approx([h.score for h in alone], rel=1e-5)
    assert beams[0].num_frames == 20


def test_single_logits_that_are_no_numbers_are_ruled_out() -> None:
    network, frames = ToyNetwork(5), frames_of(2, 15)
    join = network.join

    def spoilt(encoder_out: np.ndarray, predictor_out: np.ndarray) -> np.ndarray:
        logits = join(encoder_out, predictor_out)
        logits[:, 1], logits[:, 3] = np.nan, INF
        return logits

    network.join = spoilt  # type: ignore[method-assign]
    found = search(network, frames, nbest=4).hypotheses(4)
    assert {token.id for h in found for token in h.tokens} == {2, 4}
    assert all(math.isfinite(h.score) for h in found)


@pytest.mark.parametrize("nbest", [1, 4])
def test_memory_of_a_stream_does_not_grow_when_settled_tokens_are_taken(nbest: int) -> None:
    network = ToyNetwork(12, seed=2)
    cache = PredictorCache(network)
    stream, whole = (FastBeam(cache, nbest=nbest, history=100) for _ in range(2))
    frames = frames_of(9, 4000)
    advance_beams([whole], frames[None], np.array([4000]))
    taken, sizes, longest = [], [], 0
    for start in range(0, 4000, 16):
        advance_beams([stream], frames[None, start : start + 16], np.array([16]))
        taken += stream.take_settled()
        sizes.append(stream.num_bytes)
        longest = max(longest, len(stream.hypotheses(1)[0].tokens))
    assert taken + list(stream.hypotheses(1)[0].tokens) == list(whole.hypotheses(1)[0].tokens)
    assert len(taken) > 1300
    assert max(sizes) < 40_000 * nbest
    assert longest <= 200
    assert whole.num_bytes < max(sizes) + 2 * 16 * 4000  # what is settled and not taken


def test_old_alternatives_are_decided_and_the_best_hypothesis_stays() -> None:
    network = ToyNetwork(12, seed=2)
    frames = frames_of(9, 1000)
    decided, open_for_ever = (search(network, frames, nbest=5, history=history) for history in (100, None))
    [best, *others], [expected, *_] = decided.hypotheses(9), open_for_ever.hypotheses(9)
    assert best == expected
    old = [[token.id for token in h.tokens if token.start_frame < 800] for h in (best, *others)]
    assert all(each == old[0] for each in old)


def test_wrong_arguments_are_refused() -> None:
    network = ToyNetwork(len(SPELLINGS))
    cache, scorer = PredictorCache(network), hotword_scorer()
    for options, message in (
        ({"max_states": 0}, "max_states must be at least 1"),
        ({"max_contexts": 0}, "max_contexts"),
        ({"nbest": 0}, "nbest"),
        ({"beam": 0.0}, "beam must be a number above 0"),
        ({"beam": math.nan}, "beam"),
        ({"temperature": 0.0}, "temperature"),
        ({"history": 0}, "history must be at least 1 frame"),
        ({"restrict": True}, "needs a scorer"),
        ({"restrict": True, "scorer": scorer}, "needs a scorer"),
        ({"final_arc": True, "scorer": scorer}, "without a scorer"),
        ({"start": (0,)}, "start must have 2 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            FastBeam(cache, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"built for {len(SPELLINGS)} tokens, but the model has 99"):
        FastBeam(PredictorCache(ToyNetwork(99)), scorer=scorer)
    beam = FastBeam(cache)
    with pytest.raises(ValueError, match="at least 1"):
        beam.hypotheses(0)
    frames, counts = np.zeros((2, 3, DIM), dtype=np.float32), np.array([3, 3])
    with pytest.raises(ValueError, match="2 rows, 1 searches"):
        advance_beams([beam], frames, counts)
    with pytest.raises(ValueError, match="a search of its own"):
        advance_beams([beam, beam], frames, counts)
    with pytest.raises(ValueError, match="share one PredictorCache, got 2"):
        advance_beams([beam, FastBeam(PredictorCache(ToyNetwork(5)))], frames, counts)
    network.vocab_size = 99
    with pytest.raises(ValueError, match=r"logits must be \(1, 99\), got \(1, 5\)"):
        advance_beams([beam], frames[:1], counts[:1])
    beam = FastBeam(PredictorCache(ToyNetwork(5)))
    advance_beams([beam], np.zeros((1, 0, DIM), dtype=np.float32), np.array([5]))
    advance_beams([], np.zeros((0, 3, DIM), dtype=np.float32), np.zeros(0, dtype=np.int64))
    assert [(words(h), h.score) for h in beam.hypotheses(3, final=True)] == [((), 0.0)]


# --- with a scorer

SPELLINGS = ("", "a", "b", " ", "ab")
HOTWORDS = (("ab", 1.5), ("b a", -0.7), ("aa", 2.0))
WRITTEN = ("", " to", "t", "o", "day", " new", "北", " 京")
TRAVEL = (("to day", 1.5), ("new", 0.7), ("北 京", 2.0))


def hotword_scorer() -> Scorer:
    scorer = Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=HOTWORDS)
    assert scorer is not None
    return scorer


def walk(scorer: Scorer) -> Graph:
    """What a scorer adds, token by token, and its state."""
    known: dict[Words, tuple[float, tuple[int, ...]]] = {(): (0.0, tuple(scorer.start.tolist()))}

    def graph(said: Words) -> tuple[float, Any]:
        if said not in known:
            gain, state = graph(said[:-1])
            following = np.zeros_like(scorer.start)
            gain += extend(scorer.address, np.array(state, dtype=np.int32), said[-1], following)
            known[said] = gain, tuple(following.tolist())
        return known[said]

    return graph


@pytest.fixture(scope="module")
def model() -> NgramModel:
    return NgramModel.read(ARPA)


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(0, 7),
    context_size=st.integers(1, 2),
    beam=st.sampled_from([2.0, 10.0]),
    max_states=st.integers(1, 15),
    max_contexts=st.integers(1, 8),
    nbest=st.integers(1, 3),
    weight=st.sampled_from([0.0, 0.5, -0.5]),
    unit=st.sampled_from(["word", "token"]),
    hotwords=st.booleans(),
)
@settings(max_examples=examples(40))
def test_shortcuts_change_nothing_with_a_scorer(
    model: NgramModel,
    seed: int,
    count: int,
    context_size: int,
    weight: float,
    unit: Any,
    hotwords: bool,
    **options: Any,
) -> None:
    phrases = TRAVEL if hotwords or not weight else ()
    scorer = Scorer.build(WRITTEN, lm=model, lm_weight=weight, word_bonus=0.5, lm_unit=unit, hotwords=phrases)
    assert scorer is not None
    network, frames = ToyNetwork(len(WRITTEN), context_size, seed=seed), frames_of(seed, count)
    expected = by_definition(network, frames, **options, graph=walk(scorer))
    found = search(network, frames, **options, scorer=scorer).hypotheses(1000)
    assert_same(found, expected)


def test_hotwords_add_their_weights_to_every_sequence() -> None:
    network, frames = ToyNetwork(len(SPELLINGS), seed=6), frames_of(6, 5)
    options = {**WIDE, "max_states": 100, "nbest": 10}
    found = search(network, frames, **options, scorer=hotword_scorer()).hypotheses(1000, final=True)
    best = alignments(network, frames)
    expected = sorted(((said, score + hotword_bonus(said)) for said, score in best.items()), key=lambda item: -item[1])
    assert_same(found[:10], expected[:10])


def hotword_bonus(said: Words) -> float:
    padded = f" {' '.join(''.join(SPELLINGS[id] for id in said).split())} "
    return sum(weight * sum(padded.startswith(f" {p} ", at) for at in range(len(padded))) for p, weight in HOTWORDS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("restrict", [False, True])
def test_a_language_model_is_the_graph_and_can_restrict_it_to_its_words(
    model: NgramModel, seed: int, restrict: bool
) -> None:
    oracle = Oracle(ARPA)
    bonus = Bonus(oracle, WRITTEN, 0.7, 0.3, 6.0)
    scorer = Scorer.build(WRITTEN, lm=model, lm_weight=0.7, word_bonus=0.3, unknown_penalty=6.0)
    network, frames = ToyNetwork(len(WRITTEN), seed=seed + 20), frames_of(seed, 5)
    found = search(network, frames, **WIDE, scorer=scorer, restrict=restrict).hypotheses(1, final=True)

    def is_known(said: Words) -> bool:
        return not restrict or all(word in oracle.words for word in words_of(bonus.text(said)))

    totals = {
        said: score + bonus.finished(said) for said, score in alignments(network, frames).items() if is_known(said)
    }
    # 400 states are not all of them, but the best one stays among them.
    best = max(totals, key=totals.__getitem__)
    assert_same(found, [(best, totals[best])])
    assert found[0].bonus == pytest.approx(bonus.finished(best), abs=1e-4)


def test_a_restricted_search_says_no_other_words_and_ends_within_one_only_if_it_must(model: NgramModel) -> None:
    oracle = Oracle(ARPA)
    scorer = Scorer.build(WRITTEN, lm=model, lm_weight=0.5, word_bonus=0.0)
    network, frames = ToyNetwork(len(WRITTEN), seed=8), frames_of(8, 60)
    free, restricted = (search(network, frames, scorer=scorer, restrict=restrict) for restrict in (False, True))

    def said(beam: FastBeam) -> set[str]:
        texts = ["".join(WRITTEN[id] for id in words(h)) for h in beam.hypotheses(9, final=True)]
        return {word for text in texts for word in words_of(text)}

    assert said(restricted)
    assert said(restricted) <= oracle.words
    assert not said(free) <= oracle.words
    # A token that begins a word and ends none, in every frame: nothing is complete, and something is told all the same.
    network._out[:], network.predict = 0.0, lambda contexts: np.zeros((len(contexts), DIM), np.float32)  # type: ignore[method-assign]
    letters = WRITTEN.index("t")
    network.join = lambda encoder_out, predictor_out: np.repeat(  # type: ignore[method-assign]
        np.where(np.arange(len(WRITTEN)) == letters, 50.0, 0.0).astype(np.float32)[None], len(encoder_out), axis=0
    )
    [only] = search(network, frames[:1], scorer=scorer, restrict=True).hypotheses(1, final=True)
    assert words(only) == (letters,)
