"""Agglomerative clustering of voices by the mean cosine between their embeddings.

    points = Points.of(unit vectors)
    merges = agglomerate(points)              ->  (points - 1) merges, the most similar first
    cut(merges, len(points), 2)               ->  labels (points,)
    points.merged(labels)                     ->  a point for each label

A point is the sum of unit vectors and their number. The mean cosine of two groups is the product of their sums by both
numbers, so points that stand for many windows are clustered as these windows would be (average linkage, UPGMA).
Points that are known to be of different speakers are never merged, nor are the groups that they are in (cannot-link,
Davidson and Ravi 2005, "Agglomerative hierarchical clustering with constraints").
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Pairs = npt.NDArray[np.int64]
NO_PAIRS: Pairs = np.zeros((0, 2), np.int64)


@dataclass(frozen=True)
class Points:
    """Groups of windows: their sums (points, dim) of unit vectors, how many each has (points,), and which two are of
    different speakers, (pairs, 2)."""

    sums: Doubles
    counts: Doubles
    apart: Pairs = field(default_factory=lambda: NO_PAIRS)

    @classmethod
    def of(cls, units: Doubles, apart: Pairs = NO_PAIRS) -> "Points":
        """A point for each of the unit vectors (points, dim)."""
        return cls(units, np.ones(len(units)), apart)

    def __len__(self) -> int:
        return len(self.sums)

    def merged(self, labels: Labels) -> "Points":
        """One point for each label (points,)."""
        apart = np.unique(np.sort(labels[self.apart], axis=1), axis=0)
        counts = np.bincount(labels, weights=self.counts).astype(np.float64)
        return Points(grouped(self.sums, labels), counts, apart[apart[:, 0] != apart[:, 1]])

    def taken(self, indices: Labels) -> "Points":
        """These points alone, given in ascending order."""
        return Points(self.sums[indices], self.counts[indices], pairs_among(self.apart, indices, len(self)))

    def cosines(self) -> Doubles:
        """The mean cosine between the windows of each two points, (points, points)."""
        means = self.sums / self.counts[:, None]
        found: Doubles = np.matmul(means, means.T)
        return found


@dataclass(frozen=True)
class Merge:
    """Two groups that become one, each named by a point in it, and the mean cosine between them."""

    first: int
    second: int
    similarity: float


def pairs_among(pairs: Pairs, indices: Labels, points: int) -> Pairs:
    """Pairs of so many points as pairs of those with these indices; pairs of others are left out."""
    places = np.full(points, -1)
    places[indices] = np.arange(len(indices))
    found: Pairs = places[pairs]
    return found[(found >= 0).all(axis=1)]


def agglomerate(points: Points) -> list[Merge]:
    """All merges of average linkage, the most similar first; fewer than points - 1 where some must stay apart.

    Chains of nearest neighbours: O(points²) time and one matrix of points². Source: Müllner 2011, arXiv:1109.2378,
    figure 3.
    """
    near = forbidden(points.cosines(), points.apart)
    sizes = points.counts.astype(np.float64).copy()
    left = np.ones(len(points), dtype=bool)  # those that may have somebody to be merged with
    merges: list[Merge] = []
    chain: list[int] = []
    while chain or left.any():
        if not chain:
            chain.append(int(np.argmax(left)))
        here = chain[-1]
        there = int(np.argmax(near[here]))
        if near[here, there] == -np.inf:  # and so nobody else in a chain has it as neighbour
            left[here] = False
            chain.pop()
            continue
        if len(chain) == 1 or near[here, chain[-2]] < near[here, there]:  # of equals the one before: no circles
            chain.append(there)
            continue
        there = chain[-2]
        chain = chain[:-2]
        kept, gone = min(here, there), max(here, there)
        merges.append(Merge(kept, gone, float(near[here, there])))
        joined = (sizes[kept] * near[kept] + sizes[gone] * near[gone]) / (sizes[kept] + sizes[gone])
        sizes[kept] += sizes[gone]
        left[gone] = False
        near[kept], near[:, kept] = joined, joined
        near[gone], near[:, gone] = -np.inf, -np.inf
        near[kept, kept] = -np.inf
    return sorted(merges, key=lambda each: -each.similarity)


def forbidden(near: Doubles, apart: Pairs) -> Doubles:
    """Similarities (points, points) in which nobody is near itself, nor whom it must stay apart from; changed there."""
    np.fill_diagonal(near, -np.inf)
    near[apart[:, 0], apart[:, 1]] = near[apart[:, 1], apart[:, 0]] = -np.inf
    return near


def cut(merges: Sequence[Merge], points: int, groups: int) -> Labels:
    """The labels (points,) when so many groups are left, or all were merged, numbered by their first points."""
    above = list(range(points))

    def top(point: int) -> int:
        while above[point] != point:
            above[point] = above[above[point]]
            point = above[point]
        return point

    for each in merges[: points - groups]:
        first, second = sorted((top(each.first), top(each.second)))
        above[second] = first
    return in_order(np.array([top(point) for point in range(points)]))


def groups_at(merges: Sequence[Merge], points: int, threshold: float) -> int:
    """How many groups are left when only those with a mean cosine of `threshold` or more were merged."""
    return points - sum(each.similarity >= threshold for each in merges)


def merge_means(points: Points, *, cosine: float, least: int, most: int) -> Points:
    """Merge the two groups whose means are most alike, again and again.

    Args:
        cosine: of means, down to which groups are merged.
        least, most: groups that are left, in any case: even some that should stay apart are merged down to `most`.
    """
    while len(points) > least:
        units = points.sums / np.maximum(np.linalg.norm(points.sums, axis=1, keepdims=True), 1e-12)
        near = forbidden(units @ units.T, points.apart)
        if len(points) > most and near.max() == -np.inf:
            near = forbidden(units @ units.T, NO_PAIRS)
        first, second = sorted(divmod(int(np.argmax(near)), len(points)))
        if near[first, second] < cosine and len(points) <= most:
            break
        labels = np.arange(len(points))
        labels[second] = first
        points = points.merged(in_order(labels))
    return points


def grouped(sums: Doubles, labels: Labels) -> Doubles:
    """The sums of the points of each label, (labels, dim)."""
    result = np.zeros((int(labels.max(initial=-1)) + 1, sums.shape[1]))
    np.add.at(result, labels, sums)
    return result


def in_order(labels: Labels) -> Labels:
    """The same groups, numbered by their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    ranks = np.empty(len(first), dtype=np.int64)
    ranks[np.argsort(first, kind="stable")] = np.arange(len(first))
    result: Labels = ranks[inverse]
    return result
