"""The runtime `torch` on a GPU says what it says on the CPU. Skipped where there is none."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from families.conftest import babble
from tritone.bundle.bundle import Bundle
from tritone.pipelines import open_offline, open_streaming
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.streaming import Step
from tritone.runtime import open_graph
from tritone.runtime.torch.graph import MAX_REPLAYED, TorchGraph

pytestmark = pytest.mark.gpu

FP32_ATOL = 1e-3  # natural-log units; sums in another order, in a network that amplifies them
HALVES = {"fp16": 0.05, "bf16": 0.4}  # mean differences from fp32


@pytest.fixture
def bundle(torch_bundle: Bundle) -> Bundle:
    return torch_bundle


def feed(batch: int, samples: int, seed: int) -> dict[str, np.ndarray]:
    waveform = np.stack([babble(samples, seed=seed * 100 + row) for row in range(batch)])
    return {"waveform": waveform, "num_samples": np.random.default_rng(seed).integers(samples // 2, samples + 1, batch)}


def differences(gpu: TorchGraph, cpu: TorchGraph, inputs: dict[str, np.ndarray]) -> np.ndarray:
    outputs = ["log_probs", "num_frames"]
    (found, frames), (expected, count) = gpu(inputs, outputs), cpu(inputs, outputs)
    np.testing.assert_array_equal(frames, count)
    valid = np.arange(expected.shape[1]) < count[:, None]
    difference: np.ndarray = np.abs(found - expected)[valid]
    return difference


def test_calls_are_right_before_and_after_they_are_recorded(bundle: Bundle) -> None:
    path = bundle.artifact("encoder")
    gpu, cpu = TorchGraph(path, "cuda"), TorchGraph(path)
    for seed in range(6):
        for batch, samples in ((1, 16000), (5, 9000), (1, 1360)):
            assert differences(gpu, cpu, feed(batch, samples, seed)).max(initial=0) < FP32_ATOL
    assert gpu._replays is not None
    assert len(gpu._replays._recorded) == 3


def test_calls_too_large_to_be_recorded_are_right(bundle: Bundle) -> None:
    path = bundle.artifact("encoder")
    inputs = feed(2, MAX_REPLAYED // 2 + 1000, 1)
    assert differences(TorchGraph(path, "cuda"), TorchGraph(path), inputs).max() < FP32_ATOL


@pytest.mark.parametrize("precision", HALVES)
def test_half_precisions_are_close(bundle: Bundle, precision: str) -> None:
    gpu = TorchGraph(bundle.artifact("encoder", "torch", precision), "cuda")  # type: ignore[arg-type]
    cpu = TorchGraph(bundle.artifact("encoder"))
    for seed in range(5):
        assert 0 < differences(gpu, cpu, feed(3, 16000, seed)).mean() < HALVES[precision]


def test_pipelines_say_the_same_from_several_threads(bundle: Bundle) -> None:
    rng = np.random.default_rng(5)
    waveforms = [babble(int(samples), seed=int(samples)) for samples in rng.integers(0, 48000, 120)]
    expected = [transcript.text for transcript in open_offline(bundle).recognize(waveforms)]
    pipeline = open_offline(bundle, placement=Placement(device="cuda"))
    pipeline.warm_up()
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(pipeline.recognize, [waveforms[start::6] for start in range(6)]))
    found = [""] * len(waveforms)
    for start, part in enumerate(parts):
        found[start::6] = [transcript.text for transcript in part]
    assert sum(one != other for one, other in zip(found, expected, strict=True)) <= 1


@pytest.mark.parametrize("left_chunks", [None, 0, -1])
def test_streams_keep_their_states_on_the_device(bundle: Bundle, left_chunks: int | None) -> None:
    waveforms = [
        babble(samples, seed=samples) for samples in (9000, 20000, 1000, 15321, 0, 12800, 640, 30000, 7, 16000)
    ]
    texts = []
    for device in ("cpu", "cuda"):
        pipeline = open_streaming(
            bundle, placement=Placement(device=device), capacity=12, max_batch=8, left_chunks=left_chunks
        )
        pipeline.warm_up()
        for _ in range(2):  # slots are used again
            slots = [pipeline.open() for _ in waveforms]
            for start in range(0, 30000, 2500):
                steps = [
                    Step(s, w[start : start + 2500]) for s, w in zip(slots, waveforms, strict=True) if start < len(w)
                ]
                pipeline.advance(steps)
            last = pipeline.advance([Step(slot, np.zeros(0, np.float32), True) for slot in slots])
        texts.append([transcript.text for transcript in last])
    assert texts[0] == texts[1]


def test_arrays_that_were_made_for_the_device_are_fed_as_they_are(bundle: Bundle) -> None:
    graph = open_graph(bundle.artifact("encoder"), "cuda")
    inputs = feed(2, 8000, 3)
    block = graph.empty((2, 8000), np.float32)
    block[:] = inputs["waveform"]
    assert torch.from_numpy(block).is_pinned()
    (found,) = graph({**inputs, "waveform": block}, ["log_probs"])
    (expected,) = graph(inputs, ["log_probs"])
    np.testing.assert_array_equal(found, expected)


def test_convolutions_are_not_rounded_to_tf32(bundle: Bundle) -> None:
    """TF32 keeps 10 bits, so it would show as differences a thousand times those of float32."""
    path = bundle.artifact("encoder")
    difference = differences(TorchGraph(path, "cuda"), TorchGraph(path), feed(4, 16000, 9))
    assert difference.mean() < 1e-5
