"""Modified beam search with a predictor that has a state, and with durations, against a search written plainly.

No toolkit has this beam for these models: transformers searches them greedily, and NeMo's beams go label by label.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpa_oracle import Oracle, words_of
from effort import examples
from search.test_stateful_greedy import SEEDS, VOCAB, Memory, search
from search.test_transducer_search import ARPA, BLANK, Sequence_, _little_room, ids, random_frames, worth
from tritone.search.hypothesis import Hypothesis, Token
from tritone.search.ngram.model import NgramModel
from tritone.search.scoring.scorer import STATE_SIZE, Scorer, extend, finish
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.memory import StatefulPredictor
from tritone.search.transducer.modified_beam import ModifiedBeam
from tritone.search.transducer.network import StatefulNetwork

__all__ = ["_little_room"]  # a fixture that is for every test here
DURATIONS: Any = st.sampled_from([(), (0, 1, 3), (2, 0), (1, 2, 3, 4)])
SPELLINGS = ("", "甲", "乙", "丙", "丁")


def scorer_of(*hotwords: tuple[str, float]) -> Scorer | None:
    return Scorer.build(SPELLINGS, lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=hotwords)


SCORERS: Any = st.sampled_from([(), (("甲乙", 2.5), ("丙", -1.0))])


def beams_of(network: Memory, options: Sequence[Any]) -> list[ModifiedBeam]:
    predictor = StatefulPredictor(network)
    return [ModifiedBeam(predictor, **each) for each in options]


def modified(network: Memory, frames: Any, lengths: Any = None, **options: Any) -> list[list[Hypothesis]]:
    beams = beams_of(network, [options] * len(frames))
    advance_beams(beams, frames, np.array([len(row) for row in frames] if lengths is None else lengths))
    return [beam.hypotheses(1000, final=True) for beam in beams]


def log_softmax(logits: Any, temperature: float) -> Any:
    logits = np.where(np.isfinite(logits), logits.astype(np.float64), -np.inf) / temperature
    return logits - np.logaddexp.reduce(logits)


def steps_of(network: StatefulNetwork, frame: Any, tokens: Sequence_, blank_penalty: float, temperature: float) -> Any:
    """All that may follow some tokens in a frame: token, frames to go on, log-probability."""
    size = network.vocab_size
    vector, states = network.first
    for token in tokens:
        vector, states = network.step(np.array([[token]]), states)
    logits = np.array(network.join(frame[None], vector)[0], dtype=np.float32)
    logits[network.blank_id] -= blank_penalty
    said = log_softmax(logits[:size], temperature)
    spans = log_softmax(logits[size:], temperature) if network.durations else [0.0]
    return [
        (token, max(1, span), said[token] + spans[place])
        for token in range(size)
        for place, span in enumerate(network.durations or (1,))
    ]


def bonus_of(scorer: Scorer | None, tokens: Sequence_, *, final: bool = False) -> float:
    if scorer is None:
        return 0.0
    state, total = scorer.start.copy(), 0.0
    for token in tokens:
        total += extend(scorer.address, state, token, following := np.zeros(STATE_SIZE, dtype=np.int32))
        state = following
    return total + (finish(scorer.address, state) if final else 0.0)


def oracle(
    network: StatefulNetwork,
    frames: Any,
    beam: int,
    scorer: Scorer | None = None,
    penalty: float = 0.0,
    temperature: float = 1,
) -> dict[Sequence_, tuple[float, Any]]:
    """Log-probability, and frames and spans of the tokens, of what is left after the last frame."""
    alive: dict[tuple[Sequence_, int], tuple[float, Any]] = {((), 0): (0.0, ())}
    for now, frame in enumerate(frames):
        extended = []
        for (tokens, place), (score, times) in alive.items():
            if place > now:
                extended.append((score + bonus_of(scorer, tokens), score, tokens, place, times))
                continue
            for token, span, log_prob in steps_of(network, frame, tokens, penalty, temperature):
                longer = tokens if token == network.blank_id else (*tokens, token)
                found = times if token == network.blank_id else (*times, (now, min(now + span, len(frames))))
                total = score + log_prob + bonus_of(scorer, longer)
                extended.append((total, score + log_prob, longer, now + span, found))
        alive = {}
        for _, score, tokens, place, times in sorted(extended, key=lambda each: -each[0])[:beam]:
            if (tokens, place) in alive:
                before, times = alive[tokens, place]
                score = np.logaddexp(before, score)
            alive[tokens, place] = score, times
    merged: dict[Sequence_, tuple[float, Any]] = {}
    for (tokens, _), (score, times) in sorted(alive.items(), key=lambda each: -each[1][0]):
        before, times = merged.get(tokens, (-np.inf, times))
        merged[tokens] = np.logaddexp(before, score), times
    return merged


@settings(max_examples=examples(60), deadline=None)
@given(SEEDS, DURATIONS, st.integers(1, 6), SCORERS, st.sampled_from([0.0, 1.5]), st.sampled_from([1.0, 0.5, 3.0]))
def test_hypotheses_scores_and_times_are_those_of_the_plain_search(
    seed: int, durations: tuple[int, ...], beam: int, hotwords: Any, penalty: float, temperature: float
) -> None:
    network, scorer = Memory(durations, seed), scorer_of(*hotwords)
    frames = random_frames(seed, 8, VOCAB + len(durations))
    options: Any = {"blank_penalty": penalty, "temperature": temperature, "scorer": scorer}
    [found] = modified(network, frames[None], beam=beam, **options)
    expected = oracle(network, frames, beam, scorer, penalty, temperature)
    assert {ids(each): tuple((t.start_frame, t.end_frame) for t in each.tokens) for each in found} == {
        tokens: times for tokens, (_, times) in expected.items()
    }
    for each in found:
        assert each.log_prob == pytest.approx(expected[ids(each)][0], abs=1e-4)
        assert each.bonus == pytest.approx(bonus_of(scorer, ids(each), final=True), abs=1e-9)
        assert each.score == pytest.approx((each.log_prob + each.bonus) / (len(each.tokens) + 1), abs=1e-9)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS, DURATIONS, st.sampled_from([0.0, 2.0]))
def test_a_beam_of_one_is_greedy_search_with_one_token_a_frame(
    seed: int, durations: tuple[int, ...], penalty: float
) -> None:
    network, lengths = Memory(durations, seed), [12, 0, 7]
    frames = random_frames(seed, 3, 12, VOCAB + len(durations))
    found = modified(network, frames, lengths, beam=1, blank_penalty=penalty)
    assert [[token[:3] for token in row[0].tokens] for row in found] == search(
        network, frames, lengths, max_symbols=1, blank_penalty=penalty
    )


@settings(max_examples=examples(20), deadline=None)
@given(SEEDS, DURATIONS)
def test_a_beam_that_drops_nothing_adds_up_all_alignments(seed: int, durations: tuple[int, ...]) -> None:
    network, frames = Memory(durations, seed), random_frames(seed, 3, VOCAB + len(durations))
    sums: dict[Sequence_, float] = {}

    def go_on(tokens: Sequence_, place: int, score: float) -> None:
        if place >= len(frames):
            sums[tokens] = np.logaddexp(sums.get(tokens, -np.inf), score)
            return
        for token, span, log_prob in steps_of(network, frames[place], tokens, 0.0, 1.0):
            go_on(tokens if token == BLANK else (*tokens, token), place + span, score + log_prob)

    go_on((), 0, 0.0)
    [found] = modified(network, frames[None], beam=1500)
    assert {ids(each): pytest.approx(each.log_prob, abs=1e-4) for each in found} == sums
    assert np.logaddexp.reduce([each.log_prob for each in found]) == pytest.approx(0.0, abs=1e-4)


@settings(max_examples=examples(40), deadline=None)
@given(SEEDS, DURATIONS, st.lists(st.integers(0, 12), min_size=1, max_size=5), st.booleans())
def test_neighbours_and_chunks_make_no_difference(
    seed: int, durations: tuple[int, ...], lengths: list[int], takes_settled: bool
) -> None:
    network, width = Memory(durations, seed), VOCAB + len(durations)
    frames = random_frames(seed, len(lengths), 12, width) * 2
    scorer = scorer_of(("甲乙", 2.0), ("乙", -1.0))
    options: list[Any] = [
        {"beam": 1 + row, "blank_penalty": row / 2, "temperature": 1 + row / 4, "scorer": scorer if row % 2 else None}
        for row in range(len(lengths))
    ]
    alone = [modified(network, frames[row : row + 1, :length], **options[row])[0] for row, length in enumerate(lengths)]
    beams = beams_of(network, options)
    settled: list[list[Token]] = [[] for _ in lengths]
    rest, chances = np.array(lengths), np.random.default_rng(seed)
    while rest.any():
        steps = np.minimum(chances.integers(0, 6, len(lengths)), rest)
        chunk = np.full((len(lengths), 6, width), np.nan, dtype=np.float32)
        for row, step in enumerate(steps):
            first = lengths[row] - rest[row]
            chunk[row, :step] = frames[row, first : first + step]
        advance_beams(beams, chunk, steps)
        rest -= steps
        for row, beam in enumerate(beams if takes_settled else []):
            settled[row] += beam.take_settled()
    for beam, before, expected in zip(beams, settled, alone, strict=True):
        found = [replace(each, tokens=[*before, *each.tokens]) for each in beam.hypotheses(1000, final=True)]
        assert found == [replace(each, tokens=[*each.tokens]) for each in expected]


def quiet(durations: tuple[int, ...]) -> tuple[Memory, Any]:
    """A network that only hears, and frames: 甲, then 丙 or less likely 乙."""
    network = Memory(durations)
    network._table[:] = 0
    frames = np.full((1, 6, VOCAB + len(durations)), -9, np.float32)
    frames[0, :, BLANK] = 0
    frames[0, :, VOCAB : VOCAB + 1] = 0
    frames[0, 1, 1], frames[0, 4, 3], frames[0, 4, 2] = 4, 4, 2
    return network, frames


@pytest.mark.parametrize("durations", [(), (1, 2)])
@pytest.mark.parametrize("beam", [1, 4])
def test_hotwords_raise_a_word_of_their_own_row(durations: tuple[int, ...], beam: int) -> None:
    network, frame = quiet(durations)
    frames = np.repeat(frame, 3, axis=0)
    beams = beams_of(network, [{"beam": beam, "scorer": s} for s in (None, scorer_of(("甲乙", 3.0)), None)])
    advance_beams(beams, frames, np.full(3, 6))
    found = [beam.hypotheses(1, final=True)[0] for beam in beams]
    assert [ids(each) for each in found] == [(1, 3), (1, 2), (1, 3)]
    assert [each.bonus for each in found] == pytest.approx([0.0, 3.0, 0.0])


@settings(max_examples=examples(15), deadline=None)
@given(SEEDS, st.sampled_from([(), (0, 1, 2)]), st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 1.5]))
def test_the_language_model_and_phrases_are_worth_what_they_are_worth_elsewhere(
    seed: int, durations: tuple[int, ...], weight: float, word_bonus: float
) -> None:
    spellings = ("", " to", "day", " n", "北")
    network, frames = Memory(durations, seed), random_frames(seed, 3, VOCAB + len(durations))
    lm = NgramModel.read(ARPA)
    scorer = Scorer.build(spellings, lm=lm, lm_weight=weight, word_bonus=word_bonus, unknown_penalty=6.0)
    reference = Oracle(ARPA)
    [found] = modified(network, frames[None], beam=1500, scorer=scorer)
    assert len(found) == 1 + 4 + 16 + 64
    for each in found:
        words = words_of("".join(spellings[token] for token in ids(each)))
        expected = reference.total(words, weight, word_bonus, 6.0) if scorer is not None else 0.0
        assert each.bonus == pytest.approx(expected, abs=1e-5)
    phrases = {"甲乙": 2.0, "乙": 0.75}
    [hot] = modified(network, frames[None], beam=1500, scorer=scorer_of(*phrases.items()))
    for each in hot:
        text = "".join(SPELLINGS[token] for token in ids(each))
        assert each.bonus == pytest.approx(worth(text, phrases, True), abs=1e-9)


@pytest.mark.parametrize("durations", [(), (1, 3)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_hurt_neither_neighbours_nor_other_frames(
    durations: tuple[int, ...], bad: float
) -> None:
    network, width = Memory(durations, 3), VOCAB + len(durations)
    frames = random_frames(5, 3, 10, width)
    frames[1, 0, VOCAB:] = frames[1, 1, VOCAB:] = frames[1, 2, VOCAB:] = frames[1, 3, VOCAB:] = -50
    frames[1, :4, VOCAB : VOCAB + 1] = 50  # nobody is ahead of the frame that will say nothing
    broken, clean = frames.copy(), frames.copy()
    broken[1, 4], broken[1, 6, 2], clean[1, 6, 2] = bad, bad, -1e30
    found, expected = modified(network, broken, beam=4), modified(network, frames, beam=4)
    assert (found[0], found[2]) == (expected[0], expected[2])
    [without] = modified(network, np.delete(clean[1:2], 4, axis=1), beam=4)
    assert [ids(each) for each in found[1]] == [ids(each) for each in without]
    if durations:  # those that are ahead do not drop those that wait for it to pass
        frames[1, 3, VOCAB:] = 0
        frames[1, 4] = bad
        [mixed] = modified(network, frames[1:2, :5], beam=8)
        [before] = modified(network, frames[1:2, :4], beam=8)
        assert {ids(each): pytest.approx(each.log_prob) for each in mixed} == {
            ids(each): each.log_prob for each in before
        }


@pytest.mark.parametrize("durations", [(), (1, 2, 4)])
def test_a_frame_of_all_rows_is_one_call_of_each_network(durations: tuple[int, ...]) -> None:
    network = Memory(durations, 1)
    calls: dict[str, list[int]] = {"join": [], "step": []}

    def count(name: str) -> None:
        ask = getattr(network, name)

        def counted(*given: Any) -> Any:
            calls[name].append(len(given[0]))
            return ask(*given)

        setattr(network, name, counted)

    count("join")
    count("step")
    modified(network, random_frames(0, 6, 20, VOCAB + len(durations)), beam=4)
    first = calls["step"].count(1)
    assert len(calls["join"]) <= 20
    assert len(calls["step"]) - first <= 20
    assert max(calls["join"]) == 6 * 4 or durations


@settings(max_examples=examples(30), deadline=None)
@given(SEEDS, DURATIONS, st.integers(2, 10), st.integers(1, 8), st.sampled_from([0.1, 0.5, 1.0]))
def test_what_is_decided_early_leaves_hypotheses_with_what_the_predictor_says_after_them(
    seed: int, durations: tuple[int, ...], beam: int, history: int, contrast: float
) -> None:
    network = Memory(durations, seed)
    network._table *= contrast
    [state], settled = beams_of(network, [{"beam": beam, "history": history}]), []
    for frame in random_frames(seed, 40, 1, 1, VOCAB + len(durations)) * contrast / 2:
        advance_beams([state], frame, np.array([1]))
        settled += state.take_settled()
        found = state.hypotheses(99)
        vectors = set()
        for each in found:
            tokens = [*settled, *each.tokens]
            times = [token.start_frame for token in tokens]
            assert times == sorted(set(times))
            vector, states = network.first
            for token in tokens:
                vector, states = network.step(np.array([[token.id]]), states)
            vectors.add(tuple(vector[0].tolist()))
        assert len({ids(each) for each in found}) == len(found) == len(state.remembered[0])
        assert {tuple(row) for row in state.remembered[0].tolist()} == vectors


def test_an_endless_stream_needs_no_more_memory() -> None:
    network = Memory((0, 1, 2), 1)
    beams, sizes = beams_of(network, [{"beam": 4, "history": 50}] * 4), []
    for step in range(40):
        frames = random_frames(step, 4, 25, VOCAB + 3)
        frames[:, :, 4] = frames[:, :, 3] + 1e-3  # two tokens that are nearly the same keep hypotheses apart
        advance_beams(beams, frames, np.full(4, 25))
        for beam in beams:
            beam.take_settled()
        sizes.append(sum(beam.num_bytes for beam in beams))
    assert max(sizes) < 4 * 80_000


def test_mistakes_of_callers_are_told() -> None:
    frames, counts = np.zeros((2, 3, VOCAB), np.float32), np.array([3, 3])
    one, other = beams_of(Memory(), [{"beam": 2}]) + beams_of(Memory(), [{"beam": 2}])
    with pytest.raises(ValueError, match="share one PredictorCache, got 2"):
        advance_beams([one, other], frames, counts)
    small = Scorer.build(SPELLINGS[:3], lm=None, lm_weight=0.0, word_bonus=0.0, hotwords=[("甲", 1.0)])
    with pytest.raises(ValueError, match="built for 3 tokens, but the model has 5"):
        beams_of(Memory(), [{"beam": 2, "scorer": small}])
    [timed] = beams_of(network := Memory((1, 2)), [{"beam": 2}])
    network.join = lambda frames, vectors: frames  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"logits must be \(1, 7\), got \(1, 5\)"):
        advance_beams([timed], frames[:1], counts[:1])
