"""Features as ONNX nodes: Kaldi's fbank or NeMo's log-mel of waveforms, as the models were trained with.

    waveform (batch, samples) float32, num_samples (batch,) int64  ->  x (batch, frames, bins) float32, valid (batch,)

A frame of Kaldi's is one row of a product with the matrix of `tritone.audio.fbank`; its mean is subtracted before,
since inside the matrix it would cancel large numbers. NeMo's frames are centred on every 160th sample of the signal,
after pre-emphasis of all of it, between zeros (`tritone.families.layers.log_mel` is the same as a torch module). Frames
at or beyond `valid` are what the models know as padding, log(1e-10) and 0.
"""

import math

import numpy as np
from onnx import TensorProto

from tritone.audio import fbank
from tritone.audio.fbank import LOG_FLOOR, fft_size, spectrum_matrix
from tritone.bundle.manifest import Features
from tritone.families.layers.mel import mel_banks, spectrum_and_filters
from tritone.families.onnx.builder import Builder

PADDING = math.log(1e-10)
"""A feature where there is no audio, in icefall's training and in sherpa-onnx."""


LEAD = 0.0
"""NeMo's features before the first frame of a stream, in its own pipelines for streams."""

LOG_GUARD = 2.0**-24  # is added before the logarithm
DEVIATION_GUARD = 1e-5  # is added to the deviation that features are divided by
LEAST_FRAMES = 2  # of NeMo's features, for a deviation


def is_log_mel(features: Features) -> bool:
    """Are these log-mel features as NeMo has them, and not Kaldi's fbank?"""
    return features.kind == "log-mel"


def lead_samples(features: Features) -> int:
    """Samples before the first one that its frame covers; they are mirrored, of NeMo's features zero."""
    if is_log_mel(features):
        return features.frame_length - features.frame_length // 2
    return 0 if features.snip_edges else (features.frame_length - features.frame_shift) // 2


def least_samples(features: Features, frames: int) -> int:
    """The shortest waveform of that many frames."""
    if is_log_mel(features):
        return max(frames, LEAST_FRAMES) * features.frame_shift
    if features.snip_edges:
        return features.frame_length + (frames - 1) * features.frame_shift
    return frames * features.frame_shift - features.frame_shift // 2


def window_samples(features: Features, frames: int) -> int:
    """Samples that these frames of a stream need: those that they cover, and of NeMo's features one before them."""
    return features.frame_length + (frames - 1) * features.frame_shift + is_log_mel(features)


def stream_lead(features: Features, lead_frames: int) -> int:
    """Samples from the start of a stream's first window, so many frames before the first one, to the first sample."""
    return lead_frames * features.frame_shift + lead_samples(features) + is_log_mel(features)


def utterance_features(b: Builder, features: Features, sample_rate: int, min_frames: int) -> tuple[str, str]:
    """Nodes for whole utterances: the names of `x`, which has no more frames than the longest row, and of `valid`.

    `x` has at least `min_frames` frames; waveforms are at least that long.
    """
    if is_log_mel(features):
        return _log_mel_features(b, features, sample_rate, min_frames)
    length, shift = features.frame_length, features.frame_shift
    lead = lead_samples(features)
    reach = length - lead  # more than a last frame can need beyond the last sample
    n = b.op("Reshape", "num_samples", b.constant([-1, 1]))
    if features.snip_edges:
        inside = b.op("Max", b.op("Sub", "num_samples", b.constant(length - shift)), b.constant(0))
        valid = b.op("Div", inside, b.constant(shift))
        signal = b.op("Pad", "waveform", b.constant([0, 0, 0, reach]), b.real(0))
    else:
        valid = b.op("Div", b.op("Add", "num_samples", b.constant(shift // 2)), b.constant(shift))
        head = b.slice("waveform", lead - 1, -(2**62), axis=1, step=-1)
        body = b.op("Pad", "waveform", b.constant([0, 0, 0, 2 * reach]), b.real(0))
        signal = _mirror_end(b, b.op("Concat", head, body, axis=1), b.op("Add", n, b.constant(lead)), reach)
    frames = b.op("Max", b.op("ReduceMax", valid, keepdims=0), b.constant(min_frames))
    return _fbank(b, signal, frames, valid, features, sample_rate), valid


def _log_mel_features(b: Builder, features: Features, sample_rate: int, min_frames: int) -> tuple[str, str]:
    length, shift = features.frame_length, features.frame_shift
    whole = b.op("Div", "num_samples", b.constant(shift))
    enough = b.op("Less", b.constant(least_samples(features, 1) - 1), "num_samples")
    valid = b.op("Where", enough, whole, b.constant(0))
    before = b.op("Pad", "waveform", b.constant([0, 1, 0, -1]), b.real(0))
    emphasised = b.op("Sub", "waveform", b.op("Mul", before, b.real(features.preemphasis)))
    ends = b.op("Reshape", "num_samples", b.constant([-1, 1]))
    count = b.op("Reshape", b.slice(b.op("Shape", "waveform"), 1, 2, axis=0), b.constant(np.zeros(0)))
    inside = b.op("Less", b.op("Range", b.constant(0), count, b.constant(1)), ends)
    signal = b.op("Where", inside, emphasised, b.real(0))
    signal = b.op("Pad", signal, b.constant([0, lead_samples(features), 0, length]), b.real(0))
    frames = b.op("Max", b.op("ReduceMax", valid, keepdims=0), b.constant(min_frames))
    x = _log_mel(b, signal, frames, features, sample_rate)
    is_audio = _before(b, frames, valid)
    if features.normalize == "none":
        return b.op("Where", is_audio, x, b.real(0)), valid
    together = features.normalize == "all-features"
    first = b.slice(x, 0, 1, axis=1)
    x = b.op("Sub", x, b.slice(first, 0, 1, axis=2) if together else first)  # silence becomes 0 exactly
    axes = b.constant([1, 2] if together else [1])
    numbers = b.op("Mul", valid, b.constant(features.num_mel_bins)) if together else valid

    def mean(values: str, fewer: int) -> str:
        divisor = b.op("Max", b.op("Sub", numbers, b.constant(fewer)), b.constant(1))
        divisor = b.op("Cast", b.op("Reshape", divisor, b.constant([-1, 1, 1])), to=TensorProto.FLOAT)
        return b.op("Div", b.op("ReduceSum", b.op("Where", is_audio, values, b.real(0)), axes), divisor)

    centred = b.op("Sub", x, mean(x, 0))
    deviation = b.op("Sqrt", mean(b.op("Mul", centred, centred), 1))
    scaled = b.op("Div", centred, b.op("Add", deviation, b.real(DEVIATION_GUARD)))
    return b.op("Where", is_audio, scaled, b.real(0)), valid


def _log_mel_window(
    b: Builder, features: Features, sample_rate: int, frames: int, begin: str, lead_frames: int
) -> tuple[str, str]:
    """After the end of a stream comes silence."""
    samples = window_samples(features, frames)
    ends = b.op("Reshape", "num_samples", b.constant([-1, 1]))
    audio = b.op("Where", b.op("Less", b.constant([np.arange(samples)]), ends), "waveform", b.real(0))
    before = b.op("Mul", b.slice(audio, 0, -1, axis=1), b.real(features.preemphasis))
    signal = b.op("Sub", b.slice(audio, 1, 2**62, axis=1), before)
    x = _log_mel(b, signal, b.constant(frames), features, sample_rate)
    places = b.constant(np.arange(frames)[None, :, None])
    positions = b.op("Add", b.op("Reshape", begin, b.constant([-1, 1, 1])), places)
    x = b.op("Where", b.op("Less", positions, b.constant(lead_frames)), b.real(LEAD), x)
    return x, b.op("Max", b.op("Div", "num_samples", b.constant(features.frame_shift)), b.constant(0))


def _log_mel(b: Builder, signal: str, frames: str, features: Features, sample_rate: int) -> str:
    """NeMo's features of the first `frames` (a number) frames of a signal after pre-emphasis."""
    cut = cut_frames(b, signal, b.op("Reshape", frames, b.constant([1])), features.frame_length, features.frame_shift)
    matrix, filters = spectrum_and_filters(
        fbank.window(features.window, features.frame_length),
        fft_size(features.frame_length),
        slaney_banks(features, sample_rate),
    )
    spectrum = b.op("MatMul", cut, b.real(matrix))
    energy = b.op("MatMul", b.op("Mul", spectrum, spectrum), b.real(np.concatenate((filters, filters))))
    return b.op("Log", b.op("Add", energy, b.real(LOG_GUARD)))


def _before(b: Builder, frames: str, valid: str) -> str:
    """Which of `frames` (a number) frames are before the end `valid` (batch,) of each row: (batch, frames, 1)."""
    count = b.op("Reshape", frames, b.constant(np.zeros(0)))
    positions = b.op("Reshape", b.op("Range", b.constant(0), count, b.constant(1)), b.constant([1, -1, 1]))
    return b.op("Less", positions, b.op("Reshape", valid, b.constant([-1, 1, 1])))


def window_features(
    b: Builder, features: Features, sample_rate: int, frames: int, begin: str, lead_frames: int = 0
) -> tuple[str, str]:
    """Nodes for a window of a stream, which begins `stream_lead` samples before its first frame's middle part.

    Args:
        frames: of a window.
        begin: name of a tensor (batch,) int64, frames of the stream before the window. The lead of the first one is
            mirrored; of NeMo's features the `lead_frames` that come first are `LEAD`.
    """
    if is_log_mel(features):
        return _log_mel_window(b, features, sample_rate, frames, begin, lead_frames)
    first = b.op("Equal", begin, b.constant(0))
    lead, shift = lead_samples(features), features.frame_shift
    reach = features.frame_length - lead
    mirrored = b.slice("waveform", 2 * lead - 1, lead - 1, axis=1, step=-1)
    begins = b.op("Reshape", first, b.constant([-1, 1]))
    head = b.op("Where", begins, mirrored, b.slice("waveform", 0, lead, axis=1))
    body = b.slice("waveform", lead, 2**62, axis=1)
    padded = b.op("Pad", b.op("Concat", head, body, axis=1), b.constant([0, 0, 0, reach]), b.real(0))
    n = b.op("Reshape", "num_samples", b.constant([-1, 1]))
    signal = _mirror_end(b, padded, n, reach)
    # In C's division what is below 0 becomes 0 as well: less than a shift is missing then.
    valid = b.op("Div", b.op("Sub", "num_samples", b.constant(lead - shift // 2)), b.constant(shift))
    count = b.constant(frames)
    return _fbank(b, signal, count, valid, features, sample_rate), b.op("Min", valid, count)


def _mirror_end(b: Builder, signal: str, end: str, reach: int) -> str:
    """Write the mirrored signal behind its end: (batch, samples), the end (batch, 1) of each row, how much."""
    steps = b.constant([np.arange(reach)])
    sources = b.op("Max", b.op("Sub", b.op("Sub", end, b.constant(1)), steps), b.constant(0))
    values = b.op("GatherElements", signal, sources, axis=1)
    return b.op("ScatterElements", signal, b.op("Add", end, steps), values, axis=1)


def _fbank(b: Builder, signal: str, frames: str, valid: str, features: Features, sample_rate: int) -> str:
    """Features of the first `frames` (a number) frames of a signal."""
    length, shift = features.frame_length, features.frame_shift
    cut = cut_frames(b, signal, b.op("Reshape", frames, b.constant([1])), length, shift)
    mean = b.op("MatMul", cut, b.real(np.full((length, 1), 1 / length)))
    spectrum = b.op("MatMul", b.op("Sub", cut, mean), b.real(dft(features)))
    power = b.op("Mul", spectrum, spectrum)
    banks = mel(features, sample_rate)
    energy = b.op("MatMul", power, b.real(np.concatenate((banks, banks))))  # adds real and imaginary parts
    log_energy = b.op("Log", b.op("Max", energy, b.real(LOG_FLOOR)))
    return b.op("Where", _before(b, frames, valid), log_energy, b.real(PADDING))


def cut_frames(b: Builder, signal: str, frames: str, length: int, shift: int) -> str:
    """The first `frames` (a tensor of one number) frames of a signal: (batch, samples) to (batch, frames, length).

    They are put together from hops, which are plain slices: much faster than a gather.
    """
    hop = math.gcd(length, shift)
    step, width = shift // hop, length // hop
    last = b.op("Mul", b.op("Sub", frames, b.constant(1)), b.constant(step))
    used = b.op("Mul", b.op("Add", last, b.constant(width)), b.constant(hop))
    hops = b.op("Reshape", b.slice(signal, 0, used, axis=1), b.constant([0, -1, hop]))
    parts = [b.slice(hops, i, b.op("Add", last, b.constant(i + 1)), axis=1, step=step) for i in range(width)]
    return b.op("Concat", *parts, axis=2)


def dft(features: Features) -> np.ndarray:
    """(frame_length, 2 · bins): samples in [-1, 1] less their mean to a spectrum, real parts before imaginary ones."""
    matrix = spectrum_matrix(features.frame_length, features.window, features.preemphasis)
    return features.sample_scale * matrix


def mel(features: Features, sample_rate: int) -> np.ndarray:
    """(bins, num_mel_bins): power spectrum to energies, of Kaldi's features."""
    size = fft_size(features.frame_length)
    return fbank.mel_banks(features.num_mel_bins, sample_rate, size, features.low_freq, features.high_freq)


def slaney_banks(features: Features, sample_rate: int) -> np.ndarray:
    """(bins, num_mel_bins): power spectrum, Nyquist's bin included, to energies, of NeMo's features."""
    top = features.high_freq if features.high_freq > 0 else sample_rate / 2 + features.high_freq
    return mel_banks(features.num_mel_bins, sample_rate, fft_size(features.frame_length), features.low_freq, top)
