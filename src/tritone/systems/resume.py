"""What is left of bulk work that was interrupted, in the batches that it would have had without.

what is known of each recording  ->  recordings to compute, in whole batches, and those to try again
"""

from collections.abc import Sequence


def left_to_do(done: Sequence[bool | None], batch: int) -> tuple[list[int], list[int]]:
    """The indices of recordings that an earlier run left.

    A batch that was cut off is computed as a whole, because the last bits of a result depend on its neighbours.

    Args:
        done: of each recording whether it has a result (True), failed (False), or nothing is known (None).
        batch: recordings that a model gets together, as of `System.batch`.

    Returns:
        Those of all batches where something was never computed; and those that failed in others.
    """
    cut: list[int] = []
    failed: list[int] = []
    for start in range(0, len(done), batch):
        places = range(start, min(start + batch, len(done)))
        if any(done[place] is None for place in places):
            cut += places
        else:
            failed += [place for place in places if done[place] is False]
    return cut, failed
