"""Speech of any length, made of the shipped demo clips: the same seed gives the same waveforms everywhere."""

from functools import cache

import numpy as np
import numpy.typing as npt

from tritone.audio import read_audio
from tritone.demo.clips import read_clips

Waveform = npt.NDArray[np.float32]


def speech(num_samples: int, sample_rate: int, rng: np.random.Generator) -> Waveform:
    """Cut `num_samples` from the clips, one after the other in a loop, from a random place on."""
    tape = _tape(sample_rate)
    start = int(rng.integers(len(tape)))
    return np.take(tape, range(start, start + num_samples), mode="wrap")


def utterances(
    count: int, sample_rate: int, *, shortest_s: float, longest_s: float, seed: int = 0, even_octaves: bool = False
) -> list[Waveform]:
    """Waveforms of random lengths between two limits in seconds.

    Args:
        even_octaves: draw the logarithm of the length evenly, so that each octave has its share, not the length.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.uniform(np.log(shortest_s), np.log(longest_s), count) if even_octaves else None
    lengths = np.exp(drawn) if drawn is not None else rng.uniform(shortest_s, longest_s, count)
    return [speech(round(length * sample_rate), sample_rate, rng) for length in lengths]


def total_s(waveforms: list[Waveform], sample_rate: int) -> float:
    """Audio seconds of all waveforms."""
    return sum(len(waveform) for waveform in waveforms) / sample_rate


@cache
def _tape(sample_rate: int) -> Waveform:
    return np.concatenate([read_audio(clip.path, sample_rate) for clip in read_clips()])
