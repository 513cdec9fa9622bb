"""The last step: vectors of tokens to one of each sentence."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray


def pool(
    states: Annotated[NDArray[np.float32], ("tokens", 384)],
    attention_mask: Annotated[NDArray[np.int64], ("tokens",)],
) -> Annotated[NDArray[np.float32], (384,)]:
    """The mean over the tokens of each sentence, at length 1."""
    weights = attention_mask[:, :, None].astype(np.float32)
    means = (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)  # no token at all is 0, as in warm-up
    embeddings: NDArray[np.float32] = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    return embeddings
