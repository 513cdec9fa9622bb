"""Each item its result or its error, whoever fails."""

import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from tritone.errors import AudioError, OperatorError, TritoneError
from tritone.pipelines.isolation import isolated, prepared, values, with_options


def reciprocals(numbers: Sequence[int]) -> list[float]:
    return [1 / number for number in numbers]


def test_what_breaks_a_batch_breaks_only_itself() -> None:
    calls: list[int] = []

    def compute(numbers: Sequence[int]) -> list[float]:
        calls.append(len(numbers))
        return reciprocals(numbers)

    first, second, third = isolated(compute, [1, 0, 4])
    assert (first, third) == (1.0, 0.25)
    assert isinstance(second, OperatorError)
    assert str(second) == "ZeroDivisionError: division by zero"
    assert calls == [3, 1, 1, 1], "together first, then each alone"
    assert isolated(compute, []) == []


def test_an_item_that_is_refused_is_not_computed() -> None:
    def positive(number: int) -> int:
        if number < 0:
            raise AudioError(f"{number} is below 0")
        return number

    found = prepared(positive, reciprocals, [2, -1, 4])
    assert [str(each) for each in found] == ["0.5", "-1 is below 0", "0.25"]
    with pytest.raises(AudioError, match=r"^input 1: -1 is below 0"):
        values(found)


def test_as_many_options_as_items_are_needed() -> None:
    assert with_options(["a", "b"], None) == [("a", None), ("b", None)]
    with pytest.raises(ValueError, match="2 waveforms need as many options, got 1"):
        with_options(["a", "b"], [None])


def test_an_error_that_is_kept_keeps_nothing_of_its_batch_alive() -> None:
    def compute(blocks: Sequence[np.ndarray]) -> list[float]:
        local = blocks[0]
        raise MemoryError(f"no room for {local.size}")

    def run() -> tuple[list[float | TritoneError], weakref.ref[np.ndarray]]:
        block = np.zeros(9)
        return isolated(compute, [block]), weakref.ref(block)

    gc.disable()
    try:
        (error,), block = run()
        assert str(error) == "MemoryError: no room for 9"
        assert block() is None, "without the garbage collector"
    finally:
        gc.enable()
