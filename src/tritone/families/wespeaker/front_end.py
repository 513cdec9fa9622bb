"""The features of a model as a manifest has them. Needs no torch.

FeatureConfig of config.yaml, window, scale  ->  manifest.Features
"""

from typing import get_args

from tritone.audio.fbank import fft_size, mel_banks
from tritone.bundle.manifest import Features
from tritone.errors import ExportError
from tritone.families.wespeaker.config import FeatureConfig, Window

MAX_SCALE = 2.0**31
VARIANCE_GUARD = 1e-7  # is added to the variance that features are divided by the root of


def manifest_features(
    config: FeatureConfig, *, window: Window | None = None, sample_scale: float | None = None
) -> Features:
    """What a front end needs to know, beside the sample rate.

    Args:
        window, sample_scale: in no config. Upstream's recipes have a hamming window and 16-bit numbers; weights of
            3D-Speaker, which upstream's command line offers too, a povey window and samples in [-1, 1]. None takes
            what is known of the model.

    Raises:
        ExportError: features like these cannot be had.
        ValueError: the window is unknown, or the scale not positive.
    """
    window = config.window if window is None else window
    sample_scale = config.sample_scale if sample_scale is None else sample_scale
    if window not in get_args(Window):
        raise ValueError(f"the window is hamming or povey, got {window!r}")
    if not 0 < sample_scale <= MAX_SCALE:
        raise ValueError(f"samples are multiplied by more than 0, such as 1 or 32768; got {sample_scale:g}")
    if config.divide_by_deviation and not config.subtract_mean:
        raise ExportError("config: cmvn_args has norm_var without norm_mean, which cannot be had")
    features = Features(
        frame_length=config.frame_length,
        frame_shift=config.frame_shift,
        num_mel_bins=config.num_mel_bins,
        window=window,
        sample_scale=sample_scale,
        normalize="per-feature" if config.divide_by_deviation else "mean" if config.subtract_mean else "none",
    )
    try:
        size = fft_size(features.frame_length)
        mel_banks(features.num_mel_bins, config.sample_rate, size, features.low_freq, features.high_freq)
    except ValueError as error:
        raise ExportError(f"config: {features.num_mel_bins} bins at {config.sample_rate} Hz: {error}") from error
    return features
