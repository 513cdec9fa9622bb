"""Features against a numpy FFT in float64 that does one utterance after the other, as upstream's recipe reads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.errors import ExportError
from tritone.families.jasper.config import FeatureConfig
from tritone.families.layers.log_mel import LogMel

ATOL = 2e-3  # of features with a deviation of one: float32 against float64


def slaney_banks(config: FeatureConfig) -> np.ndarray:
    """(bins, n_fft // 2 + 1), filter by filter."""

    def hz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    def mel(hz: float) -> float:
        return hz * 3 / 200 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)

    low, high = mel(config.low_freq), mel(config.high_freq)
    edges = [hz(low + (high - low) * i / (config.n_filt + 1)) for i in range(config.n_filt + 2)]
    banks = np.zeros((config.n_filt, config.n_fft // 2 + 1))
    for i, (left, centre, right) in enumerate(zip(edges[:-2], edges[1:-1], edges[2:], strict=True)):
        for j in range(banks.shape[1]):
            f = j * config.sample_rate / config.n_fft
            height = min((f - left) / (centre - left), (right - f) / (right - centre))
            banks[i, j] = max(0.0, height) * 2 / (right - left)
    return banks


def oracle(config: FeatureConfig, waveform: np.ndarray) -> np.ndarray:
    """(frames, bins) of one utterance."""
    x = waveform.astype(np.float64)
    x = np.concatenate([x[:1], x[1:] - config.preemphasis * x[:-1]])
    x = np.pad(x, config.n_fft // 2, mode="reflect")
    n = config.frame_length
    phase = 2 * np.pi * np.arange(n) / (n - 1)
    window = {
        "hann": 0.5 - 0.5 * np.cos(phase),
        "hamming": 0.54 - 0.46 * np.cos(phase),
        "blackman": np.blackman(n),
        "bartlett": np.bartlett(n),
    }[config.window]
    left = (config.n_fft - n) // 2
    window = np.pad(window, (left, config.n_fft - n - left))
    frames = -(-len(waveform) // config.frame_shift)
    starts = config.frame_shift * np.arange(frames)
    power = np.abs(np.fft.rfft([window * x[s : s + config.n_fft] for s in starts], axis=1)) ** 2
    features = power @ slaney_banks(config).T
    if config.log:
        features = np.log(features + 1e-20)
    axis = {"per-feature": 0, "all-features": None, "none": ()}[config.normalize]
    if axis == ():
        return features
    return (features - features.mean(axis=axis)) / (features.std(axis=axis, ddof=1) + 1e-5)


configs = st.builds(
    FeatureConfig,
    frame_length=st.sampled_from([320, 321, 400, 512]),
    frame_shift=st.sampled_from([100, 160]),
    n_filt=st.sampled_from([8, 40]),
    window=st.sampled_from(["hann", "hamming", "blackman", "bartlett"]),
    normalize=st.sampled_from(["per-feature", "all-features", "none"]),
    preemphasis=st.sampled_from([0.0, 0.97]),
    low_freq=st.sampled_from([0.0, 60.0]),
    high_freq=st.sampled_from([4000.0, 8000.0]),
    n_fft=st.sampled_from([512, 600]),
    log=st.booleans(),
)


@given(config=configs, seed=st.integers(0, 100), data=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_features_in_a_batch_are_those_of_an_fft_of_each_utterance_alone(
    config: FeatureConfig, seed: int, data: st.DataObject
) -> None:
    front_end, rng = LogMel(config), np.random.default_rng(seed)
    lengths = data.draw(st.lists(st.integers(front_end.min_samples, 4000), min_size=1, max_size=3))
    # Whatever follows the end of a row is not heard.
    block = (0.3 * rng.standard_normal((len(lengths), max(lengths)))).astype(np.float32)
    features, counts = front_end(torch.from_numpy(block), torch.tensor(lengths))
    for row, length in enumerate(lengths):
        wanted = oracle(config, block[row, :length])
        assert counts[row] == len(wanted)
        scale = 1.0 if config.normalize != "none" else max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(features[row, : len(wanted)] / scale, wanted / scale, atol=ATOL)


def test_silence_is_zero_however_long_its_batch_is() -> None:
    front_end = LogMel(FeatureConfig())
    features, counts = front_end(torch.zeros(2, 40_000), torch.tensor([400, 39_999]))
    assert counts.tolist() == [3, 250]
    assert not features.any()


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(ExportError, match="window is 'none'; upstream computes with hann"):
        FeatureConfig(window="none")
    with pytest.raises(ExportError, match="do not fit into n_fft 256"):
        FeatureConfig(n_fft=256)
    with pytest.raises(ExportError, match="highfreq 9000"):
        FeatureConfig(high_freq=9000.0)
    with pytest.raises(ExportError, match="would not fit into memory"):
        FeatureConfig(frame_length=2**16, n_fft=2**16)
    with pytest.raises(ExportError, match="would not fit into memory"):
        FeatureConfig(n_filt=2**20)
