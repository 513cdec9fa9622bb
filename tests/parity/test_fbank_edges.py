"""Features whose frames are centred, as icefall's are, against lhotse, kaldi-native-fbank and themselves in pieces."""

import math

import kaldi_native_fbank as knf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from parity.golden_cases import Case, load
from tritone.families.layers.fbank import Fbank

PADDING = math.log(1e-10)
ATOL = 1e-3  # lhotse and kaldi-native-fbank differ by 5e-4 among themselves


def front_end(**options: float) -> Fbank:
    return Fbank(**{"snip_edges": False, "sample_scale": 1.0, "high_freq": -400.0, "padding_value": PADDING} | options)


FBANK = front_end()
SIGNAL = (np.random.default_rng(4).normal(0, 0.1, 16000) * np.linspace(0.01, 1, 16000) + 0.02).astype(np.float32)


def reference(waveform: np.ndarray, rate: int = 16000, bins: int = 80) -> np.ndarray:
    options = knf.FbankOptions()
    options.frame_opts.samp_freq = rate
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = False
    options.mel_opts.num_bins = bins
    options.mel_opts.high_freq = -400
    options.energy_floor = 0
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(rate, waveform.tolist())
    computer.input_finished()
    frames = [computer.get_frame(index) for index in range(computer.num_frames_ready)]
    return np.stack(frames) if frames else np.zeros((0, bins), np.float32)


def batch_of(waveforms: list[np.ndarray], filler: float = 0.7) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded with what must not matter."""
    rows = torch.full((len(waveforms), max(map(len, waveforms))), filler)
    for row, waveform in zip(rows, waveforms, strict=True):
        row[: len(waveform)] = torch.from_numpy(waveform)
    return rows, torch.tensor([len(each) for each in waveforms])


@pytest.mark.parametrize("array", ["lhotse_fbank", "knf_icefall"])
def test_golden_recordings_in_one_batch(icefall_fbank_case: Case, array: str) -> None:
    arrays = load(icefall_fbank_case.path / "fbank.npz")
    count = sum(name.startswith("wave") for name in arrays)
    assert count
    feats, frames = FBANK(*batch_of([arrays[f"wave{index}"] for index in range(count)]))
    for index in range(count):
        expected = arrays[f"{array}{index}"]
        assert frames[index] == len(expected)
        assert np.abs(feats[index, : len(expected)].numpy() - expected).max() <= ATOL
        assert (feats[index, len(expected) :] == np.float32(PADDING)).all(), "beyond a row's frames is padding"


def test_signals_of_every_remainder_equal_kaldi_native_fbank() -> None:
    """From none to a few frames, where one sample may be mirrored at both ends, and over all of n mod 160."""
    lengths = [0, 1, 79, 80, 81, 119, 120, 121, 199, 200, 201, 239, 240, 241, 279, 280, 281, 399, 400, 401]
    lengths += [4000 + 7 * step for step in range(23)] + [160 * 40 + rest for rest in (-81, -80, -79, 0, 79, 80, 81)]
    feats, frames = FBANK(*batch_of([SIGNAL[:length] for length in lengths]))
    for row, length in enumerate(lengths):
        expected = reference(SIGNAL[:length])
        assert frames[row] == len(expected)
        assert np.abs(feats[row, : len(expected)].numpy() - expected).max(initial=0) <= ATOL


def test_other_rates_have_other_edges() -> None:
    narrow = front_end(sample_rate=8000, frame_length=200, frame_shift=80, num_mel_bins=40)
    assert (narrow.lead_samples, FBANK.lead_samples) == (60, 120)
    waveforms = [SIGNAL[:length] for length in (40, 333, 8000)]
    feats, frames = narrow(*batch_of(waveforms))
    for row, waveform in enumerate(waveforms):
        expected = reference(waveform, 8000, 40)
        assert np.abs(feats[row, : int(frames[row])].numpy() - expected).max() <= ATOL


WHOLE_LENGTHS = st.lists(st.integers(0, 5000), min_size=1, max_size=4)


@settings(max_examples=examples(20))
@given(lengths=WHOLE_LENGTHS, window_frames=st.integers(3, 30), shift_frames=st.integers(2, 30))
def test_windows_of_streams_give_the_frames_of_the_whole(
    lengths: list[int], window_frames: int, shift_frames: int
) -> None:
    """All streams side by side, each beginning a step after the other; windows beyond an end hold no frame."""
    shift_frames = min(shift_frames, window_frames)
    wholes, counts = FBANK(*batch_of([SIGNAL[:length] for length in [*lengths, 5000]]))
    window, shift, lead = FBANK.window_samples(window_frames), shift_frames * 160, FBANK.lead_samples
    signals = [np.pad(SIGNAL[:length], (lead, 0)) for length in lengths]
    for call in range(max(counts.tolist()) // shift_frames + len(lengths)):
        steps = [call - row for row in range(len(lengths))]
        pieces = [x[max(0, step) * shift :][:window] for x, step in zip(signals, steps, strict=True)]
        rows, num_samples = batch_of([*pieces, np.zeros(window, np.float32)])
        feats, frames = FBANK(rows, num_samples, torch.tensor([step == 0 for step in [*steps, 0]]))
        assert feats.shape[1] == window_frames
        for row, step in enumerate(steps):
            if step >= 0:
                expected = wholes[row, : counts[row]][step * shift_frames :][:window_frames]
                assert frames[row] == len(expected)
                assert torch.allclose(feats[row, : len(expected)], expected, atol=1e-4)
                assert (feats[row, len(expected) :] == np.float32(PADDING)).all()


def count(samples: int) -> int:
    return int(FBANK.num_frames(torch.tensor(samples)))


@given(samples=st.integers(0, 3000), window=st.integers(0, 60), pad=st.integers(1, 40))
def test_flushing_in_samples_is_flushing_in_frames(samples: int, window: int, pad: int) -> None:
    frames = count(samples)
    assert (window * 160 < samples + FBANK.flush_samples(pad)) == (window < frames + pad)


def test_least_samples_give_just_one_more_frame() -> None:
    for frames in (1, 7, 9):
        least = FBANK.least_samples(frames)
        assert [count(least - 1), count(least)] == [frames - 1, frames]
    assert Fbank().least_samples(7) == Fbank().window_samples(7) == 6 * 160 + 400
