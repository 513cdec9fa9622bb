"""Calls of a graph on a real GPU, many at once: every result is that of its own audio."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tritone.runtime.cuda.queue import CudaQueue, Replays  # noqa: E402  # torch may be missing
from tritone.runtime.torch.graph import TorchGraph  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def graph(toy_bundle_of_both: Path) -> TorchGraph:
    return TorchGraph(toy_bundle_of_both / "encoder.pt2", "cuda")


def test_16_bit_samples_give_the_same_numbers_as_the_floats_that_they_stand_for(graph: TorchGraph) -> None:
    assert graph.widens
    numbers = np.random.default_rng(0).integers(-32768, 32768, (3, 20_000)).astype(np.int16)
    for _ in range(5):  # as they are launched, and recorded
        narrow, wide = (
            graph({"waveform": block, "num_samples": np.full(3, 20_000)}, ["log_probs", "num_frames"])
            for block in (numbers, (numbers / 32768).astype(np.float32))
        )
        for each, expected in zip(narrow, wide, strict=True):
            np.testing.assert_array_equal(each, expected)


def test_calls_at_once_do_not_mix_their_audio() -> None:
    """What comes back is what was sent, small and large, recorded or not, while blocks are used again and again."""
    queue = CudaQueue(torch.device("cuda", 0))
    replays = Replays(queue)

    def call(index: int) -> None:
        shape = (8, 1000 + 200_000 * (index % 2))
        block = queue.empty(shape, np.float32)
        block[:] = index
        with torch.inference_mode():
            sent = queue.send([block, np.array([index])])
            with queue.turn():
                given = queue.received(sent)
                fetched = queue.fetch(replays.run("add", lambda x, y: [x + y, x.sum(dim=1), y * 2], given))
        total, sums, twice = fetched.wait()
        assert total.shape == shape
        assert (total == 2 * index).all()
        np.testing.assert_allclose(sums, np.full(8, index * shape[1]), rtol=1e-5)
        assert twice.tolist() == [2 * index]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(200)))


def test_memory_that_others_drop_while_a_call_is_recorded_harms_neither() -> None:
    queue = CudaQueue(torch.device("cuda", 0))
    replays = Replays(queue, record_after=1)
    used = [queue.pinned(np.ones(1000, np.float32))]

    def drop() -> None:
        used.clear()
        queue.empty((1000,), np.float32)  # torch looks whether anybody still uses what was dropped

    def plus_one(x: Any) -> list[Any]:
        if used and torch.cuda.is_current_stream_capturing():
            with ThreadPoolExecutor(1) as other:
                other.submit(drop).result()
        return [x + 1]

    with torch.inference_mode(), queue.turn():
        used[0].to(queue.device, non_blocking=True)
        for value in (1, 2, 3):
            (found,) = replays.run("plus one", plus_one, [torch.full((3,), value)])
            assert found.tolist() == [value + 1] * 3
    assert not used
    assert len(replays._recorded) == 1


def test_calls_alone_and_beside_others_give_the_same(graph: TorchGraph) -> None:
    """Alone, audio goes straight into the recording; beside others it is sent ahead; blocks are used again."""
    rng = np.random.default_rng(1)
    audio = [rng.integers(-9000, 9000, (2, 16_000)).astype(np.int16) for _ in range(7)]

    def call(index: int) -> list[np.ndarray]:
        block = graph.empty((2, 16_000), np.int16)
        block[:] = audio[index % 7]
        return graph({"waveform": block, "num_samples": np.array([16_000, 9000])}, ["log_probs", "num_frames"])

    expected = [call(index) for index in range(14)][7:]  # recorded from the third on
    for callers in (1, 3, 1):
        with ThreadPoolExecutor(callers) as pool:
            for index, found in enumerate(pool.map(call, range(70))):
                for each, wanted in zip(found, expected[index % 7], strict=True):
                    np.testing.assert_array_equal(each, wanted)
