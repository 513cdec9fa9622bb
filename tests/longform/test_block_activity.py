"""Voice activity block by block: what a model finds in a whole recording, whatever the blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.activity import SpeechActivity, SpeechSegment
from tritone.longform import BlockActivity

RATE = 100  # Hz


def loud(samples: np.ndarray) -> SpeechActivity:
    """A detector that hears speech where samples are 1."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], samples > 0.5, [0]])))
    segments = tuple(SpeechSegment(a / RATE, b / RATE) for a, b in zip(edges[::2], edges[1::2], strict=True))
    return SpeechActivity(segments=segments, audio_s=len(samples) / RATE, frame_s=0.01)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 5000)), max_size=6),
    st.lists(st.integers(1, 4000), min_size=1, max_size=3),
    st.sampled_from([5.0, 30.0]),
)
def test_segments_are_those_of_the_whole_recording(
    parts: list[tuple[int, int]], blocks: list[int], longest_s: float
) -> None:
    recording = np.concatenate([np.zeros(0), *(np.r_[np.zeros(a), np.ones(b)] for a, b in parts)]).astype(np.float32)
    longest = 0

    def detect(samples: np.ndarray) -> SpeechActivity:
        nonlocal longest
        longest = max(longest, len(samples))
        return loud(samples)

    stream, found, start, turn = BlockActivity(detect, RATE, longest_s), [], 0, 0
    while start < len(recording):
        size = blocks[turn % len(blocks)]
        answer = stream.accept(recording[start : start + size])
        start, turn = start + size, turn + 1
        found += answer.segments
        assert answer.audio_s <= min(start, len(recording)) / RATE
        assert not answer.is_final
    last = stream.finish()
    stream.close()
    assert tuple(found) + last.segments == loud(recording).segments
    assert (last.audio_s, last.is_final, last.speaking_since_s) == (len(recording) / RATE, True, None)
    assert longest <= longest_s * RATE


def test_a_model_that_hears_too_little_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 2 s at once sees too little"):
        BlockActivity(loud, RATE, 2.0)
