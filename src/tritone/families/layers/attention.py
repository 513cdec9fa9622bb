"""What attention of every family shares."""

from torch import Tensor

# Added to scores that do not count: e^-30000 is 0, and float16 holds the sum. It is finite, since a query that sees no
# key, which only padding can be, must not be NaN.
HIDDEN = -3e4


def shifted(scores: Tensor, keys: int) -> Tensor:
    """Scores by distance -> scores by key.

    Args:
        scores: (batch, heads, queries, distances), where column r stands for the distance (keys - 1) - r from the key
            to the query at the *end* of the keys; there are keys + queries distances, so the last is -queries.
        keys: number of keys, the queries being the last of them; more, if there are as many more distances.

    Returns:
        (batch, heads, queries, keys): row i, column j is column (queries - 1) - i + j of row i.
    """
    batch, heads, queries = scores.shape[0], scores.shape[1], scores.shape[2]
    # Read with rows of one element less, everything after the first (queries - 1) elements lies where it belongs.
    flat = scores.flatten(2)[:, :, queries - 1 : -1]
    return flat.reshape(batch, heads, queries, -1)[:, :, :, :keys]


def extra_distances(keys: int) -> int:
    """How many more keys make rows of scores whole blocks for attention kernels, which read 8 at once."""
    return -keys % 8
