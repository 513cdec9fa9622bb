"""Outputs of calls that are searched together are those of each call, and take little more memory."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tritone.pipelines.searching.together import MOST_PADDED, together


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), max_size=8))
def test_every_call_keeps_its_rows_and_no_group_is_mostly_padding(sizes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(len(sizes))
    calls: list[dict[str, Any]] = [
        {
            "encoder_out": rng.normal(size=(rows, frames, 3)).astype(np.float32),
            "num_frames": rng.integers(1, frames + 1, rows),
        }
        for rows, frames in sizes
    ]
    seen: list[int] = []
    for members, outputs in together(calls):
        seen += members
        start = 0
        for member in members:
            call = calls[member]
            rows, frames = sizes[member]
            found = outputs["encoder_out"][start : start + rows]
            assert np.array_equal(found[:, :frames], call["encoder_out"])
            assert not found[:, frames:].any()
            assert np.array_equal(outputs["num_frames"][start : start + rows], call["num_frames"])
            start += rows
        assert len(outputs["encoder_out"]) == len(outputs["num_frames"]) == start
        frames_given = sum(rows * frames for rows, frames in (sizes[member] for member in members))
        rows, frames = outputs["encoder_out"].shape[:2]
        assert rows * frames <= MOST_PADDED * frames_given
    assert sorted(seen) == list(range(len(calls)))


def test_a_long_utterance_does_not_make_others_long() -> None:
    calls = [{"encoder_out": np.ones((1, frames, 2), np.float32)} for frames in (30, 20_000, 40, 25)]
    groups = [(members, outputs["encoder_out"].shape) for members, outputs in together(calls)]
    assert groups == [([1], (1, 20_000, 2)), ([2, 0, 3], (3, 40, 2))]
