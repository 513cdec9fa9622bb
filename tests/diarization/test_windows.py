"""Windows of speech, however the audio comes, and the turns that are made of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.activity import SpeechActivity, SpeechSegment
from tritone.diarization.listening import GivenSpeechStream, LevelStream, joined_segments
from tritone.diarization.windows import LONGEST_PIECE_S, Window, WindowCutter, turns_of

RATE = 100


def cut(speech: list[SpeechSegment], audio_s: float, step: int) -> list[Window]:
    """The windows of audio whose samples are their own positions."""
    cutter, told = WindowCutter(RATE, window_s=1.5, shift_s=0.75), GivenSpeechStream(speech, RATE)
    samples = np.arange(round(audio_s * RATE), dtype=np.float32)
    found: list[Window] = []
    for start in range(0, len(samples), step):
        block = samples[start : start + step]
        found += cutter.accept(block, told.accept(block))
    return found + cutter.accept(samples[:0], told.finish())


def test_windows_overlap_and_the_last_one_ends_with_its_segment() -> None:
    windows = cut([SpeechSegment(1.0, 4.0), SpeechSegment(5.0, 5.2), SpeechSegment(6.0, 7.0)], 8, 50)
    assert [(each.start_s, each.end_s) for each in windows] == [
        *((1.0, 2.5), (1.75, 3.25), (2.5, 4.0)),
        *((5.0, 5.2), (6.0, 7.0)),
    ]
    assert [len(each.samples) for each in windows] == [150, 150, 150, 0, 100]  # 0.2 s are too short
    assert [each.samples[0] for each in windows if len(each.samples)] == [100, 175, 250, 600]


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(5, 7000)), max_size=6),
    st.sampled_from([7, 100, 1600, 100_000]),
)
def test_windows_do_not_depend_on_the_size_of_steps(lengths: list[tuple[int, int]], step: int) -> None:
    speech, now = [], 0
    for pause, length in lengths:
        speech.append(SpeechSegment((now + pause + 5) / 100, (now + pause + 5 + length) / 100))
        now += pause + 5 + length
    audio_s = now / 100 + 1
    found, whole = cut(speech, audio_s, step), cut(speech, audio_s, 10**9)
    assert found == whole
    for one, other in zip(found, whole, strict=True):
        assert np.array_equal(one.samples, other.samples)


def test_endless_speech_is_cut_so_that_memory_is_bounded() -> None:
    cutter = WindowCutter(RATE, window_s=1.5, shift_s=0.75)
    block, most, ends = np.zeros(2 * RATE, np.float32), 0, set()
    for number in range(1, 301):
        windows = cutter.accept(block, SpeechActivity((), 2.0 * number, 0.02, speaking_since_s=0.5, is_final=False))
        ends |= {each.piece.end_s for each in windows}
        most = max(most, sum(map(len, cutter._parts)))
    assert most <= 4 * LONGEST_PIECE_S * RATE
    assert sorted(ends) == np.arange(20.5, 570, LONGEST_PIECE_S).tolist()


def test_a_moment_belongs_to_the_window_with_the_nearest_centre() -> None:
    windows = cut([SpeechSegment(1.0, 4.0), SpeechSegment(4.5, 5.0)], 6, 100)
    assert turns_of(windows, ["a", "a", "b", "b"]) == [(1.0, 2.875, "a"), (2.875, 4.0, "b"), (4.5, 5.0, "b")]
    assert turns_of([], []) == []


def test_speech_is_found_by_its_level_however_it_comes() -> None:
    rate = 8000
    generator = np.random.default_rng(0)
    audio = np.zeros(6 * rate, np.float32)
    for start, end, level in ((1.0, 2.0, 0.3), (2.2, 3.0, 0.1), (4.0, 5.0, 0.2)):
        first, behind = round(start * rate), round(end * rate)
        audio[first:behind] = level * generator.standard_normal(behind - first)
    audio[28000:28800] = 0.001 * generator.standard_normal(800)  # far quieter
    for step in (80, 1111, len(audio)):
        stream = LevelStream(rate)
        answers = [stream.accept(audio[start : start + step]) for start in range(0, len(audio), step)]
        answers.append(stream.finish())
        found = [segment for each in answers for segment in each.segments]
        assert [(round(each.start_s, 2), round(each.end_s, 2)) for each in found] == [(0.95, 3.05), (3.95, 5.05)]
        assert answers[-1].is_final
        assert answers[-1].audio_s == 6


def test_a_segment_under_way_is_told_and_ends_with_the_audio() -> None:
    stream = LevelStream(1000)
    noise = np.random.default_rng(0).standard_normal(2000).astype(np.float32) / 4
    assert stream.accept(noise).speaking_since_s == 0
    assert stream.finish().segments == (SpeechSegment(0.0, 2.0),)


def test_told_segments_that_overlap_are_one() -> None:
    told = [SpeechSegment(2.0, 3.0), SpeechSegment(0.0, 1.0), SpeechSegment(0.5, 2.0), SpeechSegment(5.0, 5.0)]
    assert joined_segments(told) == [SpeechSegment(0.0, 3.0)]
