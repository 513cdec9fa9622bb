"""Greedy search with a predictor that has a state, and with durations, against a loop written frame by frame."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from search.test_transducer_search import BLANK, random_frames
from tritone.search.transducer.stateful import StatefulState, advance_stateful

SEEDS = st.integers(0, 2**32 - 1)
VOCAB = 5


class Memory:
    """A predictor whose state is a number that every token stirs; all tokens so far matter."""

    vocab_size, blank_id = VOCAB, BLANK

    def __init__(self, durations: tuple[int, ...] = (), seed: int = 0) -> None:
        self.durations = durations
        self._table = np.random.default_rng(seed).standard_normal((7, VOCAB + len(durations))).astype(np.float32)

    @property
    def first(self) -> Any:
        return self.step(np.array([[BLANK]]), [np.zeros((1, 1), np.float32)])

    def step(self, tokens: Any, states: Any) -> Any:
        after = (states[0] * 3 + tokens + 1) % 7
        return self._table[after[:, 0].astype(int)], [after.astype(np.float32)]

    def join(self, frames: Any, vectors: Any) -> Any:
        return frames + vectors


def search(network: Memory, frames: Any, lengths: Any, **options: Any) -> Any:
    searches = [StatefulState(network, **options) for _ in frames]
    found = advance_stateful(searches, frames, np.array(lengths))
    return [[(token.id, token.start_frame, token.end_frame) for token in row] for row in found]


def oracle(network: Memory, frames: Any, blank_penalty: float, max_symbols: int) -> Any:
    """One utterance, one frame after the other."""
    vector, states = network.first
    found, at, symbols = [], 0, 0
    while at < len(frames):
        logits = (frames[at] + vector[0]).copy()
        logits[BLANK] -= blank_penalty
        logits[~np.isfinite(logits)] = -np.inf
        token = int(logits[:VOCAB].argmax())
        token = BLANK if logits[token] == -np.inf else token
        step = network.durations[int(logits[VOCAB:].argmax())] if network.durations else int(token == BLANK)
        if token == BLANK:
            at, symbols = at + max(1, step), 0
            continue
        found.append((token, at, min(at + max(1, step), len(frames))))
        vector, states = network.step(np.array([[token]]), states)
        symbols += 1
        if step == 0 and symbols < max_symbols:
            continue
        at, symbols = at + max(step, 1), 0
    return found


@settings(max_examples=examples(30), deadline=None)
@given(SEEDS, st.integers(1, 3), st.sampled_from([0.0, 1.5]), st.sampled_from([(), (0, 1, 3), (2, 0)]))
def test_a_ragged_batch_gives_what_each_row_gives_alone(
    seed: int, max_symbols: int, blank_penalty: float, durations: tuple[int, ...]
) -> None:
    network = Memory(durations, seed)
    lengths = [7, 0, 12, 3, -1]
    frames = random_frames(seed, len(lengths), 12, VOCAB + len(durations))
    frames[2, 4, 1:3], frames[0, 2, :] = np.inf, np.nan
    found = search(network, frames, lengths, max_symbols=max_symbols, blank_penalty=blank_penalty)
    expected = [
        oracle(network, row[: max(0, length)], blank_penalty, max_symbols)
        for row, length in zip(frames, lengths, strict=True)
    ]
    assert found == expected


@settings(max_examples=examples(20), deadline=None)
@given(SEEDS, st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from([(), (0, 1, 4)]))
def test_any_cutting_of_the_frames_gives_the_same_tokens(
    seed: int, cuts: list[int], durations: tuple[int, ...]
) -> None:
    network = Memory(durations, seed)
    frames = random_frames(seed, 1, sum(cuts) + 3, VOCAB + len(durations))
    state, parts, at = StatefulState(network, max_symbols=2), [], 0
    for count in [*cuts, 3]:
        parts += advance_stateful([state], frames[:, at : at + count], np.array([count]))[0]
        at += count
    whole = search(network, frames, [frames.shape[1]], max_symbols=2)[0]
    assert [(token.id, token.start_frame) for token in parts] == [(id, start) for id, start, _ in whole]


def test_confidences_are_of_tokens_alone_and_durations_end_tokens() -> None:
    network = Memory((1, 3))
    network._table[:] = 0
    frames = np.full((1, 6, VOCAB + 2), -9, np.float32)
    frames[0, :, BLANK] = 0
    frames[0, 1, 2], frames[0, 1, VOCAB + 1] = 2.0, 1.0  # a token of three frames
    frames[0, 4, 3], frames[0, 4, VOCAB + 1] = 2.0, 1.0  # one that the audio ends
    found = advance_stateful([StatefulState(network)], frames, np.array([6]))[0]
    assert [(token.id, token.start_frame, token.end_frame) for token in found] == [(2, 1, 4), (3, 4, 6)]
    assert found[0].confidence == pytest.approx(np.exp(2) / (np.exp(2) + 1 + 3 * np.exp(-9)), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    one, other = Memory(), Memory()
    frames, counts = np.zeros((2, 3, VOCAB), np.float32), np.array([3, 3])
    state = StatefulState(one)
    for states in ([state, state], [state, StatefulState(other)], [state]):
        with pytest.raises(ValueError, match="each row needs a search of its own"):
            advance_stateful(states, frames, counts)
    with pytest.raises(ValueError, match="max_symbols must be at least 1"):
        StatefulState(one, max_symbols=0)
    other.join = lambda frames, vectors: np.zeros((len(frames), 7))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"logits must be \(1, 5\), got \(1, 7\)"):
        advance_stateful([StatefulState(other)], frames[:1], counts[:1])
    assert advance_stateful([], np.zeros((0, 3, 2), np.float32), np.zeros(0, np.int64)) == []
