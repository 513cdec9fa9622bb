"""What every system for speaker embeddings has in common: audio files in, one vector for each of them.

system.prepare(); system.dim          ->  values of a vector
system.embed(paths)                   ->  EmbeddingOutcome, ...   in any order, each as soon as it is there
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tritone.errors import TritoneError

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class EmbeddingOutcome:
    """What became of one file: `index` is its place among the paths. Either `embedding` or `error` is there.

    `embedding` is (dim,), as the network gives it: not normalised. `latency_s`: from handing the audio over to having
    the vector; in this process, of the whole pile that it was computed with.
    """

    index: int
    path: str
    embedding: Vector | None = None
    error: TritoneError | None = None
    audio_s: float = 0.0
    latency_s: float = 0.0


EmbeddingOutcomes = Generator[EmbeddingOutcome, None, None]


class EmbeddingSystem(Protocol):
    """Something that turns recordings into vectors."""

    name: str

    @property
    def dim(self) -> int | None:
        """Values of a vector. A server does not always tell; then it is None until the first vector is there."""
        ...

    def describe(self) -> Mapping[str, str]:
        """What decides the vectors: kind, model, options. Equal descriptions may continue each other's work."""
        ...

    def prepare(self, *, warm_up: bool = False) -> None:
        """Find or open the model, so that what is wrong with it is said before any file is read.

        Args:
            warm_up: also run a little silence, so that the first file is not slower than the others.

        Raises:
            TritoneError: there is no such model, or it cannot be used.
            ValueError: an option that makes no sense, such as an unknown device.
        """
        ...

    def embed(self, paths: Iterable[str]) -> EmbeddingOutcomes:
        """Embed files. A file that fails has its error in its outcome and does not disturb the others.

        Files are read when there is room for them, so `paths` may be of any length. Leaving the loop early gives up
        what is in flight.
        """
        ...

    def close(self) -> None:
        """Free what the system holds; closing twice is fine."""
        ...
