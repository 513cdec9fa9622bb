"""Checking waveforms that come from callers."""

import numpy as np
import pytest

from tritone.audio import check_waveform
from tritone.errors import AudioError

RATE = 16000


def test_float32_passes_without_a_copy() -> None:
    waveform = np.zeros(5, np.float32)
    assert check_waveform(waveform, sample_rate=RATE) is waveform


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_floats_are_converted(dtype: type) -> None:
    result = check_waveform(np.array([0.5, -1], dtype), sample_rate=RATE)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, [0.5, -1])


def test_integers_are_refused_with_the_fix() -> None:
    with pytest.raises(AudioError, match="got int16; divide 16-bit samples by 32768"):
        check_waveform(np.zeros(5, np.int16), sample_rate=RATE)


def test_more_than_one_dimension_is_refused() -> None:
    with pytest.raises(AudioError, match=r"got shape \(2, 5\)"):
        check_waveform(np.zeros((2, 5)), sample_rate=RATE)
    with pytest.raises(AudioError, match=r"got shape \(\)"):
        check_waveform(np.float32(1), sample_rate=RATE)


def test_empty_audio_is_refused_unless_it_is_a_chunk() -> None:
    with pytest.raises(AudioError, match="empty audio"):
        check_waveform(np.zeros(0, np.float32), sample_rate=RATE)
    assert check_waveform(np.zeros(0, np.float32), sample_rate=RATE, allow_empty=True).size == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_bad_sample_is_named(value: float) -> None:
    waveform = np.zeros(RATE, np.float32)
    waveform[[4000, 9000]] = value
    with pytest.raises(AudioError, match=rf"sample 4000 \(0\.250 s\) is {value}"):
        check_waveform(waveform, sample_rate=RATE)


def test_the_limit_is_inclusive_and_the_message_has_both_durations() -> None:
    assert check_waveform(np.zeros(RATE), sample_rate=RATE, max_audio_s=1).size == RATE
    with pytest.raises(AudioError, match=r"1\.000 s long \(16001 samples at 16000 Hz\), the limit is 1 s"):
        check_waveform(np.zeros(RATE + 1), sample_rate=RATE, max_audio_s=1)


@pytest.mark.parametrize("value", [-32768, 3e38, 1e300])
def test_levels_that_no_recording_has_are_refused_with_the_fix(value: float) -> None:
    dtype = np.float32 if abs(value) < 1e38 * 4 else np.float64
    with pytest.raises(AudioError, match=r"samples reach .* in \[-1, 1\] .*divide by 32768"):
        check_waveform(np.array([0, value], dtype), sample_rate=RATE)


def test_an_overdriven_recording_passes() -> None:
    overdriven = np.array([-8, 8], np.float32)
    assert check_waveform(overdriven, sample_rate=RATE) is overdriven
