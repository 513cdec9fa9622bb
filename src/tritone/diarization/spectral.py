"""Spectral clustering of voices, with the number of speakers found by the largest gap between eigenvalues.

    spectral(cosines, least=1, most=8)  ->  labels (points,)

Each point is tied to its p most similar ones. Of the graphs for several p, that whose gap is largest in proportion to p
decides, and its number of speakers. Source: Park et al. 2020, "Auto-tuning spectral clustering for speaker diarization
using normalized maximum eigengap", IEEE SPL 27 (arXiv:2003.02405).
"""

import numpy as np

from tritone.diarization.clustering import Doubles, Labels, in_order

LARGEST_SHARE = 0.3  # of the points that one is tied to, at most
LEAST_NEIGHBOURS = 5  # with fewer, graphs fall into more parts than there are speakers
GRAPHS = 16  # values of p that are tried
ROUNDS = 10  # starts of k-means, of which the best is taken
STEPS = 100  # of one start


def spectral(cosines: Doubles, *, least: int, most: int) -> Labels:
    """Label points by the eigenvectors of their graph.

    Args:
        cosines: (points, points), symmetric.
        least, most: bounds of the number of speakers; points may be fewer.

    Returns:
        (points,), numbered by the first point of each speaker.
    """
    points = len(cosines)
    least, most = min(least, points), min(most, points)
    if most == 1 or points < 3:
        return np.arange(points) if least == points else np.zeros(points, dtype=np.int64)
    smallest = min(LEAST_NEIGHBOURS, points - 1)
    largest = max(smallest, min(points - 1, round(LARGEST_SHARE * points)))
    found: tuple[float, int, Doubles] | None = None
    for neighbours in np.unique(np.geomspace(smallest, largest, GRAPHS).round().astype(int)).tolist():
        laplacian = _laplacian(cosines, neighbours)
        values = np.linalg.eigvalsh(laplacian)
        speakers, gap = _widest_gap(values, least, most)
        ratio = neighbours / points / max(gap / max(values[-1], 1e-10), 1e-10)
        if found is None or ratio < found[0]:
            found = ratio, speakers, laplacian
    assert found is not None
    _, speakers, laplacian = found
    if speakers == 1:
        return np.zeros(points, dtype=np.int64)
    _, vectors = np.linalg.eigh(laplacian)
    return in_order(_k_means(vectors[:, :speakers], speakers))


def _widest_gap(values: Doubles, least: int, most: int) -> tuple[int, float]:
    """The number of speakers with the largest gap behind it, and that gap."""
    gaps = np.diff(np.append(values[: most + 1], [values[-1]] if most == len(values) else []))[least - 1 : most]
    best = int(np.argmax(gaps))
    return least + best, float(gaps[best])


def _laplacian(cosines: Doubles, neighbours: int) -> Doubles:
    """The unnormalised Laplacian of the graph in which points are tied to so many others, each way by a half."""
    points = len(cosines)
    apart = cosines.copy()
    np.fill_diagonal(apart, -np.inf)
    nearest = np.argpartition(-apart, neighbours - 1, axis=1)[:, :neighbours]
    tied = np.zeros((points, points))
    tied[np.arange(points)[:, None], nearest] = 1.0
    tied = (tied + tied.T) / 2
    result: Doubles = np.diag(tied.sum(axis=1)) - tied
    return result


def _k_means(points: Doubles, groups: int) -> Labels:
    """Lloyd's k-means from several starts of k-means++, always the same ones; the labels with the least squares."""
    generator = np.random.default_rng(0)
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for _ in range(ROUNDS):
        centres = _starts(points, groups, generator)
        labels = np.full(len(points), -1)
        for _ in range(STEPS):
            away = _squares(points, centres)
            now = away.argmin(axis=1)
            if (now == labels).all():
                break
            labels = now
            for group in range(groups):
                own = labels == group
                centres[group] = points[own].mean(axis=0) if own.any() else points[away.min(axis=1).argmax()]
        total = float(_squares(points, centres).min(axis=1).sum())
        if total < least:
            best, least = labels, total
    return best


def _starts(points: Doubles, groups: int, generator: np.random.Generator) -> Doubles:
    chosen = [int(generator.integers(len(points)))]
    while len(chosen) < groups:
        away = _squares(points, points[chosen]).min(axis=1)
        total = away.sum()
        shares = away / total if total > 0 else None
        chosen.append(int(generator.choice(len(points), p=shares)))
    return points[chosen].copy()


def _squares(points: Doubles, centres: Doubles) -> Doubles:
    """Squared distances (points, centres)."""
    result: Doubles = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
    return result
