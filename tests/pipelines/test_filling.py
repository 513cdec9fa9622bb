"""Blocks of audio: every way to fill one gives the same numbers."""

from collections.abc import Sequence

import numpy as np
import pytest

from tritone.audio.waveform import Samples, widened
from tritone.pipelines.graphs import filling
from tritone.pipelines.graphs.filling import fill_rows
from tritone.runtime.graph import Array

LENGTHS = (0, 1, 399, 400, 5000)


def waveforms(kinds: str) -> list[Samples]:
    """As many as LENGTHS, of float32 ("f") and int16 ("i") in turn, some of them not contiguous."""
    rng = np.random.default_rng(0)
    made: list[Samples] = []
    for index, length in enumerate(LENGTHS):
        numbers = rng.integers(-32768, 32768, 2 * length).astype(np.int16)[::2]
        made.append(numbers if kinds[index % len(kinds)] == "i" else widened(numbers))
    return made


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("kinds", "dtype"), [("f", np.float32), ("i", np.float32), ("fi", np.float32), ("i", np.int16)]
)
def test_a_block_has_the_audio_of_each_row_and_zeros_behind_it(
    kinds: str, dtype: type, shared: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(filling, "SHARED_BYTES", 0 if shared else 10**9)
    given = waveforms(kinds)
    block = np.full((len(given) + 2, 5001), 7, dtype)
    assert fill_rows(block, given) == []
    assert not block[len(given) :].any()
    for row, waveform in zip(block, given, strict=False):
        np.testing.assert_array_equal(row[: len(waveform)], waveform.astype(np.float64) / scale_of(waveform, dtype))
        assert not row[len(waveform) :].any()


def test_what_fills_large_blocks_is_compiled_once():
    filling.prepare()
    from tritone.pipelines.graphs.filling_kernel import fill

    signatures = list(fill.signatures)
    filling._fill_compiled(np.zeros((3, 5), np.int16), [np.zeros(2, np.int16)], 2)
    assert list(fill.signatures) == signatures


@pytest.mark.parametrize("is_loaded", [False, True])
def test_compiled_code_that_is_loaded_fills_smaller_blocks_of_floats_too(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
):
    filling.prepare()
    monkeypatch.setattr(filling, "_is_loaded", is_loaded)
    monkeypatch.setattr(filling, "COMPILED_BYTES", 0)
    threads = []
    compiled = filling._fill_compiled

    def fill(block: Array, waveforms: Sequence[Samples], count: int) -> list[int]:
        threads.append(count)
        return compiled(block, waveforms, count)

    monkeypatch.setattr(filling, "_fill_compiled", fill)
    given = waveforms("f")
    for dtype in (np.float32, np.int16):
        block = np.full((len(given), 5000), 7, dtype)
        assert fill_rows(block, waveforms("f" if dtype is np.float32 else "i")) == []
        assert [row[len(each) :].any() for row, each in zip(block, given, strict=True)] == [False] * len(given)
    assert threads == [1] * is_loaded


def scale_of(waveform: Samples, dtype: type) -> int:
    return 32768 if waveform.dtype == np.int16 and dtype == np.float32 else 1


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1000.1, -32768.0])
def test_rows_with_samples_that_no_audio_has_are_found(value: float, shared: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(filling, "SHARED_BYTES", 0 if shared else 10**9)
    given = waveforms("fi")
    loud = np.array([1000.0, -1000.0, -0.0], np.float32)
    bad = np.zeros(4999, np.float32)
    bad[4998] = value
    assert fill_rows(np.empty((9, 5000), np.float32), [*given, loud, bad, bad[:4998]]) == [6]


def test_all_16_bit_numbers_are_widened_exactly():
    numbers = np.arange(-32768, 32768).astype(np.int16)
    assert widened(numbers).dtype == np.float32
    np.testing.assert_array_equal(widened(numbers).astype(np.float64) * 32768, numbers)
    wide = widened(numbers)
    assert widened(wide) is wide
