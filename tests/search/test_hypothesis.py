"""Rows of tokens kept as arrays are the same as lists of tokens."""

import pickle

import numpy as np
import pytest

from tritone.search.hypothesis import Token, TokenRow, ids_of, moved_by

TOKENS = [Token(7, 0, 2, 0.5), Token(3, 4, 5, 1.0), Token(7, 6, 9, 0.25)]


def row(tokens: list[Token] = TOKENS) -> TokenRow:
    ids, starts, ends, confidences = (np.array(column) for column in zip(*tokens, strict=True))
    return TokenRow(ids, starts, ends, confidences)


@pytest.mark.parametrize("tokens", [TOKENS, row(), [], row()[:0]])
def test_tokens_are_moved_later(tokens):
    moved = moved_by(tokens, 10)
    assert [(each.id, each.confidence) for each in moved] == [(each.id, each.confidence) for each in tokens]
    assert [each.start_frame for each in moved] == [each.start_frame + 10 for each in tokens]
    assert [each.end_frame for each in moved] == [each.end_frame + 10 for each in tokens]
    assert all(type(field) in (int, float) for each in moved for field in each)


def test_a_row_reads_as_its_tokens():
    assert list(row()) == TOKENS
    assert len(row()) == 3
    assert row()[1] == TOKENS[1]
    assert row()[-1] == TOKENS[-1]
    assert [type(field) for field in row()[0]] == [int, int, int, float]
    assert list(reversed(row())) == TOKENS[::-1]
    assert TOKENS[1] in row()
    assert row().index(TOKENS[2]) == 2
    with pytest.raises(IndexError):
        row()[3]


def test_a_slice_of_a_row_is_a_row():
    assert isinstance(row()[1:], TokenRow)
    assert row()[1:] == TOKENS[1:]
    assert row()[3:] == []
    assert not row()[3:]


def test_a_row_equals_any_sequence_of_its_tokens():
    assert row() == row() == TOKENS == row()
    assert row() == tuple(TOKENS)
    assert row() != TOKENS[:2]
    assert row() != [*TOKENS[:2], Token(7, 6, 9, 0.5)]
    assert row() != 3
    assert pickle.loads(pickle.dumps(row())) == TOKENS
    with pytest.raises(TypeError, match="unhashable"):
        hash(row())


def test_ids_are_plain_integers_of_rows_and_lists():
    assert ids_of(row()) == ids_of(TOKENS) == [7, 3, 7]
    assert {type(id) for id in ids_of(row())} == {int}
    assert ids_of(()) == []
