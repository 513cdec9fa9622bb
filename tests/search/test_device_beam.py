"""Modified beam search of a GPU with a predictor that has a state, by torch on the CPU, finds what the CPU finds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from recorded import record
from search.test_device_stateful import DURATIONS, LENGTHS, SEEDS, TOKENS, Lstm, cut, frames_of
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchOptions
from tritone.search.scoring.scorer import STATE_SIZE, Scorer, extend, finish
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.device_beam import DeviceBeam
from tritone.search.transducer.memory import StatefulPredictor
from tritone.search.transducer.modified_beam import ModifiedBeam

torch = pytest.importorskip("torch")

from tritone.pipelines.searching.on_device import DeviceTransducer  # noqa: E402  # needs torch
from tritone.runtime.cuda.held import Held  # noqa: E402
from tritone.search.device import bonuses, stateful  # noqa: E402
from tritone.search.device.bonuses import BonusTables  # noqa: E402

SPELLINGS = ("", " ab", "c", " c", "甲", "d", "bc", "")  # one is written as nothing; the last is the blank
PHRASES = ((("abc", 2.5), ("c d", 1.5), ("甲 甲", 2.0), ("abcd", -1.0)), (("d", 1.0),))


def scorers(overlapping: bool = True) -> list[Scorer | None]:
    """Of the rows of a batch: none, and two lists of hotwords."""
    common: dict[str, Any] = {"lm": None, "lm_weight": 0.0, "word_bonus": 0.0, "overlapping": overlapping}
    return [None, *(Scorer.build(SPELLINGS, hotwords=each, **common) for each in PHRASES)]


def ways(rows: int, beam: int, penalised: bool) -> list[SearchOptions]:
    """Each row with a penalty and a temperature of its own."""
    return [
        SearchOptions(
            mode="modified-beam", beam=beam, blank_penalty=penalised * (row % 3 - 0.5), temperature=1 + row % 2 / 4
        )
        for row in range(rows)
    ]


def on_host(
    network: Lstm, options: Sequence[SearchOptions], scored: Sequence[Any], history: int | None = None
) -> list[ModifiedBeam]:
    predictor = StatefulPredictor(network)
    return [
        ModifiedBeam(
            predictor,
            beam=each.beam,
            blank_penalty=each.blank_penalty,
            temperature=each.temperature,
            scorer=scorer,
            history=history,
        )
        for each, scorer in zip(options, scored, strict=True)
    ]


def on_device(
    device: DeviceTransducer, options: Sequence[SearchOptions], scored: Sequence[Any], history: int | None = None
) -> list[DeviceBeam]:
    return [
        DeviceBeam(each, share=None if scorer is None else device.share(scorer), history=history)
        for each, scorer in zip(options, scored, strict=True)
    ]


def alike(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    """The same n-best: tokens, frames and ends, and scores and confidences to what float32 rounds."""
    numbers = [
        [(each.log_prob, each.bonus, each.score, *(token.confidence for token in each.tokens)) for each in hypotheses]
        for hypotheses in (found, expected)
    ]
    assert [[token[:3] for token in each.tokens] for each in found] == [
        [token[:3] for token in each.tokens] for each in expected
    ]
    for one, other in zip(*numbers, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@settings(max_examples=examples(40))
@given(
    SEEDS,
    st.integers(1, 2),
    DURATIONS,
    st.integers(1, 10),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, False, True]),
)
def test_a_ragged_batch_is_searched_as_on_the_cpu(
    seed: int, layers: int, durations: tuple[int, ...], beam: int, penalised: bool, holes: bool, hotwords: bool | None
) -> None:
    network, frames = Lstm(seed, layers, durations), frames_of(seed, len(LENGTHS), 25, holes)
    options = ways(len(LENGTHS), beam, penalised)
    scored = [None] * 6 if hotwords is None else 2 * scorers(overlapping=hotwords)
    host = on_host(network, options, scored)
    advance_beams(host, frames, LENGTHS)
    device = DeviceTransducer(network, "cpu")
    found = on_device(device, options, scored)
    device.beams(found, Held(torch.from_numpy(frames)), LENGTHS)
    for each, other in zip(found, host, strict=True):
        alike(each.hypotheses(100, final=True), other.hypotheses(100, final=True))
        alike(each.hypotheses(2), other.hypotheses(2))
    assert TOKENS + 1 == len(SPELLINGS) == network.vocab_size


def test_there_is_something_to_compare() -> None:
    """In what the tests here search: several hypotheses of several tokens, and hotwords in some of the best."""
    tokens, differ = [], 0
    for seed in range(10):
        network, frames = Lstm(seed, 1, (0, 1, 2)), frames_of(seed, 6, 25)
        rows = []
        for scored in ([None] * 6, 2 * scorers()):
            host = on_host(network, ways(6, 4, True), scored)
            advance_beams(host, frames, LENGTHS)
            rows.append([each.hypotheses(100, final=True) for each in host])
        tokens += [len(row[0].tokens) for row in rows[0]]
        assert max(len(row) for row in rows[0]) == 4
        differ += sum(a[0].tokens != b[0].tokens for a, b in zip(*rows, strict=True))
    assert 100 < sum(tokens) < 1000
    assert differ > 5


@example(0, (), 2, [[3, 0, 0], [5, 0, 0]])  # one ends where differences are decided, and others go on
@settings(max_examples=examples(15))
@given(SEEDS, DURATIONS, st.integers(1, 5), st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=8))
def test_streams_in_any_company_and_any_cutting_are_searched_as_on_the_cpu(
    seed: int, durations: tuple[int, ...], beam: int, chunks: list[list[int]]
) -> None:
    """Each step advances those streams that have frames, and takes what is settled; old differences are decided."""
    network, options = Lstm(seed, 1, durations), ways(3, beam, True)
    chunks = [*chunks, [4, 2, 6], [9, 9, 9]]
    frames, history = frames_of(seed, 3, 80), 7
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_ROWS", "MOST_ROWS"):  # so that there are soon too few
            patch.setattr(stateful, name, 1)
        device = DeviceTransducer(network, "cpu")
        for _ in range(2):  # others use the rows of those that have ended
            host = on_host(network, options, scorers(), history)
            searches = on_device(device, options, scorers(), history)
            for rows, batch, lengths in cut(frames, chunks):
                device.beams([searches[row] for row in rows], batch, lengths)
                advance_beams([host[row] for row in rows], batch, lengths)
                for row in rows:
                    assert [each[:3] for each in searches[row].take_settled()] == [
                        each[:3] for each in host[row].take_settled()
                    ]
                    alike(searches[row].hypotheses(10), host[row].hypotheses(10))
            assert [each.num_frames for each in searches] == np.sum(chunks, axis=0).tolist()
            for each, other in zip(searches, host, strict=True):
                alike(each.hypotheses(10, final=True), other.hypotheses(10, final=True))
            del searches, each


def test_a_stream_begins_with_nothing_whatever_its_row_had_before() -> None:
    network, frames, [options] = Lstm(2), frames_of(2, 1, 20), ways(1, 3, False)
    device = DeviceTransducer(network, "cpu")
    [before] = on_device(device, [options], [None])
    device.beams([before], frames, np.array([20]))
    row, expected = before.row, before.hypotheses(3)
    assert expected[0].tokens
    del before
    device._state_rows[3].free.remove(row)
    device._state_rows[3].free.appendleft(row)  # the next one has it
    [search] = on_device(device, [options], [None])
    device.beams([search], frames[:, :0], np.array([0]))
    device.beams([search], frames, np.array([20]))
    assert search.row == row
    alike(search.hypotheses(3), expected)


def test_a_long_stream_keeps_little() -> None:
    network, chunk = Lstm(1), 16
    device = DeviceTransducer(network, "cpu")
    [search] = on_device(device, ways(1, 4, False), [None], history=32)
    sizes = []
    for step in range(60):
        device.beams([search], frames_of(step, 1, chunk), np.array([chunk]))
        search.take_settled()
        sizes.append(search.num_bytes)
    assert max(sizes[10:]) <= 2 * max(sizes[:10])


@pytest.mark.parametrize("durations", [(), (0, 1, 2, 3, 4)])
def test_what_is_recorded_uses_the_memory_that_there_is(
    durations: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream alone, then with others for which memory has grown and that have hotwords, then alone again."""
    for name in ("LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(stateful, name, 2)
    monkeypatch.setattr(bonuses, "FIRST_ENTRIES", 1)
    network, options, frames = Lstm(3, 2, durations), ways(5, 3, True), frames_of(3, 5, 40)
    device = DeviceTransducer(network, "cpu")
    record(device._loops, monkeypatch)
    plain, long, short = scorers()
    scored = [long, None, short, plain, long]
    searches, host = on_device(device, options, scored), on_host(network, options, scored)
    for step, rows in enumerate(([0], [0], [0, 1, 2, 3, 4], [0], [0, 2])):
        chunk, lengths = frames[: len(rows), 8 * step : 8 * step + 8], np.full(len(rows), 8)
        device.beams([searches[row] for row in rows], chunk, lengths)
        advance_beams([host[row] for row in rows], chunk, lengths)
        for row in rows:
            alike(searches[row].hypotheses(5, final=True), host[row].hypotheses(5, final=True))


@settings(max_examples=examples(60))
@given(st.booleans(), st.lists(st.integers(0, len(SPELLINGS) - 1), max_size=12))
def test_tables_add_what_the_scorer_adds(overlapping: bool, tokens: list[int]) -> None:
    tables = BonusTables(len(SPELLINGS), ())
    for scorer in scorers(overlapping)[1:]:
        share = tables.share(scorer)
        row, state = share.start, scorer.start.copy()
        for token in tokens:
            gain = extend(scorer.address, state, token, following := np.zeros(STATE_SIZE, dtype=np.int32))
            assert tables.gains[row, token].item() == pytest.approx(gain, abs=1e-6)
            row, state = tables.following[row, token].item(), following
        assert tables.endings[row].item() == pytest.approx(finish(scorer.address, state), abs=1e-6)


def test_lists_that_nobody_uses_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = scorers()[1:]
    rows = len(long.automaton.trie.symbol)
    monkeypatch.setattr(bonuses, "MOST_ENTRIES", (1 + rows) * len(SPELLINGS))
    tables = BonusTables(len(SPELLINGS), ())
    used = tables.share(long)
    assert tables.share(long) is used
    assert tables.share(short) is None
    del used
    others = tables.share(short)
    assert others is not None
    assert tables.share(long) is None
    del others
    assert tables.share(long).start == 2  # after row 0 and the root
    assert len(tables.gains) == 1 + rows


def test_a_list_that_is_too_long_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = scorers()[1:]
    monkeypatch.setattr(bonuses, "LIST_ENTRIES", len(long.automaton.trie.symbol) * len(SPELLINGS) - 1)
    assert BonusTables.takes(short)
    assert not BonusTables.takes(long)
