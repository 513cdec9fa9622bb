"""What is recognised: speech of the shipped clips, cut to lengths, every cut another place.

workload("10", 16000)  ->  64 utterances of ten seconds        workload("librispeech", 16000)  ->  unsorted lengths
"""

import numpy as np
import numpy.typing as npt

from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload, speech_workload

LIBRISPEECH = "librispeech"
COUNT = 256
SHORTEST_S, LONGEST_S = 1.3, 35.0


def librispeech_lengths(count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Lengths in seconds as LibriSpeech has them: a hump of short ones, a peak at 15 s, few up to 35 s; mean 12.3."""
    kind = rng.choice(3, count, p=(0.45, 0.50, 0.05))
    short = rng.lognormal(np.log(6.5), 0.65, count)
    usual = rng.normal(14.8, 1.2, count)
    long = rng.uniform(16.5, LONGEST_S, count)
    return np.clip(np.choose(kind, (short, usual, long)), SHORTEST_S, LONGEST_S)


def workload(kind: str, sample_rate: int, seed: int = 0) -> Workload:
    """A pool of utterances: `LIBRISPEECH`, or any kind of `tritone bench`."""
    tape = Tape.shipped(sample_rate)
    if kind != LIBRISPEECH:
        return speech_workload(kind, tape, seed=seed)
    rng = np.random.default_rng(seed)
    lengths = librispeech_lengths(COUNT, rng)
    cuts = [tape.cut(round(float(length) * sample_rate), rng) for length in lengths]
    return Workload(seconds=LIBRISPEECH, sample_rate=sample_rate, waveforms=cuts)
