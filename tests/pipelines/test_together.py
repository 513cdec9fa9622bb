"""Outputs of calls that are searched together are those of each utterance, and take little more memory."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tritone.pipelines.searching.together import together


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=8), st.integers(0, 5))
def test_every_utterance_keeps_its_frames_and_no_group_is_mostly_padding(lengths: list[list[int]], more: int) -> None:
    """`lengths`: of the utterances of each call, which has `more` frames than the longest."""
    rng = np.random.default_rng(len(lengths))
    calls: list[dict[str, Any]] = [
        {
            "encoder_out": rng.normal(size=(len(each), max(each) + more, 3)).astype(np.float32),
            "num_frames": np.array(each),
        }
        for each in lengths
    ]
    rows = [(call["encoder_out"][row], count) for call in calls for row, count in enumerate(call["num_frames"])]
    seen: list[int] = []
    for members, outputs in together(calls):
        seen += members
        counts = outputs["num_frames"]
        for member, found, count in zip(members, outputs["encoder_out"], counts, strict=True):
            given_frames, given_count = rows[member]
            assert count == given_count
            assert np.array_equal(found[:count], given_frames[:count])
        taken = outputs["encoder_out"].shape[0] * outputs["encoder_out"].shape[1]
        assert len(members) == 1 or 3 * counts.sum() >= 2 * taken
    assert sorted(seen) == list(range(len(rows)))


def test_a_long_utterance_does_not_make_others_long() -> None:
    calls = [
        {"encoder_out": np.ones((1, frames, 2), np.float32), "num_frames": np.array([frames])}
        for frames in (30, 20_000, 40, 25)
    ]
    groups = [(members, outputs["encoder_out"].shape) for members, outputs in together(calls)]
    assert groups == [((1,), (1, 20_000, 2)), ((2, 0, 3), (3, 40, 2))]
