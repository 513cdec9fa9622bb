"""What a WeNet graph in another precision makes of audio, against float32; see `families.export.drift`."""

from collections.abc import Sequence

import numpy as np
import torch

from tritone.audio import Waveform
from tritone.families.export.drift import Array, Drift, score_drift
from tritone.families.wenet.graphs import OfflineGraph
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.runtime import Graph


@torch.no_grad()
def decoder_drift(
    graph: RescoringGraph, opened: Graph, offline: OfflineGraph, blank_id: int, recordings: Sequence[Waveform]
) -> Drift:
    """Compare the scores of the greedy hypotheses; both decoders are given what the float32 encoder says."""
    changes: list[Array] = []
    counts: list[int] = []
    for waveform in recordings:
        if len(waveform) < offline.min_samples:
            continue
        samples = torch.tensor([len(waveform)])
        log_probs, num_frames, encoded = offline(torch.from_numpy(waveform)[None], samples)
        best = log_probs[0, : int(num_frames)].argmax(dim=1).unique_consecutive()
        tokens = best[best != blank_id]
        ids = tokens.reshape(1, 1, -1)
        inputs = (encoded, num_frames, ids, torch.tensor([[len(tokens)]]))
        expected = graph(*inputs)
        feed = dict(zip(graph.inputs, (each.numpy() for each in inputs), strict=True))
        found = opened(feed, graph.outputs)
        for ours, theirs in zip(found, expected, strict=True):
            changes.append(np.abs(ours - theirs.numpy()).reshape(-1))
            counts.append(len(tokens) + 1)
    return score_drift(changes, counts)
