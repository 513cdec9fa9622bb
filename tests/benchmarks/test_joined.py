"""Joined recordings: what is known of them is true, and the same options make the same samples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.joined import Joined, JoinOptions, Part, Placed, join, speech_of, write_joined

from tritone.activity import SpeechSegment
from tritone.audio.files import read_audio
from tritone.formats.rttm import Turn

RATE = 16000
EXACT = JoinOptions(floor_dbfs=None)


def sound(seconds: float, level: float = 0.1) -> np.ndarray:
    """A tone with the same quiet noise before and after it, half a second each."""
    noise = 1e-4 * np.random.default_rng(0).standard_normal(round((seconds + 1) * RATE))
    tone = level * np.sin(2 * np.pi * 300 * np.arange(round(seconds * RATE)) / RATE)
    noise[RATE // 2 : RATE // 2 + len(tone)] += tone
    return noise.astype(np.float32)


def part(name: str, seconds: float = 1.0, level: float = 0.1) -> Part:
    return Part(id=name, samples=sound(seconds, level), text=f"text {name}", speaker=f"speaker-{name}")


def test_speech_of_a_clean_recording_is_found_to_the_frame() -> None:
    assert speech_of(sound(1.0), RATE) == [(RATE // 2, RATE // 2 + RATE)]


def test_a_short_pause_is_part_of_speech_and_a_long_one_is_not() -> None:
    short = np.concatenate([sound(1.0)[: RATE * 3 // 2], sound(1.0)[RATE // 4 :]])  # 0.25 s between the tones
    assert len(speech_of(short, RATE)) == 1
    assert len(speech_of(np.concatenate([sound(1.0), sound(1.0)]), RATE)) == 2


def test_parts_keep_their_samples_at_the_places_that_are_told() -> None:
    parts = [part("a"), part("b", 0.5, 0.3)]
    samples, joined = join(parts, sample_rate=RATE, options=replace(EXACT, pauses_s=(0.7, 0.7), edges_s=0.25))
    assert [(each.id, each.start_s, each.end_s) for each in joined.parts] == [("a", 0.25, 2.25), ("b", 2.95, 4.45)]
    assert joined.duration_s == len(samples) / RATE == 4.7
    for given, placed in zip(parts, joined.parts, strict=True):
        found = samples[round(placed.start_s * RATE) : round(placed.end_s * RATE)]
        np.testing.assert_array_equal(found, given.samples)
    assert not samples[round(2.25 * RATE) : round(2.95 * RATE)].any()
    assert joined.speech == (SpeechSegment(0.75, 1.75), SpeechSegment(3.45, 3.95))
    assert joined.text == "text a text b"
    assert joined.turns("rec") == [Turn("rec", 0.75, 1.75, "speaker-a"), Turn("rec", 3.45, 3.95, "speaker-b")]


def test_trimmed_parts_are_as_far_apart_as_the_pauses_are_long() -> None:
    _, joined = join([part("a"), part("b")], sample_rate=RATE, options=replace(EXACT, pauses_s=(0.5, 0.5), trim=True))
    assert joined.speech == (SpeechSegment(0.5, 1.5), SpeechSegment(2.0, 3.0))


def test_a_negative_pause_overlaps_parts() -> None:
    parts = [part("a"), part("b")]
    samples, joined = join(parts, sample_rate=RATE, options=replace(EXACT, pauses_s=(-0.4, -0.4), trim=True))
    assert [(each.start_s, each.end_s) for each in joined.parts] == [(0.5, 1.5), (1.1, 2.1)]
    assert joined.speech == (SpeechSegment(0.5, 2.1),)
    cut = slice(RATE // 2, RATE // 2 + RATE)
    expected = np.zeros(round(2.6 * RATE), np.float32)
    for given, at in zip(parts, (0.5, 1.1), strict=True):
        expected[round(at * RATE) : round(at * RATE) + RATE] += given.samples[cut]
    np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize("noise", [None, np.sin(np.arange(3 * RATE, dtype=np.float32))])
def test_noise_is_as_far_below_the_speech_as_was_asked(noise: np.ndarray | None) -> None:
    options = JoinOptions(level_dbfs=-26, snr_db=10, edges_s=2, trim=True, floor_dbfs=None)
    samples, joined = join([part("a", level=0.7)], sample_rate=RATE, options=options, noise=noise)
    quiet = samples[: 2 * RATE]
    assert 10 * np.log10(np.square(quiet).mean()) == pytest.approx(-36, abs=0.2)
    start, end = (round(each * RATE) for each in (joined.speech[0].start_s, joined.speech[0].end_s))
    both = 10 * np.log10(10**-2.6 + 10**-3.6)
    assert 10 * np.log10(np.square(samples[start:end]).mean()) == pytest.approx(both, abs=0.2)


def test_the_same_options_make_the_same_file_and_noise_moves_no_part(tmp_path: Path) -> None:
    parts = [part(name) for name in "abc"]
    options = JoinOptions(seed=7, level_dbfs=-26)
    first, known = join(parts, sample_rate=RATE, options=options)
    again, _ = join(iter(parts), sample_rate=RATE, options=options)
    np.testing.assert_array_equal(first, again)
    _, noisy = join(parts, sample_rate=RATE, options=replace(options, snr_db=5))
    assert noisy == known
    _, other = join(parts, sample_rate=RATE, options=replace(options, seed=8))
    assert other != known
    assert write_joined(tmp_path / "a.flac", iter(parts), sample_rate=RATE, options=options) == known
    np.testing.assert_allclose(read_audio(tmp_path / "a.flac", RATE), first, atol=1 / 32768)


def test_speech_that_touches_is_one_stretch() -> None:
    parts = [
        Placed(id=name, start_s=start, end_s=end, speech=(SpeechSegment(start, end),))
        for name, start, end in (("a", 0.0, 5.0), ("b", 1.0, 2.0), ("c", 5.0, 6.0), ("d", 7.0, 8.0))
    ]
    assert Joined(parts=tuple(parts), duration_s=9).speech == (SpeechSegment(0, 6), SpeechSegment(7, 8))


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(ValueError, match="no parts to join"):
        join([], sample_rate=RATE)
    with pytest.raises(ValueError, match="'empty' has no speech in its 0 samples"):
        join([Part(id="empty", samples=np.zeros(0, np.float32))], sample_rate=RATE)
    with pytest.raises(ValueError, match="'silent' has no speech in its 16000 samples"):
        join([Part(id="silent", samples=np.zeros(RATE, np.float32))], sample_rate=RATE)
    with pytest.raises(ValueError, match="snr_db needs level_dbfs"):
        JoinOptions(snr_db=3)
    with pytest.raises(ValueError, match=r"noise needs options\.snr_db"):
        join([part("a")], sample_rate=RATE, noise=np.ones(5, np.float32))
    options = JoinOptions(snr_db=3, level_dbfs=-20)
    with pytest.raises(ValueError, match="the noise has no sound"):
        join([part("a")], sample_rate=RATE, options=options, noise=np.zeros(5, np.float32))
