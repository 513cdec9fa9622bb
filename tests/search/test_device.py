"""The searches of a GPU, run by torch on the CPU, find what the searches of the CPU find; ties included."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from search.test_transducer_search import BLANK, TableNetwork, random_frames
from tritone.search.ctc.greedy import ctc_greedy, ctc_greedy_best, tokens_of_block
from tritone.search.ctc.prefix_beam import top_tokens
from tritone.search.transducer.batch import advance_beams
from tritone.search.transducer.greedy import GreedyState, advance_greedy
from tritone.search.transducer.modified_beam import ModifiedBeam
from tritone.search.transducer.predictor import PredictorCache
from tritone.search.transducer.traced import traced

torch = pytest.importorskip("torch")

from tritone.runtime.cuda.held import Held  # noqa: E402  # needs torch
from tritone.runtime.cuda.loop import DeviceLoops  # noqa: E402
from tritone.search.device import ctc  # noqa: E402
from tritone.search.device.greedy import GreedyLoop  # noqa: E402
from tritone.search.device.kernels_for import (  # noqa: E402
    fault_of,
    fault_of_greedy,
    fault_of_stateful,
    fault_of_stateful_beams,
    fault_of_tops,
    greedy_block_of,
    greedy_tokens_for,
    kernels_for,
    stateful_beams_for,
    stateful_for,
    top_block,
    top_tokens_for,
    tried,
    whole_for,
)
from tritone.search.device.modified_beam import ModifiedBeamLoop  # noqa: E402

SEEDS = st.integers(0, 2**32 - 1)
START = (-1, 0)
LENGTHS = np.array([11, 0, 5, 11, 8])
BATCH, FRAMES, VOCAB = len(LENGTHS), 11, 6
SHAPE = (8, 16)  # of rows and frames, with those that are only added


def places(found: Any) -> list[list[tuple[int, int, int]]]:
    return [[(token.id, token.start_frame, token.end_frame) for token in tokens] for tokens in found]


def confidences(found: Any) -> list[float]:
    return [token.confidence for tokens in found for token in tokens]


@given(SEEDS, st.integers(1, 4), st.integers(0, 9), st.integers(0, 3))
def test_the_greedy_block_is_what_greedy_search_finds(seed: int, batch: int, frames: int, blank_id: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 4, (batch, frames))
    scores = rng.choice([-3.0, -0.5, -0.25, 0.0, -0.0, 1e-6], (batch, frames)).astype(np.float32)
    num_frames = rng.integers(0, frames + 1, batch)
    block = ctc.greedy_block(torch.from_numpy(ids), torch.from_numpy(scores), torch.from_numpy(num_frames), blank_id)
    found, expected = tokens_of_block(block.numpy()), ctc_greedy_best(ids, scores, num_frames, blank_id)
    assert places(found) == places(expected)
    assert confidences(found) == pytest.approx(confidences(expected), rel=1e-6)


def test_a_graph_without_best_tokens_takes_the_first_of_equal_ones() -> None:
    log_probs = np.array([[[0.0, -1.0, -1.0], [-2.0, -1.0, -1.0], [-3.0, -2.0, -1.0]]], np.float32)
    num_frames = np.array([3])
    block = greedy_block_of(torch.from_numpy(log_probs), torch.from_numpy(num_frames), blank_id=0)
    assert (
        places(tokens_of_block(block.numpy()))
        == places(ctc_greedy(log_probs, num_frames, 0))
        == [[(1, 1, 2), (2, 2, 3)]]
    )


@given(SEEDS, st.sampled_from([1, 7, 31, 32, 33, 64, 100, 353]), st.integers(1, 40), st.sampled_from([1.0, 3.0, 100.0]))
def test_the_best_tokens_of_a_frame_are_those_of_the_cpu_in_the_same_order(
    seed: int, vocab: int, k: int, fineness: float
) -> None:
    """Coarse numbers have many ties."""
    rng = np.random.default_rng(seed)
    log_probs = (np.round(rng.standard_normal((2, 3, vocab)) * fineness) / fineness).astype(np.float32)
    log_probs[rng.random(log_probs.shape) < 0.1] = -np.inf
    ids, values = ctc.top_block(torch.from_numpy(log_probs), min(k, vocab)).numpy().swapaxes(0, 1)
    expected_ids, expected = top_tokens(log_probs, k)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(np.ascontiguousarray(values).view(np.float32), expected)


def network_of(seed: int, unk_id: int | None, coarse: bool) -> TableNetwork:
    network = TableNetwork(VOCAB, start=START, unk_id=unk_id, seed=seed)
    if coarse:  # equal logits
        network._weights = np.round(network._weights)
    return network


def frames_of(seed: int, coarse: bool, holes: bool) -> npt.NDArray[np.float32]:
    frames = random_frames(seed, BATCH, FRAMES, VOCAB) + 1.5 * np.eye(VOCAB, dtype=np.float32)[BLANK]
    if coarse:
        frames = np.round(frames)
    if holes:  # logits that are ruled out
        frames[0, 3], frames[3, 2, 1], frames[2, 2], frames[0, :, 1] = np.nan, np.inf, -np.inf, -np.inf
    return frames


def functions(network: TableNetwork, **options: Any) -> dict[str, Any]:
    return {
        "predict": lambda contexts: torch.from_numpy(network.predict(contexts.numpy())),
        "join": lambda frames, vectors: torch.from_numpy(network.join(frames.numpy(), vectors.numpy())),
        "vocab_size": VOCAB,
        "blank_id": BLANK,
        "unk_id": network.unk_id,
        **options,
    }


def filled(values: Any, dtype: Any = None, fill: float = 0) -> npt.NDArray[Any]:
    given_ = np.asarray(values, dtype)
    return np.concatenate([given_, np.full((SHAPE[0] - BATCH, *given_.shape[1:]), fill, given_.dtype)])


@given(SEEDS, st.integers(1, 3), st.sampled_from([None, 2]), st.booleans(), st.sampled_from([1, 4, 8]), st.booleans())
@settings(max_examples=examples(40))
def test_transducer_greedy_search_is_that_of_the_cpu(
    seed: int, max_symbols: int, unk_id: int | None, coarse: bool, look_ahead: int, penalised: bool
) -> None:
    """Also in two parts, as of a stream: its state is the context."""
    network, frames = network_of(seed, unk_id, coarse), frames_of(seed, coarse, coarse)
    penalties = np.array([0, 1.5, -2, 0.5, 0], np.float32) * penalised
    cache = PredictorCache(network)
    states = [GreedyState(cache, blank_penalty=float(each), max_symbols=max_symbols) for each in penalties]
    expected = advance_greedy(states, frames, LENGTHS)
    loops = DeviceLoops("cpu", steps=3)
    loop = GreedyLoop(**functions(network, max_symbols=max_symbols, penalised=penalised, look_ahead=look_ahead))
    contexts, found = np.tile(np.array(START), (BATCH, 1)), [[] for _ in LENGTHS]
    for first, last in ((0, 4), (4, FRAMES)):
        lengths = np.clip(LENGTHS - first, 0, last - first)
        held = Held(torch.from_numpy(frames[:, first:last].copy()))
        small = [filled(lengths), filled(contexts), filled(penalties)]
        counts, (ids, times), log_probs, contexts = loops("greedy", loop, held, SHAPE, small, None)
        contexts = contexts[:BATCH]
        for row in range(BATCH):
            for column in range(counts[row]):
                found[row].append((ids[row, column], times[row, column] + first, np.exp(log_probs[row, column])))
    assert [[(i, f) for i, f, _ in row] for row in found] == [[(i, f) for i, f, _ in row] for row in places(expected)]
    assert [p for row in found for *_, p in row] == pytest.approx(confidences(expected), abs=1e-5)
    np.testing.assert_array_equal(contexts, [state.context for state in states])


@given(SEEDS, st.integers(1, 10), st.sampled_from([None, 2]), st.booleans(), st.booleans())
@settings(max_examples=examples(40))
def test_modified_beam_search_is_that_of_the_cpu(
    seed: int, beam: int, unk_id: int | None, holes: bool, counted: bool
) -> None:
    """Whose scores are sums in another order, so hypotheses that are equally good may change places."""
    network, frames = network_of(seed, unk_id, coarse=False), frames_of(seed, coarse=False, holes=holes)
    penalties, temperatures = np.array([0, 1.5, -2, 0.5, 0], np.float32), np.array([1, 1, 0.5, 3, 1.0])
    cache = PredictorCache(network)
    beams = [
        ModifiedBeam(cache, beam=beam, blank_penalty=float(penalty), temperature=temperature, history=None)
        for penalty, temperature in zip(penalties, temperatures, strict=True)
    ]
    advance_beams(beams, frames, LENGTHS)
    expected = [each.hypotheses(100, final=True) for each in beams]
    loop = ModifiedBeamLoop(**functions(network, beam=beam, start=START, penalised=True))
    small = [filled(LENGTHS), filled(penalties), filled(temperatures, fill=1)]
    steps = FRAMES + 2 if counted else None  # steps beyond the end change nothing
    totals, pointers, log_probs = DeviceLoops("cpu", steps=3)("beam", loop, frames, SHAPE, small, steps)
    found = traced(totals, pointers, log_probs, LENGTHS, len(START), [100] * BATCH)
    for ours, theirs in zip(found, expected, strict=True):
        assert places(each.tokens for each in ours) == places(each.tokens for each in theirs)
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-4)
        assert [each.log_prob for each in ours] == pytest.approx([each.log_prob for each in theirs], abs=1e-4)
        tokens, wanted = ([each.tokens for each in nbest] for nbest in (ours, theirs))
        assert confidences(tokens) == pytest.approx(confidences(wanted), abs=1e-4)


@given(st.lists(st.integers(0, 4), max_size=8), st.lists(st.integers(0, 4), max_size=8))
def test_rows_of_what_is_held_can_be_chosen_twice(first: list[int], second: list[int]) -> None:
    values = torch.arange(15.0).reshape(5, 3)
    chosen = Held(values).rows(first)
    assert (chosen.shape, len(chosen)) == ((len(first), 3), len(first))
    np.testing.assert_array_equal(chosen.numpy(), values.numpy()[first])
    if first:
        again = [each % len(first) for each in second]
        np.testing.assert_array_equal(chosen.rows(again).numpy(), values.numpy()[first][again])


class WrongKernels:
    """Kernels that say nothing: no row gets further."""

    def spread(self, frames: Any, first: Any, vectors: Any, each: int) -> Any:
        return frames[: len(vectors) * each], vectors.repeat_interleave(each, 0)

    def greedy_step(self, logits: Any, state: Any, **_: Any) -> Any:
        return state[:4]

    def spread_frame(self, frames: Any, frame: Any, vectors: Any, beam: int, numbers: Any = None) -> Any:
        return vectors, vectors

    def beam_step(self, logits: Any, state: Any, **_: Any) -> Any:
        return state[:4]

    def stateful_step(self, logits: Any, state: Any, **_: Any) -> Any:
        return *state[:3], torch.ones_like(state[0]), state[0] < 0

    def stateful_beam_step(self, logits: Any, state: Any, **_: Any) -> Any:
        rows = torch.arange(len(logits))
        return *state[:6], rows, torch.ones_like(rows), rows < 0


def test_kernels_that_find_something_else_are_not_used() -> None:
    assert fault_of(WrongKernels(), "cpu") == "its kernel for greedy search finds other tokens than torch"
    assert fault_of_stateful(WrongKernels(), "cpu") == (
        "its kernel for predictors with a state finds other tokens than torch"
    )
    assert fault_of_stateful_beams(WrongKernels(), "cpu") == (
        "its kernel for beams with a state finds other hypotheses than torch"
    )
    assert kernels_for("cpu") is stateful_for("cpu") is stateful_beams_for("cpu") is None


def test_a_kernel_that_finds_other_greedy_tokens_is_not_used() -> None:
    class Later:
        def greedy_block(self, *given: Any) -> Any:
            return ctc.greedy_block(*given).roll(1, 0)

    class Unclean:
        def greedy_block(self, *given: Any) -> Any:
            block = ctc.greedy_block(*given)
            unread = (block[:, :1] == ctc.UNUSED).cumsum(-1) > 0
            unread[:, 0] = (block[:, 0] == ctc.UNUSED).cumsum(-1) > 1
            return torch.where(unread, 7, block)

    assert fault_of_greedy(Later(), "cpu") == "its kernel for greedy tokens finds others than torch"
    assert fault_of_greedy(Unclean(), "cpu") == fault_of_greedy(ctc, "cpu") == ""
    assert greedy_tokens_for("cpu") is None


def test_a_kernel_that_finds_other_best_tokens_is_not_used() -> None:
    class Unsorted:
        def top_block(self, log_probs: Any, k: int) -> Any:
            return ctc.top_block(log_probs, k).flip(-1)

    assert fault_of_tops(Unsorted(), "cpu") == "its kernel for the best tokens finds others than torch"
    assert fault_of_tops(ctc, "cpu") == ""
    assert top_tokens_for("cpu") is None
    log_probs = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(top_block(log_probs, 4), ctc.top_block(log_probs, 4))


@pytest.mark.gpu
def test_the_kernels_find_what_torch_finds() -> None:
    assert kernels_for("cuda") is not None
    assert stateful_for("cuda") is not None
    assert stateful_beams_for("cuda") is not None
    assert greedy_tokens_for("cuda") is not None
    assert top_tokens_for("cuda") is not None
    assert whole_for("cuda") is not None  # each is tried and compared with torch


def test_kernels_that_cannot_be_used_are_none_and_the_log_says_what_is_done_instead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert tried("ctc", lambda module, device: "", "cpu", "torch does it").__name__.endswith("device.ctc")
    assert not caplog.records
    assert tried("ctc", lambda module, device: f"wrong on {device}", "cpu", "torch does it") is None
    assert tried("nothing", lambda module, device: "", "cpu", "torch does it") is None
    first, second = caplog.messages
    assert first == "torch does it, because Triton cannot be used: wrong on cpu"
    assert "No module named" in second
