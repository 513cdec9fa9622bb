"""Whether exported graphs compute what the torch network does.

A test signal goes through both, in one batch and in streaming steps; the largest difference of log-probabilities over
valid frames is what counts, in natural-log units. Of a decoder it is that of the scores of a few hypotheses.
"""

import numpy as np
import torch
from torch import Tensor

from tritone.bundle.manifest import ALL_LEFT, LEFT_FRAMES
from tritone.errors import ExportError
from tritone.families.wenet.graphs import OfflineGraph, StreamingGraph
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.runtime import Graph

CHECK_SECONDS = (0.05, 1.3, 2.9)
STEPS = 4
CHECK_CHUNKS = ((1, 5), (6, 0))  # chunk size and past frames beside the defaults: the least of either


def difference(graph: OfflineGraph | StreamingGraph | RescoringGraph, session: Graph, name: str) -> float:
    """The largest difference between a network and an opened graph; `name` is for errors.

    Raises:
        ExportError: the graph counts other frames than the network.
    """
    if isinstance(graph, RescoringGraph):
        return _rescoring(graph, session)
    return _offline(graph, session, name) if isinstance(graph, OfflineGraph) else _streaming(graph, session, name)


def zero_states(graph: StreamingGraph, batch: int, left_frames: int) -> dict[str, Tensor]:
    """The states of streams that start, with room for `left_frames` past frames."""
    return {
        name: torch.zeros(
            batch,
            *(left_frames if axis == LEFT_FRAMES else axis for axis in shape),
            dtype=torch.int64 if name == "offset" else torch.float32,
        )
        for name, shape in graph.state_shapes.items()
    }


def _signal(samples: int, sample_rate: int) -> Tensor:
    """Chirps under slow loudness changes, with noise: energy in all bands, silence too. The same at every export."""
    time = torch.arange(samples, dtype=torch.float64) / sample_rate
    tone = torch.sin(2 * torch.pi * (200 * time + 400 * time.square()))
    noise = torch.rand(samples, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    loudness = torch.sin(2 * torch.pi * 1.7 * time).clamp(min=0)
    return (0.3 * tone * loudness + 0.05 * noise * loudness + 1e-3 * noise).float()


def _offline(graph: OfflineGraph, session: Graph, name: str) -> float:
    rate = graph.sample_rate
    lengths = [round(seconds * rate) for seconds in CHECK_SECONDS]
    waveform = torch.stack([_signal(max(lengths), rate)] * len(lengths))
    num_samples = torch.tensor(lengths)
    with torch.no_grad():
        expected, num_frames, _ = graph(waveform, num_samples)
    feed = {"waveform": waveform.numpy(), "num_samples": num_samples.numpy()}
    found, frames = session(feed, ["log_probs", "num_frames"])
    return _largest(found, frames, expected, num_frames, name)


def _streaming(graph: StreamingGraph, session: Graph, name: str) -> float:
    left_frames = graph.chunk_size * (STEPS if graph.left_chunks == ALL_LEFT else graph.left_chunks)
    sizes = {(graph.chunk_size, left_frames), *CHECK_CHUNKS}
    return float(np.max([_stream(graph, session, name, *each) for each in sizes]))


def _stream(graph: StreamingGraph, session: Graph, name: str, chunk_size: int, left_frames: int) -> float:
    window, shift = graph.window_for(chunk_size), graph.shift_for(chunk_size)
    signal = _signal(window + shift * STEPS, graph.sample_rate)
    expected_states = zero_states(graph, 1, left_frames)
    states = {key: value.numpy() for key, value in expected_states.items()}
    worst = 0.0
    for step in range(STEPS):
        start = step * shift
        valid = window if step < STEPS - 1 else window // 2
        waveform = signal[start : start + window].unsqueeze(0)
        num_samples = torch.tensor([valid])
        with torch.no_grad():
            expected, num_frames, _, *next_states = graph(waveform, num_samples, *expected_states.values())
        expected_states = dict(zip(expected_states, next_states, strict=True))
        names = ["log_probs", "num_frames", *(f"next_{key}" for key in states)]
        found, frames, *rest = session(
            {"waveform": waveform.numpy(), "num_samples": num_samples.numpy(), **states}, names
        )
        states = dict(zip(states, rest, strict=True))
        worst = float(np.maximum(worst, _largest(found, frames, expected, num_frames, name)))
    return worst


def _rescoring(graph: RescoringGraph, session: Graph) -> float:
    """Hypotheses of 0 to 6 tokens for frames like those behind a layer norm, one utterance shorter than the other."""
    random = torch.Generator().manual_seed(0)
    inputs = (
        torch.randn(2, 40, graph.encoder_dim, generator=random),
        torch.tensor([40, 3]),
        torch.randint(graph.vocab_size, (2, 3, 6), generator=random),
        torch.tensor([[6, 0, 1], [2, 6, 3]]),
    )
    with torch.no_grad():
        expected = graph(*inputs)
    found = session(dict(zip(graph.inputs, (each.numpy() for each in inputs), strict=True)), graph.outputs)
    return float(np.max([np.abs(ours - theirs.numpy()).max() for ours, theirs in zip(found, expected, strict=True)]))


def _largest(found: np.ndarray, frames: np.ndarray, expected: Tensor, num_frames: Tensor, name: str) -> float:
    if not np.array_equal(frames, num_frames.numpy()):
        raise ExportError(f"{name} counts {frames.tolist()} frames, the torch network {num_frames.tolist()}")
    # numpy's maxima keep NaN, which the built-in would lose; a graph that gives one must not pass.
    rows = [
        np.abs(found[row, :count] - expected[row, :count].numpy()).max(initial=0.0)
        for row, count in enumerate(num_frames.tolist())
    ]
    return float(np.max(rows))
