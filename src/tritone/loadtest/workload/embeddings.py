"""Embeddings that were answered: the first of each recording, and how far its later ones are from that.

    (utterance, embedding), ...  ->  Embeddings  ->  the least cosine, embeddings that are all the same

Embeddings of one recording differ a little from batch to batch, because sums are rounded in another order. So they are
compared by their angle, as speakers are.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

ALIKE = 0.999  # cosine from which on two embeddings of a recording count as the same; half precision stays above it
EQUAL = 1e-6  # relative, of single numbers: embeddings of different recordings are never as close


@dataclass
class Embeddings:
    """Each by the number of its utterance: `first` (dim,), and `least`, the smallest cosine of a later one with it.

    One whose cosine is not defined, because it is all zeros, has a cosine of 0 with all but another such one. `dims`:
    every size that was seen.
    """

    first: dict[int, Vector] = field(default_factory=dict)
    least: dict[int, float] = field(default_factory=dict)
    dims: set[int] = field(default_factory=set)

    def add(self, utterance: int, embedding: Vector) -> None:
        """Take the embedding of an answer."""
        self.dims.add(embedding.size)
        first = self.first.setdefault(utterance, embedding)
        if first is not embedding:
            self._compare(utterance, cosine(first, embedding))

    def absorb(self, other: "Embeddings") -> None:
        """Add what another process saw, or what was seen next."""
        for utterance, embedding in other.first.items():
            self.add(utterance, embedding)
        for utterance, least in other.least.items():
            self._compare(utterance, least)

    @property
    def least_cosine(self) -> float | None:
        """The smallest cosine of two embeddings of one recording; None if none was embedded twice."""
        return min(self.least.values(), default=None)

    @property
    def different(self) -> int:
        """How many recordings did not get the same embedding every time."""
        return sum(least < ALIKE for least in self.least.values())

    @property
    def all_equal(self) -> bool:
        """Whether several recordings were embedded, and all to the same numbers."""
        one, *others = self.first.values() or [np.zeros(0, np.float32)]
        size = EQUAL * float(abs(one).max(initial=0.0))
        return bool(others) and all(each.size == one.size and abs(each - one).max() <= size for each in others)

    def _compare(self, utterance: int, least: float) -> None:
        self.least[utterance] = min(least, self.least.get(utterance, 1.0))


def cosine(one: Vector, other: Vector) -> float:
    """The cosine of two vectors; 0 where it is not defined, but 1 of equal ones, and -1 of different sizes."""
    if one.size != other.size:
        return -1.0
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.dot(one, other)) / length if length else float(np.array_equal(one, other))
