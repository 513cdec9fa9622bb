"""Agglomerative clustering of voices by the mean cosine between their embeddings.

    sums, counts = unit vectors and 1 each
    merges = agglomerate(sums, counts)        ->  (points - 1) merges, the most similar first
    cut(merges, 2)                            ->  labels (points,)
    condense(sums, counts)                    ->  half as many points, each of those that are most alike

A point is the sum of unit vectors and their number. The mean cosine of two groups is the product of their sums by both
numbers, so points that stand for many windows are clustered as these windows would be (average linkage, UPGMA).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Merge:
    """Two groups that become one, each named by a point in it, and the mean cosine between them."""

    first: int
    second: int
    similarity: float


def agglomerate(sums: Doubles, counts: Doubles) -> list[Merge]:
    """All merges of average linkage, the most similar first.

    Chains of nearest neighbours: O(points²) time and one matrix of points². Source: Müllner 2011, arXiv:1109.2378,
    figure 3.

    Args:
        sums: (points, dim), of unit vectors.
        counts: (points,), how many.
    """
    points = len(sums)
    near = mean_cosines(sums, counts)
    np.fill_diagonal(near, -np.inf)
    sizes = counts.astype(np.float64).copy()
    alive = np.ones(points, dtype=bool)
    merges: list[Merge] = []
    chain: list[int] = []
    while len(merges) < points - 1:
        if not chain:
            chain.append(int(np.argmax(alive)))
        while True:
            here = chain[-1]
            there = int(np.argmax(near[here]))
            if len(chain) > 1 and near[here, chain[-2]] >= near[here, there]:  # of equals the one before: no circles
                there = chain[-2]
                break
            chain.append(there)
        chain = chain[:-2]
        kept, gone = min(here, there), max(here, there)
        merges.append(Merge(kept, gone, float(near[here, there])))
        joined = (sizes[kept] * near[kept] + sizes[gone] * near[gone]) / (sizes[kept] + sizes[gone])
        sizes[kept] += sizes[gone]
        alive[gone] = False
        near[kept], near[:, kept] = joined, joined
        near[gone], near[:, gone] = -np.inf, -np.inf
        near[kept, kept] = -np.inf
    return sorted(merges, key=lambda each: -each.similarity)


def mean_cosines(sums: Doubles, counts: Doubles) -> Doubles:
    """The mean cosine between the windows of each two points, (points, points)."""
    means = sums / counts[:, None]
    cosines: Doubles = np.matmul(means, means.T)
    return cosines


def cut(merges: Sequence[Merge], groups: int) -> Labels:
    """The labels (points,) when so many groups are left, numbered by their first points."""
    points = len(merges) + 1
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


def groups_at(merges: Sequence[Merge], threshold: float) -> int:
    """How many groups are left when only those with a mean cosine of `threshold` or more were merged."""
    return len(merges) + 1 - sum(each.similarity >= threshold for each in merges)


def merge_means(sums: Doubles, counts: Doubles, *, cosine: float, least: int, most: int) -> tuple[Doubles, Doubles]:
    """Merge the two groups whose means are most alike, again and again.

    Args:
        sums, counts: of groups, as of `agglomerate`.
        cosine: of means, down to which groups are merged.
        least, most: groups that are left, in any case.

    Returns:
        sums and counts of the groups that are left.
    """
    while len(sums) > least:
        units = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        near = units @ units.T
        np.fill_diagonal(near, -np.inf)
        first, second = sorted(divmod(int(np.argmax(near)), len(sums)))
        if near[first, second] < cosine and len(sums) <= most:
            break
        sums, counts = sums.copy(), counts.copy()
        sums[first] += sums[second]
        counts[first] += counts[second]
        sums, counts = np.delete(sums, second, axis=0), np.delete(counts, second)
    return sums, counts


def condense(sums: Doubles, counts: Doubles) -> tuple[Doubles, Doubles]:
    """Half as many points, by merging those that are most alike: sums and counts."""
    labels = cut(agglomerate(sums, counts), (len(sums) + 1) // 2)
    return grouped(sums, labels), counted(counts, labels)


def grouped(sums: Doubles, labels: Labels) -> Doubles:
    """The sums of the points of each label, (labels, dim)."""
    result = np.zeros((int(labels.max(initial=-1)) + 1, sums.shape[1]))
    np.add.at(result, labels, sums)
    return result


def counted(counts: Doubles, labels: Labels) -> Doubles:
    """The counts of the points of each label, (labels,)."""
    return np.bincount(labels, weights=counts).astype(np.float64)


def in_order(labels: Labels) -> Labels:
    """The same groups, numbered by their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    ranks = np.empty(len(first), dtype=np.int64)
    ranks[np.argsort(first, kind="stable")] = np.arange(len(first))
    result: Labels = ranks[inverse]
    return result
