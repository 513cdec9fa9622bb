"""Embeddings of windows to speakers.

label_windows(vectors, lengths_s, options)  ->  labels (windows,) numbered by their first windows
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tritone.diarization.clustering import (
    NO_PAIRS,
    Doubles,
    Labels,
    Pairs,
    Points,
    agglomerate,
    cut,
    groups_at,
    in_order,
    merge_means,
)
from tritone.diarization.options import SpeakerOptions
from tritone.diarization.spectral import spectral

Floats = npt.NDArray[np.float32]

# Points that are clustered at once; matrices have their square. More windows (of 19 minutes; of 8 for spectral
# clustering) are merged with those like them first, so that memory and time do not grow with the recording's square.
MAX_POINTS = {"agglomerative": 1500, "spectral": 600}
SHORT_SHARE = 0.5  # windows shorter than this share of a whole one make no speaker; they get that of the nearest voice
WINDOW_SHARE = 0.8  # of `merge_cosine`: mean cosine down to which windows are merged, whose voices vary more than means
LEAST_WINDOWS = 2  # fewer make no speaker, unless so many speakers are asked for


def label_windows(vectors: Floats, lengths_s: Doubles, options: SpeakerOptions) -> Labels:
    """Tell the speakers of windows apart.

    Args:
        vectors: (windows, dim), embeddings in the order of time; zeros where there is none.
        lengths_s: (windows,), in seconds.

    Returns:
        (windows,), numbered by their first windows; windows without an embedding have the label of the one before, or
        else of the next one.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    audible = np.flatnonzero(lengths > 0)
    if not len(audible):
        return np.zeros(len(vectors), dtype=np.int64)
    units = vectors[audible] / lengths[audible, None]
    whole = lengths_s[audible] >= SHORT_SHARE * options.window_s
    if not whole.any():
        whole[:] = True
    labels = nearest(units, centres_of(units[whole], options))
    before = np.searchsorted(audible, np.arange(len(vectors)), side="right") - 1
    return in_order(labels[np.maximum(before, 0)])


def nearest(units: Doubles, centres: Doubles) -> Labels:
    """For each of the unit vectors (windows, dim) the centre (centres, dim) with the greatest cosine."""
    lengths = np.linalg.norm(centres, axis=1, keepdims=True)
    result: Labels = np.argmax(units @ (centres / np.maximum(lengths, 1e-12)).T, axis=1)
    return result


def centres_of(units: Doubles, options: SpeakerOptions, apart: Pairs = NO_PAIRS) -> Doubles:
    """The sums of the windows of each speaker, (speakers, dim).

    Args:
        units: (windows, dim), of length 1.
        apart: (pairs, 2), windows of different speakers.
    """
    least, most = options.bounds
    points = _condensed(Points.of(units, apart), MAX_POINTS[options.method])
    if options.method == "spectral":
        cosines = points.cosines()
        cosines[points.apart[:, 0], points.apart[:, 1]] = cosines[points.apart[:, 1], points.apart[:, 0]] = -1.0
        return points.merged(spectral(cosines, least=least, most=most)).sums
    merges = agglomerate(points)
    groups = max(least, groups_at(merges, len(points), WINDOW_SHARE * options.merge_cosine))
    points = points.merged(cut(merges, len(points), min(len(points), groups)))
    points = merge_means(points, cosine=options.merge_cosine, least=least, most=len(points))
    largest = np.argsort(-points.counts, kind="stable")
    kept = np.sort(largest[(points.counts[largest] >= LEAST_WINDOWS) | (np.arange(len(largest)) < least)])
    return merge_means(points.taken(kept), cosine=options.merge_cosine, least=least, most=most).sums


def _condensed(points: Points, most: int) -> Points:
    """Points that stand for the windows, at most so many.

    Windows that follow each other are merged in blocks, down to half as many, until all fit.
    """
    while len(points) > most:
        labels: list[Labels] = []
        for start in range(0, len(points), most):
            block = points.taken(np.arange(start, min(start + most, len(points))))
            halved = cut(agglomerate(block), len(block), (len(block) + 1) // 2)
            labels.append(halved + (labels[-1].max() + 1 if labels else 0))
        merged = points.merged(np.concatenate(labels))
        # Where all that is left must stay apart, memory comes first.
        points = merged if len(merged) < len(points) else replace(points, apart=NO_PAIRS)
    return points
