"""Arrays of strangers: what numpy writes is read, and whatever else has its ending is refused without harm."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tritone.bundle.npy import MAX_VECTOR_BYTES, read_array, read_vector

NUMBERS = st.sampled_from(["<f4", ">f4", "<f8", "<f2", "<i4", "|u1"])


@given(arrays(NUMBERS, array_shapes(max_dims=3, min_side=0)), st.booleans())
def test_what_numpy_saves_comes_back(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, by_columns: bool):
    path = tmp_path_factory.getbasetemp() / "array.npy"
    np.save(path, np.asfortranarray(array) if by_columns else array)
    found = read_array(path, 1 << 20)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (4398046511104,)}") + b"1234", "cut off or damaged"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-5,)}") + b"1234", "cut off or damaged"),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"cos\nsystem\n.", "not numbers"),
        (header("{'descr': '<f4', 'fortran_order'"), "no array that numpy has saved"),
        (header("((((" * 60), "no array that numpy has saved"),
        (b"PK\x03\x04" + bytes(60), "no array that numpy has saved"),
        (b"\x93NUMPY\x09\x00" + bytes(60), "no array that numpy has saved"),
        (b"", "no array that numpy has saved"),
        (bytes(MAX_VECTOR_BYTES + 1), "more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_no_array_is_refused_by_its_first_bytes(tmp_path: Path, content: bytes, complaint: str):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        read_vector(tmp_path / "a.npy")


@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), np.zeros(0), np.array([1.0, np.nan]), np.array([1e300])])
def test_a_vector_is_one_row_of_numbers_that_float32_can_hold(tmp_path: Path, wrong: np.ndarray):
    np.save(tmp_path / "a.npy", wrong)
    with pytest.raises(ValueError, match=r"not one vector|not finite"):
        read_vector(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([[1.5, -2.0]]))
    np.testing.assert_array_equal(read_vector(tmp_path / "a.npy"), np.array([1.5, -2.0], np.float32))
