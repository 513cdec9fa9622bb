"""Whisper's search by hand: rules of times, beams, sampling that repeats, and the alignment of tokens with audio."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritone.search.whisper.alignment import token_starts, warp
from tritone.search.whisper.decoding import Job, Writing, Written, _likeliest
from tritone.search.whisper.rules import Rules

A, B, C, EOT, NO_TIMES, TIME = 0, 1, 2, 3, 4, 5  # times are 5 to 9
RULES = Rules(eot=EOT, no_timestamps=NO_TIMES, timestamp_begin=TIME, suppress_first=(EOT,), max_initial_timestamp=2)
TEXT = Rules(eot=EOT, no_timestamps=NO_TIMES, timestamp_begin=TIME, timestamps=False)


def allowed(written: Sequence[int], rules: Rules = RULES, likely: int = A) -> list[int]:
    logits = np.zeros(10, np.float32)
    logits[likely] = 5.0  # so that all times together are not likelier
    rules.apply(logits, written)
    return np.flatnonzero(np.isfinite(logits)).tolist()


def test_times_come_in_pairs_and_never_fall() -> None:
    assert allowed([]) == [5, 6, 7]
    assert allowed([6]) == [A, B, C, EOT]
    assert allowed([6, A]) == [A, B, C, EOT, 7, 8, 9]
    assert allowed([6, A, 8], likely=EOT) == [*[EOT, NO_TIMES, 8, 9][:1], 8, 9]
    assert allowed([6, A, 8, 8]) == [A, B, C, EOT]
    assert allowed([6, A, 8, 8, B]) == [A, B, C, EOT, 9]


def test_a_time_is_written_where_all_of_them_together_are_likelier_than_any_text() -> None:
    logits = np.array([1.0, 0, 0, 0, 9, 0, 0, 0.5, 0.5, 0.5], np.float32)
    RULES.apply(logits, [6, A])
    assert np.flatnonzero(np.isfinite(logits)).tolist() == [7, 8, 9]  # 3 · exp(0.5) is more than exp(1)


def test_without_times_only_what_is_suppressed_is_forbidden() -> None:
    rules = Rules(eot=EOT, no_timestamps=NO_TIMES, timestamp_begin=TIME, timestamps=False, suppress=(B,))
    assert allowed([], rules) == [0, *range(2, 10)]


class Chain:
    """A decoder whose next token depends on the last one alone; keeps which rows were continued."""

    def __init__(self, table: np.ndarray) -> None:
        self.logits = np.log(table).astype(np.float32)
        self.rows: list[int] = []

    def begin(
        self, windows: Sequence[int], prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]
    ) -> np.ndarray:
        found = [[self.logits[prompt[place]] for place in each] for prompt, each in zip(prompts, places, strict=True)]
        return np.array(found)

    def step(self, tokens: Sequence[int], sources: Sequence[int]) -> np.ndarray:
        self.rows.append(len(tokens))
        return self.logits[list(tokens)].copy()


# After A comes B or C; C is less likely, but sure to end after it. The last row and column stand for the prompt.
TABLE = np.full((10, 10), 1e-6)
TABLE[NO_TIMES, A] = 1.0
TABLE[A, [B, C]] = 0.6, 0.4
TABLE[B, [A, B, EOT]] = 0.5, 0.3, 0.2
TABLE[C, EOT] = 1.0


def job(**options: object) -> Job:
    return Job(**{"prompt": [NO_TIMES], "sot": 0, "rules": TEXT, "max_tokens": 6, "no_speech": A} | options)


def written(jobs: Sequence[Job], chain: Chain) -> list[Written]:
    """The texts of jobs that begin together and have equally many rows."""
    writing = Writing(chain)
    found = dict(writing.join(range(len(jobs)), jobs))
    while len(writing):
        found.update(writing.step())
    return [found[window] for window in range(len(jobs))]


def test_a_beam_finds_what_greed_misses() -> None:
    [greedy] = written([job(max_tokens=3)], Chain(TABLE))
    [beam] = written([job(beam=2, length_penalty=0.0)], Chain(TABLE))
    assert greedy.tokens == (A, B, A)
    assert beam.tokens == (A, C)
    assert beam.log_prob == pytest.approx(np.log(0.4), abs=1e-4)
    assert greedy.no_speech_prob == pytest.approx(1.0, abs=1e-4)


def test_texts_that_ended_leave_the_batch() -> None:
    chain = Chain(TABLE)
    found = written([job(prompt=[C]), job(max_tokens=4), job(max_tokens=2)], chain)
    assert [each.tokens for each in found] == [(), (A, B, A, B), (A, B)]
    assert chain.rows == [2, 1, 1]


def test_texts_join_between_steps_and_those_that_are_left_go_on() -> None:
    chain = Chain(TABLE)
    writing = Writing(chain)
    assert writing.join([7], [job(max_tokens=5)]) == []
    assert writing.step() == writing.step() == []
    assert writing.join([3, 4], [job(max_tokens=1), job(max_tokens=3)]) != []  # one is over with its first token
    assert writing.windows == [7, 4]
    writing.join([5], [job(max_tokens=9)])
    writing.leave(5)
    assert dict(writing.step()) == {}
    assert [(window, text.tokens) for window, text in writing.step()] == [(7, (A, B, A, B, A)), (4, (A, B, A))]
    assert not writing.windows
    assert chain.rows == [1, 1, 2, 2]


def test_sampling_repeats_itself_and_takes_the_likeliest_of_its_texts() -> None:
    def sample(copies: int, seed: int) -> tuple[int, ...]:
        [found] = written([job(temperature=1.0, copies=copies, seed=(seed,))], Chain(TABLE))
        return found.tokens

    assert [sample(1, seed) for seed in range(8)] == [sample(1, seed) for seed in range(8)]
    assert len({sample(1, seed) for seed in range(8)}) > 2
    assert all(sample(16, seed) == (A, C) for seed in range(4))


def test_the_path_of_least_cost_is_that_of_a_plain_program() -> None:
    random = np.random.default_rng(0)
    for rows, columns in ((1, 1), (1, 5), (4, 1), (3, 7), (9, 6), (12, 30)):
        cost = random.normal(size=(rows, columns))
        total = np.full((rows + 1, columns + 1), np.inf)
        total[0, 0] = 0
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                total[i, j] = cost[i - 1, j - 1] + min(total[i - 1, j - 1], total[i - 1, j], total[i, j - 1])
        path = list(zip(*(each.tolist() for each in warp(cost)), strict=True))
        assert (path[0], path[-1]) == ((0, 0), (rows - 1, columns - 1))
        steps = {(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(path)}
        assert steps <= {(0, 1), (1, 0), (1, 1)}
        assert sum(cost[each] for each in path) == pytest.approx(total[-1, -1], abs=1e-4)


def test_tokens_begin_where_their_attention_does() -> None:
    positions, begins = 60, [0, 12, 30, 44]
    scores = np.zeros((2, 7, positions), np.float32)  # two tokens before the text, one after it
    for row, (begin, end) in enumerate(zip(begins, [*begins[1:], positions], strict=True), start=2):
        scores[:, row, begin:end] = 6.0
    assert token_starts(scores, 2).tolist() == begins


@settings(max_examples=40, deadline=None)
@given(data=st.data(), texts=st.integers(1, 5), vocab=st.integers(1, 700), most=st.integers(1, 10))
def test_the_likeliest_tokens_are_those_of_a_full_sort(data: st.DataObject, texts: int, vocab: int, most: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scores = rng.normal(size=(texts, vocab)).astype(np.float32)
    scores[rng.random(scores.shape) < data.draw(st.sampled_from([0.0, 0.5, 0.99]))] = -np.inf
    sums, before = rng.normal(size=(2, texts)).astype(np.float32)
    totals = scores - sums[:, None] + before[:, None]
    best = np.sort(totals.ravel())[::-1][:most]
    found = list(_likeliest(scores, sums, before, most))
    assert [total for *_, total in found] == best.tolist()
    assert all(totals[text, token] == np.float32(total) for text, token, total in found)
