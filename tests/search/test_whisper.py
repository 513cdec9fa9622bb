"""Whisper's search by hand: rules of times, beams, sampling that repeats, and the alignment of tokens with audio."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.search.whisper.alignment import token_starts, warp
from tritone.search.whisper.decoding import Job, Writing, Written, _likeliest
from tritone.search.whisper.guessing import Draft
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

    def step(
        self, tokens: Sequence[Sequence[int]], sources: Sequence[int], undone: Sequence[int] | None = None
    ) -> np.ndarray:
        self.rows.append(len(tokens))
        most = max(map(len, tokens))
        return self.logits[[[*row, *[EOT] * (most - len(row))] for row in tokens]].copy()


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


class Spelling:
    """A decoder that goes on with the text of a row's window, as long as the row has read the beginning of that."""

    def __init__(self, texts: dict[int, Sequence[int]]) -> None:
        self.texts, self.rows, self.calls = texts, list[tuple[int, list[int]]](), 0

    def _logits(self, window: int, read: Sequence[int]) -> np.ndarray:
        logits = np.zeros(10, np.float32)
        text = [*self.texts[window], EOT]
        if read[1:] == text[: len(read) - 1] and len(read) <= len(text):
            logits[text[len(read) - 1]] = 5.0
        return logits

    def begin(
        self, windows: Sequence[int], prompts: Sequence[Sequence[int]], places: Sequence[Sequence[int]]
    ) -> np.ndarray:
        self.rows += [(window, [*prompt]) for window, prompt in zip(windows, prompts, strict=True)]
        return np.array(
            [[self._logits(window, [NO_TIMES]) for _ in each] for window, each in zip(windows, places, strict=True)]
        )

    def step(
        self, tokens: Sequence[Sequence[int]], sources: Sequence[int], undone: Sequence[int] | None = None
    ) -> np.ndarray:
        self.calls += 1
        found = np.zeros((len(tokens), max(map(len, tokens)), 10), np.float32)
        rows = []
        for row, (new, source, wrong) in enumerate(zip(tokens, sources, undone or [0] * len(tokens), strict=True)):
            window, read = self.rows[source]
            rows.append((window, [*read[: len(read) - wrong], *new]))
            for place in range(len(new)):
                found[row, place] = self._logits(window, rows[-1][1][: len(rows[-1][1]) - len(new) + place + 1])
        self.rows = rows
        return found


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_guesses_change_no_text_however_wrong_they_are(data: st.DataObject) -> None:
    text = st.lists(st.sampled_from([A, B, C]), max_size=12)
    texts = {window: data.draw(text) for window in range(data.draw(st.integers(1, 3)))}
    guessed = {window: data.draw(st.sampled_from([each, [*each[:3], B], []])) for window, each in texts.items()}
    limits = {window: data.draw(st.integers(1, 14)) for window in texts}
    draft = Draft(Spelling(guessed), context=16)
    writing, found = Writing(Spelling(texts), draft), dict[int, Written]()
    for window in texts:  # they join one after the other
        found.update(writing.join([window], [job(max_tokens=limits[window])]))
        if len(writing):
            found.update(writing.step())
    while len(writing):
        found.update(writing.step())
    for window, each in texts.items():
        [plain] = written([job(max_tokens=limits[window])], Spelling({0: each}))
        assert found[window].tokens == plain.tokens
        assert found[window].log_prob == pytest.approx(plain.log_prob, abs=1e-6)


def test_right_guesses_save_calls_of_the_model() -> None:
    text = [A, B, C, A, B, C, A, B, C, A, B, C]
    model, draft = Spelling({0: text}), Spelling({0: text})
    writing = Writing(model, Draft(draft, context=99))
    assert writing.join([0], [job(max_tokens=50)]) == []
    ended = []
    while len(writing):
        ended += writing.step()
    assert [each.tokens for _, each in ended] == [tuple(text)]
    assert model.calls == 3  # of 12 tokens and the end: the first is of the prompt, then 4 guesses and one more each


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


@settings(max_examples=examples(40), deadline=None)
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
