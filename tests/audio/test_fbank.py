"""The feature constants, composed to a plain numpy fbank and compared with Kaldi's."""

from pathlib import Path

import kaldi_native_fbank
import numpy as np
import pytest
import soundfile

from tritone.audio import fbank

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "fbank"
MAX_ERROR, MEAN_ERROR = 5e-3, 1e-4  # kaldi-native-fbank itself errs by 1.6e-3 against float64

needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"golden features are absent ({GOLDEN})")


def numpy_fbank(int16_range: np.ndarray, window: str = "povey", rate: int = 16000, bins: int = 80) -> np.ndarray:
    length, shift = rate * 25 // 1000, rate // 100
    frames = np.lib.stride_tricks.sliding_window_view(int16_range.astype(np.float64), length)[::shift]
    frames = frames - frames.mean(axis=1, keepdims=True)
    spectrum = frames @ fbank.spectrum_matrix(length, window, preemphasis=0.97)
    real, imaginary = np.split(spectrum, 2, axis=1)
    banks = fbank.mel_banks(bins, rate, fbank.fft_size(length), low=20, high=0)
    return np.log(np.maximum((real**2 + imaginary**2) @ banks, fbank.LOG_FLOOR))


def kaldi_fbank(int16_range: np.ndarray, window: str, rate: int, bins: int) -> np.ndarray:
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = rate
    options.frame_opts.window_type = window
    options.mel_opts.num_bins = bins
    options.energy_floor = 0
    computer = kaldi_native_fbank.OnlineFbank(options)
    computer.accept_waveform(rate, int16_range.tolist())
    computer.input_finished()
    return np.stack([computer.get_frame(index) for index in range(computer.num_frames_ready)])


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    error = np.abs(ours - theirs)
    assert error.max() <= MAX_ERROR
    assert error.mean() <= MEAN_ERROR


@pytest.mark.parametrize("window", ["povey", "hamming", "hanning", "blackman", "rectangular"])
@pytest.mark.parametrize(("rate", "bins"), [(16000, 80), (8000, 40)])
def test_features_equal_kaldi_native_fbank(window: str, rate: int, bins: int) -> None:
    rng = np.random.default_rng(3)
    time = np.arange(rate) / rate
    wave = 3000 * np.sin(2 * np.pi * (100 + 1500 * time) * time) + rng.normal(scale=50, size=rate) + 200  # with DC
    wave = np.round(wave).astype(np.float32)
    assert_close(numpy_fbank(wave, window, rate, bins), kaldi_fbank(wave, window, rate, bins))


@needs_golden
@pytest.mark.parametrize("window", ["povey", "hamming"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("aishell_BAC009S0724W0121", "aishell-BAC009S0724W0121.wav"),
        ("librispeech_1995_1837_0001", "librispeech-1995-1837-0001.wav"),
        ("wenet_mid", "mid.wav"),
        ("wenet_long", "long.wav"),
    ],
)
def test_features_of_real_recordings_equal_the_golden_ones(name: str, file: str, window: str) -> None:
    samples, _ = soundfile.read(GOLDEN / "wav" / file, dtype="int16")
    with np.load(GOLDEN / "fbank.npz") as golden:
        assert_close(numpy_fbank(samples, window), golden[f"{name}__{window}"])


@needs_golden
def test_silence_and_quiet_noise_equal_the_golden_ones() -> None:
    with np.load(GOLDEN / "fbank.npz") as golden:
        for window in ("povey", "hamming"):
            np.testing.assert_allclose(numpy_fbank(np.zeros(1600), window), golden[f"zeros_1600__{window}"], atol=1e-6)
            assert_close(numpy_fbank(golden["noise__wave_int16"], window), golden[f"noise__{window}"])


def test_the_first_sample_of_a_frame_precedes_itself_in_preemphasis() -> None:
    shaped = np.array([10.0, 20.0, 40.0]) @ fbank.preemphasis_matrix(3, 0.5)
    np.testing.assert_allclose(shaped, [10 - 5, 20 - 5, 40 - 10])


def test_the_dft_matrix_equals_the_fft() -> None:
    frame = np.random.default_rng(0).normal(size=400)
    real, imaginary = np.split(frame @ fbank.dft_matrix(400, 512), 2)
    np.testing.assert_allclose(real + 1j * imaginary, np.fft.rfft(frame, 512)[:-1], atol=1e-10)


def test_impossible_features_are_refused() -> None:
    with pytest.raises(ValueError, match="low < high <= 8000 Hz, got low 20 and high 9000"):
        fbank.mel_banks(80, 16000, 512, 20, 9000)
    with pytest.raises(ValueError, match="covers no DFT bin"):
        fbank.mel_banks(200, 16000, 512, 20, 0)
    with pytest.raises(ValueError, match="unknown window 'kaiser'; known are povey"):
        fbank.window("kaiser", 400)
