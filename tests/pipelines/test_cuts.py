"""Cuts of a row into calls cost as little as the cheapest of all ways to cut it."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tritone.pipelines.graphs.cuts import cheapest_cuts


@given(st.lists(st.dictionaries(st.integers(1, 4), st.integers(0, 20)), max_size=7))
def test_no_way_to_cut_costs_less(costs: list[dict[int, int]]) -> None:
    """`costs`: of calls of so many things, by the first of them."""
    count = len(costs)
    calls = [
        {min(count, first + size): cost for size, cost in {1: 9, **each}.items()} for first, each in enumerate(costs)
    ]

    def ways(first: int) -> Iterator[int]:
        if first == count:
            yield 0
        for end, cost in calls[first].items() if first < count else ():
            yield from (cost + rest for rest in ways(end))

    found = cheapest_cuts(count, lambda first: [(cost, end, cost) for end, cost in calls[first].items()])
    assert [first for first, _, _ in found] + [count] == [0, *(end for _, end, _ in found)]
    assert sum(cost for _, _, cost in found) == min(ways(0))


def test_of_calls_that_cost_the_same_the_first_is_taken() -> None:
    assert cheapest_cuts(2, lambda first: [(1, first + 1, "a"), (1, first + 1, "b")]) == [(0, 1, "a"), (1, 2, "a")]
