"""Tensors to waveforms, without a server."""

import numpy as np
import pytest

from tritone.backend.requests import cut_rows
from tritone.errors import AudioError


def test_rows_are_cut_to_their_lengths_without_copying() -> None:
    block = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = cut_rows(block, np.array([[4], [0], [2]], np.int32))
    assert [row.tolist() for row in rows] == [[0, 1, 2, 3], [], [8, 9]]
    assert all(np.shares_memory(row, block) for row in rows if row.size)


def test_lengths_may_come_without_their_second_axis() -> None:
    (row,) = cut_rows(np.ones((1, 3), np.float32), np.array([2], np.int32))
    assert row.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("wav", "lens", "told"),
    [
        (np.zeros((1, 3), np.float64), [[3]], r"WAV must be float32 .* got float64"),
        (np.zeros(3, np.float32), [[3]], r"shape \(3,\)"),
        (np.zeros((2, 3), np.float32), [[3]], r"WAV_LENS must be int32 of shape \(2, 1\)"),
        (np.zeros((2, 3), np.float32), [[3], [4]], r"WAV_LENS is 4 in row 1, but WAV has 3 samples a row.*send 0 to 3"),
        (np.zeros((1, 3), np.float32), [[-5]], r"WAV_LENS is -5, but"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(wav: np.ndarray, lens: list[list[int]], told: str) -> None:
    with pytest.raises(AudioError, match=told):
        cut_rows(wav, np.array(lens, np.int32))
