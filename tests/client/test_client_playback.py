import time

import numpy as np
import pytest

from tritone.client.playback import play
from tritone.transcript import Transcript


class Recorder:
    """A stream that writes down what it hears and when."""

    def __init__(self) -> None:
        self.chunks: list[int] = []
        self.times: list[float] = []

    def accept(self, samples: np.ndarray) -> Transcript:
        self.chunks.append(len(samples))
        self.times.append(time.perf_counter())
        return Transcript(f"{sum(self.chunks)}", is_final=False)

    def finish(self) -> Transcript:
        return Transcript("the end")


def test_audio_is_played_in_chunks_and_ends_with_the_final_text():
    stream = Recorder()
    texts = [transcript.text for transcript in play(stream, [np.zeros(250)], sample_rate=1000, chunk_ms=100)]
    assert stream.chunks == [100, 100, 50]
    assert texts == ["100", "200", "the end"]


@pytest.mark.parametrize("cuts", [[], [1], [99, 100, 101], [100, 100, 200], [10, 20, 249]])
def test_audio_may_come_in_pieces(cuts: list[int]):
    stream = Recorder()
    pieces = np.split(np.zeros(250), cuts)
    assert [each.text for each in play(stream, pieces, sample_rate=1000, chunk_ms=100)] == ["100", "200", "the end"]
    assert stream.chunks == [100, 100, 50]


def test_no_audio_still_gives_a_final_text():
    stream = Recorder()
    assert [t.text for t in play(stream, [np.zeros(0)], sample_rate=1000, chunk_ms=100)] == ["the end"]
    assert stream.chunks == []


def test_real_time_sends_no_chunk_before_it_was_spoken():
    stream = Recorder()
    started = time.perf_counter()
    list(play(stream, [np.zeros(250)], sample_rate=1000, chunk_ms=100, realtime=True))
    for spoken_s, sent in zip((0.1, 0.2, 0.25), stream.times, strict=True):
        assert sent - started >= spoken_s


def test_a_chunk_must_hold_a_sample():
    with pytest.raises(ValueError, match=r"at least one sample, got 0\.1"):
        list(play(Recorder(), [np.zeros(5)], sample_rate=1000, chunk_ms=0.1))
