"""What a graph in another precision makes of speakers, against the float32 network.

    float32 graph, the opened one, recordings  ->  Drift of embeddings

What is done with embeddings is to compare their directions. What is limited is how far directions turn: 1 - cosine
between an utterance's embedding in float32 and in the other precision, on average over recordings. 0.01 stands for a
turn of 8 degrees. In a space of a hundred dimensions or more, turns of that size in no direction in particular change
the score of two utterances by about a hundredth, a tenth of what scores of different speakers differ among each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritone.audio import Waveform
from tritone.errors import ExportError
from tritone.families.export.exportable import ExportableGraph, follow
from tritone.runtime import Graph


@dataclass(frozen=True)
class EmbeddingDrift:
    """How far a graph is from float32.

    `count`: recordings. `moved`: what is limited, the mean of 1 - cosine, and `largest` of these; NaN if the graph
    gave something that is not finite. `score`: the largest change of the cosine of two recordings.
    """

    count: int
    moved: float
    largest: float
    score: float

    def __str__(self) -> str:
        return (
            f"1 - cosine of {self.count} embeddings {self.moved:.3g}, at most {self.largest:.3g}; scores of pairs "
            f"change by at most {self.score:.3g}"
        )


def embedding_drift(graph: ExportableGraph, opened: Graph, recordings: Sequence[Waveform]) -> EmbeddingDrift:
    """Compare the embeddings of an opened graph with those of the float32 network `graph`.

    Raises:
        ExportError: no recording is long enough.
    """
    runs = list(filter(None, map(graph.hearing, recordings)))
    if not runs:
        raise ExportError("the audio to check the exported graphs with is too short for a single embedding")
    [output] = graph.compared
    pairs = [[each[output][0] for each in both] for run in runs for both in follow(graph, opened, run)]
    expected, found = (_directions(np.stack(rows)) for rows in zip(*pairs, strict=True))
    turned = 1 - (expected * found).sum(axis=1)
    change = np.abs(expected @ expected.T - found @ found.T)
    # numpy's maxima and means keep NaN.
    return EmbeddingDrift(len(pairs), float(turned.mean()), float(turned.max()), float(change.max()))


def _directions(embeddings: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = embeddings.astype(np.float64)
    size: npt.NDArray[np.float64] = np.linalg.norm(wide, axis=1, keepdims=True)
    found: npt.NDArray[np.float64] = wide / np.maximum(size, np.finfo(np.float64).tiny)
    return found
