"""Speakers of a stream as it goes on."""

import numpy as np
import pytest

from tritone.diarization.online import OnlineSpeakers

ANNA, BEN, CARL = np.eye(3, dtype=np.float32)


def test_a_window_is_of_the_most_similar_speaker_or_of_a_new_one() -> None:
    speakers = OnlineSpeakers(merge_cosine=0.5)
    assert [speakers.add(each) for each in (ANNA, 3 * BEN, ANNA + 0.2 * BEN, BEN)] == [
        *("speaker1", "speaker2", "speaker1", "speaker2")
    ]
    assert speakers.labels == ("speaker1", "speaker2")


def test_no_more_speakers_than_allowed() -> None:
    speakers = OnlineSpeakers(merge_cosine=0.5, max_speakers=2)
    assert [speakers.add(each) for each in (ANNA, BEN, CARL + 0.1 * BEN)] == ["speaker1", "speaker2", "speaker2"]


def test_a_short_window_makes_no_speaker_if_there_is_one() -> None:
    speakers = OnlineSpeakers(merge_cosine=0.5)
    assert speakers.add(ANNA, whole=False) == "speaker1"
    assert speakers.add(BEN, whole=False) == "speaker1"
    assert speakers.add(BEN) == "speaker2"


def test_enrolled_voices_have_their_names_and_are_listed_when_they_are_heard() -> None:
    enrolled = {"anna": ANNA, "speaker1": CARL}
    speakers = OnlineSpeakers(merge_cosine=0.5, enrolled=enrolled, enrolled_cosine=0.9)
    assert speakers.labels == ()
    assert [speakers.add(each) for each in (ANNA, BEN, ANNA + BEN)] == ["anna", "speaker2", "speaker2"]
    assert speakers.labels == ("anna", "speaker2")


@pytest.mark.parametrize("vector", [np.zeros(3), np.full(3, np.nan), np.ones((2, 3))])
def test_what_is_no_embedding_is_refused(vector: object) -> None:
    with pytest.raises(ValueError, match=r"an embedding is \(dim,\), finite and not zero"):
        OnlineSpeakers(merge_cosine=0.5).add(vector)
    with pytest.raises(ValueError, match="max_speakers must be at least 1, got 0"):
        OnlineSpeakers(merge_cosine=0.5, max_speakers=0)
