"""Greedy search of a GPU with a predictor that has a state, run by torch on the CPU, finds what the CPU's finds."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from recorded import record
from tritone.search.hypothesis import Token
from tritone.search.options import SearchOptions
from tritone.search.transducer.stateful import StatefulState, advance_stateful

torch = pytest.importorskip("torch")

from tritone.families.nemo.config import TransducerConfig  # noqa: E402  # needs torch
from tritone.families.nemo.transducer import Joint, Predictor  # noqa: E402
from tritone.pipelines.searching.on_device import DeviceTransducer  # noqa: E402
from tritone.runtime.cuda.held import Held  # noqa: E402
from tritone.search.device import greedy, stateful  # noqa: E402
from tritone.search.transducer.device_beam import DeviceState  # noqa: E402

SEEDS = st.integers(0, 2**32 - 1)
DURATIONS = st.sampled_from([(), (0, 1, 2, 3, 4), (2, 0), (1, 12)])
TOKENS = 7  # and the blank after them
LENGTHS = np.array([23, 0, 9, 25, -1, 17])


class Lstm:
    """A random transducer of NeMo's form, for the host and, by its graphs, for a device. Its blank has no vector."""

    state_names = ("hidden", "cell")
    vocab_size, blank_id, unk_id = TOKENS + 1, TOKENS, None

    def __init__(self, seed: int = 0, layers: int = 1, durations: tuple[int, ...] = (), bias: float = 1.0) -> None:
        config = TransducerConfig(
            hidden=5, layers=layers, joint=6, activation="tanh", durations=durations, blank_as_pad=False
        )
        random = torch.Generator().manual_seed(seed)
        self.predictor, self.joint = Predictor(config, TOKENS), Joint(config, 1, TOKENS)
        with torch.no_grad():
            for weight in (*self.predictor.parameters(), *self.joint.parameters()):
                weight.copy_(1.5 * torch.randn(weight.shape, generator=random))
            self.joint.joint_net[-1].bias[TOKENS] += bias
        self.durations = durations
        self._shape = (layers, config.hidden)
        self.predictor_graph = SimpleNamespace(
            program=None, inputs=dict.fromkeys(["hidden", "context", "cell"]), function=self._stepped
        )
        self.joiner_graph = SimpleNamespace(program=None, function=lambda outputs: lambda *given: [self.joint(*given)])

    def _stepped(self, outputs: Any) -> Any:
        assert outputs == ("predictor_out", "next_hidden", "next_cell")

        def step(hidden: Any, context: Any, cell: Any) -> Any:
            predicted, *states = self.predictor(context, hidden, cell)
            return self.joint.pred(predicted), *states

        return step

    @property
    def first(self) -> Any:
        return self.step(np.array([[-1]]), [np.zeros((1, *self._shape), np.float32)] * 2)

    def step(self, tokens: Any, states: Any) -> Any:
        hidden, cell = map(torch.from_numpy, states)
        with torch.inference_mode():
            vectors, *found = self._stepped(("predictor_out", "next_hidden", "next_cell"))(
                hidden, torch.from_numpy(tokens), cell
            )
        return vectors.numpy(), [each.numpy() for each in found]

    def join(self, frames: Any, vectors: Any) -> Any:
        with torch.inference_mode():
            return self.joint(torch.from_numpy(frames), torch.from_numpy(vectors)).numpy()


def frames_of(seed: int, rows: int, frames: int, holes: bool = False) -> npt.NDArray[np.float32]:
    found = 2 * np.random.default_rng(seed).standard_normal((rows, frames, 6)).astype(np.float32)
    if holes:  # frames in which everything is ruled out
        found[:, 2::7] = np.nan
    return found


def ways(rows: int, penalised: bool, most: int) -> list[SearchOptions]:
    """Each row with a penalty and a number of symbols of its own."""
    return [
        SearchOptions(blank_penalty=penalised * (row % 3 - 0.5), max_symbols=1 + row % most if row else most)
        for row in range(rows)
    ]


def on_host(network: Lstm, frames: Any, lengths: Any, options: list[SearchOptions]) -> list[list[Token]]:
    states = [StatefulState(network, blank_penalty=o.blank_penalty, max_symbols=o.max_symbols or 1) for o in options]
    return advance_stateful(states, frames, lengths)


def alike(found: Any, expected: Any) -> None:
    """The same tokens, frames and ends, and the same confidences to what float32 rounds."""
    assert [[token[:3] for token in row] for row in found] == [[token[:3] for token in row] for row in expected]
    confidences = [[token.confidence for row in rows for token in row] for rows in (found, expected)]
    assert confidences[0] == pytest.approx(confidences[1], abs=1e-5)


@settings(max_examples=examples(30))
@given(SEEDS, st.integers(1, 2), DURATIONS, st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from([1, 3, 8]))
def test_a_ragged_batch_is_searched_as_on_the_cpu(
    seed: int, layers: int, durations: tuple[int, ...], most: int, penalised: bool, holes: bool, look_ahead: int
) -> None:
    network, frames = Lstm(seed, layers, durations), frames_of(seed, len(LENGTHS), 25, holes)
    options = ways(len(LENGTHS), penalised, most)
    expected = on_host(network, frames, LENGTHS, options)
    device = DeviceTransducer(network, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "LOOK_AHEAD", look_ahead)
        found = device.stateful(
            [DeviceState(each) for each in options], Held(torch.from_numpy(frames)), LENGTHS, goes_on=False
        )
    alike(found, expected)


def test_tokens_are_there_to_be_compared() -> None:
    """In what the tests above and below search: of each length, with durations and without."""
    for durations in ((), (0, 1, 2, 3, 4)):
        counts = [
            len(row)
            for seed in range(10)
            for row in on_host(Lstm(seed, 2, durations), frames_of(seed, 6, 25), LENGTHS, ways(6, True, 3))
        ]
        assert 50 < sum(counts) < 1500
        assert sum(count > 0 for count in counts) > 25


def cut(
    frames: npt.NDArray[np.float32], chunks: list[list[int]]
) -> Iterator[tuple[list[int], npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """The steps of streams that get so many frames at a time: the streams that get any, their frames, and how many."""
    at = [0] * len(frames)
    for counts in chunks:
        rows = [row for row, count in enumerate(counts) if count]
        if rows:
            batch = np.zeros((len(rows), max(counts), frames.shape[2]), np.float32)
            for place, row in enumerate(rows):
                batch[place, : counts[row]] = frames[row, at[row] : at[row] + counts[row]]
                at[row] += counts[row]
            yield rows, batch, np.array([counts[row] for row in rows])


@settings(max_examples=examples(12))
@given(
    SEEDS,
    st.integers(1, 2),
    DURATIONS,
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=8),
)
def test_streams_in_any_company_and_any_cutting_are_searched_as_whole_ones(
    seed: int, layers: int, durations: tuple[int, ...], chunks: list[list[int]]
) -> None:
    """Each step advances those streams that have frames; some begin when others have ended and use their rows."""
    network, options = Lstm(seed, layers, durations), ways(3, True, 3)
    chunks = [*chunks, [4, 2, 6]]
    frames = frames_of(seed, 3, 60)
    expected = on_host(network, frames, np.sum(chunks, axis=0), options)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_ROWS", "MOST_ROWS"):  # so that there are soon too few
            patch.setattr(stateful, name, 1)
        device = DeviceTransducer(network, "cpu")
        for _ in range(2):
            searches = [DeviceState(each) for each in options]
            host = [StatefulState(network, blank_penalty=o.blank_penalty, max_symbols=o.max_symbols) for o in options]
            found: list[list[Token]] = [[], [], []]
            for rows, batch, lengths in cut(frames, chunks):
                new = device.stateful([searches[row] for row in rows], batch, lengths)
                alike(new, advance_stateful([host[row] for row in rows], batch, lengths))
                for row, tokens in zip(rows, new, strict=True):
                    found[row] += tokens
            # An end is cut where its call's frames end, so it is not that of the whole.
            assert [[(each.id, each.start_frame) for each in row] for row in found] == [
                [(each.id, each.start_frame) for each in row] for row in expected
            ]
            assert [each.num_frames for each in searches] == np.sum(chunks, axis=0).tolist()


@pytest.mark.parametrize(("frames", "steps"), [(1, 2), (2, 2), (5, 4), (14, 4), (40, 8)])
def test_a_short_chunk_without_tokens_takes_few_steps(frames: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block that is taken in vain costs a stream's chunk its time."""
    taken, step = [], stateful.StatefulLoop.step

    def counted(*state: Any) -> Any:
        taken.append(1)
        return step(*state)

    monkeypatch.setattr(stateful.StatefulLoop, "step", counted)
    network, options = Lstm(bias=1e6), ways(2, False, 3)  # blanks alone
    found = DeviceTransducer(network, "cpu").stateful(
        [DeviceState(each) for each in options], frames_of(0, 2, frames), np.array([frames, 1])
    )
    assert not any(map(len, found))
    assert len(taken) == steps


def test_rows_of_streams_that_have_ended_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(stateful, name, 8)
    device = DeviceTransducer(Lstm(durations=(0, 1)), "cpu")
    frames, counts = frames_of(0, 4, 5), np.full(4, 5)
    options = ways(4, False, 1)
    seen = set()
    for _ in range(6):  # more streams in all than there are rows
        searches = [DeviceState(each) for each in options]
        device.stateful(searches, frames, counts)
        assert len({each.row for each in searches} - {stateful.NOBODY, stateful.FIRST}) == 4
        seen |= {each.row for each in searches}
    assert max(seen) < stateful.MOST_ROWS + 2


def test_a_memory_grows_and_keeps_what_it_has() -> None:
    memory = stateful.StateRows([np.arange(3, dtype=np.float32)[None], np.full((1, 2, 4), 7, np.float32)])
    memory.grow()
    size, first = len(memory.tensors[0]), memory.tensors[0]
    assert size == stateful.MOST_ROWS + 2
    assert sorted(memory.free) == list(range(2, size))
    row = memory.free.popleft()
    memory.tensors[1][row] = 1.0
    memory.grow()
    assert memory.tensors[0] is not first
    assert [each.shape for each in memory.tensors] == [(2 * size, 3), (2 * size, 2, 4)]
    assert memory.tensors[1][row].unique().tolist() == [1.0]
    assert memory.tensors[1][stateful.FIRST].unique().tolist() == memory.tensors[1][-1].unique().tolist() == [7.0]
    assert sorted(memory.free) == [each for each in range(2, 2 * size) if each != row]


@pytest.mark.parametrize("durations", [(), (0, 1, 2, 3, 4)])
def test_what_is_recorded_uses_the_memory_that_there_is(
    durations: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that advances alone, then with others for which memory has grown, then alone again."""
    for name in ("LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(stateful, name, 2)
    network, options, frames = Lstm(3, 2, durations), ways(5, True, 2), frames_of(3, 5, 30)
    device = DeviceTransducer(network, "cpu")
    record(device._loops, monkeypatch)
    searches = [DeviceState(each) for each in options]
    host = [StatefulState(network, blank_penalty=o.blank_penalty, max_symbols=o.max_symbols) for o in options]
    found = 0
    for step, rows in enumerate(([0], [0], [0, 1, 2, 3, 4], [0], [0])):
        chunk, lengths = frames[: len(rows), 6 * step : 6 * step + 6], np.full(len(rows), 6)
        new = device.stateful([searches[row] for row in rows], chunk, lengths)
        alike(new, advance_stateful([host[row] for row in rows], chunk, lengths))
        found += len(new[0])
    assert len(device._state_rows[0].tensors[0]) == 8
    assert len(device._loops._recorded) == 2  # what was recorded before is dropped
    assert found > 3
