"""What is left after an interrupt: whole batches where one was cut off, and what failed."""

import pytest

from tritone.systems.resume import left_to_do

Y, N, U = True, False, None  # has a result, failed, unknown


@pytest.mark.parametrize(
    ("done", "batch", "expected"),
    [
        ([], 4, ([], [])),
        ([U, U, U], 2, ([0, 1, 2], [])),
        ([Y, Y, Y, Y], 2, ([], [])),
        ([Y, Y, Y, U, U, U, U], 2, ([2, 3, 4, 5, 6], [])),  # the batch of 2 and 3 was cut off
        ([Y, N, Y, Y, N, U], 2, ([4, 5], [1])),  # a failure of a whole batch is tried alone
        ([Y, N, U, Y], 1, ([2], [1])),  # a server has no batches
    ],
)
def test_batches_that_were_cut_off_are_done_as_a_whole(
    done: list[bool | None], batch: int, expected: tuple[list[int], list[int]]
):
    assert left_to_do(done, batch) == expected
