"""What kinds of models have in common that find segments of audio."""

import json
from collections.abc import Collection, Sequence

import numpy as np

from tritone.activity import SpeechActivity
from tritone.pipelines.wire import PROBABILITIES, SEGMENTS
from tritone.runtime.graph import Array


def activity_tensors(results: Sequence[SpeechActivity], wanted: Collection[str]) -> dict[str, Array]:
    """Segments as JSON, (rows, 1), and probabilities (rows, frames, ...), where short rows end with zeros."""
    found: dict[str, Array] = {}
    if SEGMENTS in wanted:
        texts = [json.dumps(each.to_dict()).encode() for each in results]
        found[SEGMENTS] = np.array(texts, dtype=object)[:, None]
    rows = [each.probabilities for each in results if each.probabilities is not None]
    if PROBABILITIES in wanted and rows:
        found[PROBABILITIES] = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), np.float32)
        for target, row in zip(found[PROBABILITIES], rows, strict=True):
            target[: len(row)] = row
    return found
