"""Trying ONNX graphs of strangers: signals and features to feed, and how far results are apart.

Their graphs take features, ours take waveforms. Features for theirs are computed here in float64 numpy, apart from the
nodes that `front_end.py` writes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.fbank import LOG_FLOOR, fft_size, window
from tritone.bundle.manifest import Features
from tritone.errors import BundleError, ExportError
from tritone.families.onnx.front_end import (
    DEVIATION_GUARD,
    LOG_GUARD,
    dft,
    is_log_mel,
    lead_samples,
    mel,
    slaney_banks,
)
from tritone.families.onnx.source import Source
from tritone.runtime import Graph, open_graph

Floats = npt.NDArray[np.float32]

FLOAT_NOISE = 1e-3
"""Relative to the size of the outputs; float32 stays two orders below, and padding that leaks is far above."""

MAX_DIFFERENCE = 1e-2
"""Between our graph and the folder's, of the size of what comes out; features alone differ by up to 5e-4."""


def signal(samples: int, sample_rate: int, seed: int = 0) -> Floats:
    """Chirps under slow loudness changes, with noise: energy in all bands, silence too. The same at every call."""
    time = np.arange(samples) / sample_rate
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, samples)
    tone = np.sin(2 * np.pi * ((200 + 37 * seed) * time + 400 * time**2))
    loudness = np.maximum(np.sin(2 * np.pi * 1.7 * time + seed), 0)
    return (0.3 * tone * loudness + 0.05 * noise * loudness + 1e-3 * noise).astype(np.float32)


def features_of(waveform: Floats, features: Features, sample_rate: int) -> Floats:
    """The features (frames, bins) of a waveform."""
    return (_log_mel if is_log_mel(features) else fbank)(waveform, features, sample_rate)


def _log_mel(waveform: Floats, features: Features, sample_rate: int) -> Floats:
    """NeMo's, by an FFT of each frame."""
    length, shift, size = features.frame_length, features.frame_shift, fft_size(features.frame_length)
    samples = waveform.astype(np.float64)
    samples = np.pad(np.append(samples[:1], samples[1:] - features.preemphasis * samples[:-1]), size // 2)
    count = len(waveform) // shift
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::shift][:count]
    around = (size - length) // 2
    shaped = frames * np.pad(window(features.window, length), (around, size - length - around))
    energy = np.abs(np.fft.rfft(shaped)) ** 2 @ slaney_banks(features, sample_rate)
    found = np.log(energy + LOG_GUARD)
    if features.normalize != "none":
        axis = None if features.normalize == "all-features" else 0
        deviation = found.std(axis=axis, ddof=1) + DEVIATION_GUARD
        found = (found - found.mean(axis=axis)) / deviation
    return found.astype(np.float32)


def fbank(waveform: Floats, features: Features, sample_rate: int) -> Floats:
    """The features (frames, bins) of a waveform, whose frames lie as Kaldi's."""
    length, shift = features.frame_length, features.frame_shift
    samples = waveform.astype(np.float64)
    if features.snip_edges:
        count = max(0, (len(samples) - length) // shift + 1)
    else:
        count = (len(samples) + shift // 2) // shift
        samples = np.pad(samples, (lead_samples(features), length), mode="symmetric")
    if not count:
        return np.zeros((0, features.num_mel_bins), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, length)[::shift][:count]
    spectrum = (frames - frames.mean(axis=1, keepdims=True)) @ dft(features)
    real, imaginary = np.hsplit(spectrum, 2)
    energy = (real**2 + imaginary**2) @ mel(features, sample_rate)
    return np.log(np.maximum(energy, LOG_FLOOR)).astype(np.float32)


def run(graph: Graph, source: Source, inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Run a stranger's graph.

    Raises:
        ExportError: it fails.
    """
    try:
        return graph(inputs, outputs)
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in list(inputs.items())[:3])
        raise ExportError(f"{source.path} fails when it is run with {shapes}: {str(error)[:300]}") from error


def largest_difference(found: Floats, wanted: Floats, name: str) -> float:
    """Between two arrays that should be equal.

    Raises:
        ExportError: they have other shapes, or hold something that is not finite.
    """
    if found.shape != wanted.shape:
        raise ExportError(f"{name} gives results of shape {found.shape} where {wanted.shape} is expected")
    difference = float(np.abs(found - wanted).max(initial=0))
    if not np.isfinite(difference):
        raise ExportError(f"{name} gives numbers that are not finite")
    return difference


def typical_size(values: Floats) -> float:
    """The root of the mean square, of nothing but zeros a small number."""
    return max(float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))), 1e-9)


def opened(path: Path, *, quiet: bool = False) -> Graph:
    """Open a graph for running it; `quiet`: calls that fail write nothing to stderr, where failing is no surprise.

    Raises:
        ExportError: onnxruntime cannot.
    """
    try:
        return open_graph(path, quiet=quiet)
    except BundleError as error:
        raise ExportError(str(error)) from error
