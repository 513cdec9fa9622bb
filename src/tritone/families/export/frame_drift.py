"""What a graph in another precision makes of audio, frame by frame, against the float32 network; see `drift.py`.

    float32 graph, the opened one, recordings  ->  what both give for each frame  ->  Drift of log-probabilities

Both run on the same recordings; frames that are not valid count for nothing.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tritone.audio import Waveform
from tritone.families.export.drift import Array, Drift, distribution_drift
from tritone.families.export.exportable import ExportableGraph, follow, valid_rows
from tritone.runtime import Graph


def frame_drift(graph: ExportableGraph, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
    """Compare the log-probabilities of an opened graph with those of the float32 network `graph`.

    Args:
        graph: compares one output.
    """
    return distribution_drift(paired_frames(graph, opened, recordings))


def paired_frames(
    graph: ExportableGraph, opened: Graph, recordings: Sequence[Waveform]
) -> Iterator[tuple[Array, Array]]:
    """What a graph, as of `frame_drift`, and an opened one give for each recording: (frames, width) of both."""
    [output] = graph.compared
    for run in filter(None, map(graph.hearing, recordings)):
        steps = [[valid_rows(each, output, graph.counted)[0] for each in both] for both in follow(graph, opened, run)]
        expected, found = (np.concatenate(parts) for parts in zip(*steps, strict=True))
        yield expected, found
