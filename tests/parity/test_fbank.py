"""Features inside the graph against kaldi-native-fbank, from golden files and from the package itself."""

import kaldi_native_fbank as knf
import numpy as np
import pytest
import soundfile
import torch

from parity.golden_cases import Case, load
from tritone.families.layers.fbank import Fbank

WINDOWS = ["povey", "hamming", "hanning", "rectangular", "blackman"]
MAX_ATOL, MEAN_ATOL = 5e-3, 1e-4  # kaldi-native-fbank's own float32 error is 1.6e-3


def compute(waveform: np.ndarray, window: str, **options: float) -> np.ndarray:
    front_end = Fbank(window_type=window, **options)
    feats, count = front_end(torch.from_numpy(waveform)[None], torch.tensor([len(waveform)]))
    assert int(count) == feats.shape[1]
    return feats[0].numpy()


def check(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    difference = np.abs(found - expected)
    assert difference.max() <= MAX_ATOL
    assert difference.mean() <= MEAN_ATOL


def test_recordings_equal_the_golden_features(fbank_case: Case) -> None:
    arrays = load(fbank_case.path / "fbank.npz")
    windows = [window for window in WINDOWS if any(name.endswith(f"__{window}") for name in arrays)]
    assert windows
    for window in windows:
        check_window(fbank_case, arrays, window)


def check_window(fbank_case: Case, arrays: dict[str, np.ndarray], window: str) -> None:
    checked = 0
    for path in sorted((fbank_case.path / "wav").glob("*.wav")):
        waveform, rate = soundfile.read(path, dtype="float32")
        assert rate == 16000
        lengths = {
            k.removesuffix("__num_samples"): int(v)
            for k, v in arrays.items()
            if v.ndim == 0 and k.endswith("__num_samples")
        }
        # files have other names than their arrays; where two are of one length, the nearer array is meant
        candidates = [arrays[f"{k}__{window}"] for k, n in lengths.items() if n == len(waveform)]
        found = compute(waveform, window)
        check(found, min(candidates, key=lambda expected: np.abs(found - expected).mean()))
        checked += 1
    if f"noise__{window}" in arrays:
        check(compute(arrays["noise__wave_int16"].astype(np.float32) / 32768, window), arrays[f"noise__{window}"])
        checked += 1
    if f"zeros_1600__{window}" in arrays:
        check(compute(np.zeros(1600, np.float32), window), arrays[f"zeros_1600__{window}"])
        checked += 1
    assert checked


def test_frame_counts_equal_the_golden_ones(fbank_case: Case) -> None:
    arrays = load(fbank_case.path / "fbank.npz")
    if "frame_count__num_samples" not in arrays:
        pytest.skip("no frame counts in this case")
    found = Fbank().num_frames(torch.from_numpy(arrays["frame_count__num_samples"]).long())
    assert found.tolist() == arrays["frame_count__num_frames"].tolist()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("sample_rate", "bins"), [(16000, 80), (8000, 40)])
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_features_equal_kaldi_native_fbank_under_a_dc_offset(
    window: str, sample_rate: int, bins: int, offset: float
) -> None:
    noise = np.random.default_rng(3).normal(0, 0.03, sample_rate)
    waveform = (noise * np.linspace(0.1, 1, sample_rate) + offset).astype(np.float32)
    options = knf.FbankOptions()
    options.frame_opts.samp_freq = sample_rate
    options.frame_opts.dither = 0
    options.frame_opts.window_type = window
    options.mel_opts.num_bins = bins
    options.energy_floor = 0
    reference = knf.OnlineFbank(options)
    reference.accept_waveform(sample_rate, (waveform * 32768).tolist())
    reference.input_finished()
    expected = np.stack([reference.get_frame(i) for i in range(reference.num_frames_ready)])
    length, shift = sample_rate // 40, sample_rate // 100
    found = compute(
        waveform, window, sample_rate=sample_rate, frame_length=length, frame_shift=shift, num_mel_bins=bins
    )
    check(found, expected)
