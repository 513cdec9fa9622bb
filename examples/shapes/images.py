"""Images of a horizontal bar, a vertical bar or a cross in noise, for both frameworks: numpy alone.

python examples/shapes/images.py images.npz     64 of them as the input `image`, channels first
"""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

LABELS = ("horizontal", "vertical", "cross")
SIZE = 16


def draw(count: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw `count` images (count, 16, 16, 1) in about [0, 1], and the places of their labels (count,)."""
    rng: Any = np.random.default_rng(seed)
    labels = rng.integers(len(LABELS), size=count)
    images = rng.normal(0.2, 0.15, (count, SIZE, SIZE, 1))
    for image, label in zip(images, labels, strict=True):
        row, column = rng.integers(2, SIZE - 3, size=2)
        if label in (0, 2):
            image[row : row + 2, 2:-2] += 0.6
        if label in (1, 2):
            image[2:-2, column : column + 2] += 0.6
    return images.astype(np.float32), labels.astype(np.int64)


if __name__ == "__main__":
    drawn, _ = draw(64, seed=1)
    np.savez(sys.argv[1], image=drawn.transpose(0, 3, 1, 2))
