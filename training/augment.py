"""What happens to a training waveform on its way: speed, room, noise, band, level.

    clean speech (samples,) float32  ->  augmented (samples,) int16, 16 kHz

Everything is plain numpy on one core, about 2 ms for 3 s of audio, and draws only from the generator it is given.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from training.corpus import SAMPLE_RATE, Corpus

SOUND_SPEED = 343.0  # m/s
MU = 255.0  # G.711's companding constant
POOL_SECONDS = 60  # length of each pool of made-up noise
BAND_EDGE = 250.0  # Hz, width of the low-pass filter's slope
# Lengths whose FFT is fast: products of 2, 3 and 5.
FAST_LENGTHS = sorted(
    2**a * 3**b * 5**c for a in range(20) for b in range(4) for c in range(3) if 2**a * 3**b * 5**c < 2**20
)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Probabilities are per utterance; pairs are ranges of a uniform draw."""

    speed: float = 0.7
    speed_range: tuple[float, float] = (0.9, 1.1)
    room: float = 0.35
    room_count: int = 200
    rt60_range_s: tuple[float, float] = (0.1, 0.6)
    noise: float = 0.6
    snr_range_db: tuple[float, float] = (5.0, 25.0)
    gain_range_db: tuple[float, float] = (-10.0, 10.0)
    quiet: float = 0.15  # further attenuation, for voices recorded 20 dB below the others
    quiet_range_db: tuple[float, float] = (-22.0, -8.0)
    floor: float = 0.7  # a faint noise under everything, or digital silence becomes a cue
    floor_range_dbfs: tuple[float, float] = (-90.0, -50.0)
    narrow_band: float = 0.5
    cutoff_range_hz: tuple[float, float] = (3400.0, 4000.0)
    mu_law: float = 0.5  # of narrow-band utterances


def change_speed(waveform: np.ndarray, factor: float) -> np.ndarray:
    """Play faster (factor > 1) or slower, pitch included; cubic interpolation, len(waveform) / factor samples."""
    length = int(len(waveform) / factor)
    if length < 2 or factor == 1.0:
        return waveform
    times = np.arange(length, dtype=np.float64) * factor
    whole = times.astype(np.int32)
    f = (times - whole).astype(np.float32)
    padded = np.pad(waveform, (1, 3))
    a, b, c, d = padded[whole], padded[whole + 1], padded[whole + 2], padded[whole + 3]
    return b + 0.5 * f * (c - a + f * (2.0 * a - 5.0 * b + 4.0 * c - d + f * (3.0 * (b - c) + d - a)))


def fast_length(length: int) -> int:
    """Smallest length ≥ `length` with a fast FFT."""
    return FAST_LENGTHS[bisect.bisect_left(FAST_LENGTHS, length)]


def low_pass(waveform: np.ndarray, cutoff_hz: float) -> np.ndarray:
    """Remove what lies above `cutoff_hz`, with a cosine slope of 250 Hz above it."""
    size = fast_length(len(waveform) + 256)
    spectrum = np.fft.rfft(waveform, size)
    frequency = np.arange(len(spectrum), dtype=np.float32) * (SAMPLE_RATE / size)
    slope = np.clip((frequency - cutoff_hz) / BAND_EDGE, 0.0, 1.0)
    spectrum *= 0.5 + 0.5 * np.cos(np.pi * slope)
    return np.fft.irfft(spectrum, size)[: len(waveform)].astype(np.float32)


def convolve(waveform: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Convolve and keep the waveform's length."""
    size = fast_length(len(waveform) + len(response))
    spectrum = np.fft.rfft(waveform, size) * np.fft.rfft(response, size)
    return np.fft.irfft(spectrum, size)[: len(waveform)].astype(np.float32)


def mu_law_table() -> np.ndarray:
    """What each 16-bit value (indexed as unsigned) becomes after 8-bit mu-law coding."""
    value = np.arange(65536).astype(np.uint16).view(np.int16) / 32768.0
    code = np.round(127.0 * np.log1p(MU * np.abs(value)) / np.log1p(MU)) / 127.0
    decoded = np.sign(value) * np.expm1(code * np.log1p(MU)) / MU
    return np.clip(np.round(decoded * 32768.0), -32768, 32767).astype(np.int16)


def room_response(rng: np.random.Generator, rt60_s: float) -> np.ndarray:
    """Impulse response of a random shoebox room by the image method, its direct path first and of height 1.

    Source: Allen and Berkley, Image method for efficiently simulating small-room acoustics, JASA 65, 1979; wall
    reflection from RT60 by Eyring's formula.
    """
    size = rng.uniform([2.5, 2.5, 2.3], [8.0, 7.0, 3.5])
    source, microphone = (rng.uniform(0.3, size - 0.3) for _ in range(2))
    # Most speakers are near their microphone.
    microphone = source + (microphone - source) * min(1.0, rng.uniform(0.3, 2.5) / np.linalg.norm(microphone - source))
    volume, surface = np.prod(size), 2.0 * (size[0] * size[1] + size[1] * size[2] + size[0] * size[2])
    reflection = np.sqrt(np.exp(-0.161 * volume / (surface * rt60_s)))
    reach = SOUND_SPEED * min(rt60_s, 0.35)  # metres; later images are more than 30 dB down
    counts = np.minimum(np.ceil(reach / (2.0 * size)).astype(int), 12)
    # Along one axis: image 2nL + s after |2n| reflections, 2nL - s after |2n - 1|.
    axes = []
    for axis in range(3):
        n = np.arange(-counts[axis], counts[axis] + 1)
        places = np.concatenate([2 * n * size[axis] + source[axis], 2 * n * size[axis] - source[axis]])
        bounces = np.concatenate([np.abs(2 * n), np.abs(2 * n - 1)])
        axes.append(((places - microphone[axis]).astype(np.float32), bounces))
    (x, i), (y, j), (z, k) = axes
    distance = np.sqrt((x**2)[:, None, None] + (y**2)[None, :, None] + (z**2)[None, None, :]).ravel()
    bounces = (i[:, None, None] + j[None, :, None] + k[None, None, :]).ravel()
    near = distance < reach
    distance, bounces = distance[near], bounces[near]
    delay = np.round((distance - distance.min()) / SOUND_SPEED * SAMPLE_RATE).astype(np.int64)
    response = np.bincount(delay, weights=reflection**bounces / np.maximum(distance, 0.1))
    return (response / response[0]).astype(np.float32)


def unit_power(waveform: np.ndarray) -> np.ndarray:
    """Scale to a mean square of 1."""
    return (waveform / max(1e-9, float(np.sqrt(np.mean(np.square(waveform, dtype=np.float64)))))).astype(np.float32)


class NoiseBank:
    """Long stretches of noise of several kinds, each of unit power, to cut from.

    Recorded background and babble come from `corpus` (its "noise" and "librispeech_mini" recordings) and may be missing
    there; white, pink and brown noise are made up.
    """

    def __init__(self, corpus: Corpus, seed: int) -> None:
        rng = np.random.default_rng([seed, 1])
        samples = POOL_SECONDS * SAMPLE_RATE
        self.pools: list[tuple[float, np.ndarray]] = []  # weight, waveform
        frequency = np.maximum(np.fft.rfftfreq(samples, 1.0 / SAMPLE_RATE), 20.0)
        spectrum = np.fft.rfft(rng.standard_normal(samples))
        for weight, power in ((0.25, 0.0), (0.2, 0.5), (0.1, 1.0)):
            self.pools.append((weight, unit_power(np.fft.irfft(spectrum / frequency**power, samples))))
        self.white = self.pools[0][1]
        silent: list[np.ndarray] = []
        voices: list[np.ndarray] = []
        background: list[np.ndarray] = []
        for index, recording in enumerate(corpus.recordings):
            waveform = corpus.waveform(index)
            if recording.corpus == "noise":
                (background if len(waveform) > 10 * SAMPLE_RATE else silent).append(waveform)
            elif recording.corpus == "librispeech_mini":
                voices.append(waveform)
        self.pools += [(0.35 / len(background), unit_power(waveform)) for waveform in background]
        if silent:
            # Short recordings of nothing in particular, end to end and each as loud as the next.
            self.pools.append((0.1, np.concatenate([unit_power(waveform) for waveform in silent])))
        if voices:
            babble = np.zeros(2 * samples, np.float32)
            for _ in range(int(rng.integers(5, 9))):
                order = rng.permutation(len(voices))
                stream = np.concatenate([unit_power(voices[index]) for index in order[:20]])
                babble += np.resize(stream, len(babble))
            self.pools.append((0.25, unit_power(babble)))
        weights = np.array([weight for weight, _ in self.pools])
        self.cumulative = np.cumsum(weights / weights.sum())

    def cut(self, rng: np.random.Generator, length: int) -> np.ndarray:
        """`length` samples of one kind of noise."""
        pool = self.pools[min(int(np.searchsorted(self.cumulative, rng.random())), len(self.pools) - 1)][1]
        return _cut(pool, rng, length)

    def cut_white(self, rng: np.random.Generator, length: int) -> np.ndarray:
        return _cut(self.white, rng, length)


def _cut(pool: np.ndarray, rng: np.random.Generator, length: int) -> np.ndarray:
    if length > len(pool):
        pool = np.resize(pool, length)
    begin = int(rng.integers(0, len(pool) - length + 1))
    return pool[begin : begin + length]


def speech_power(waveform: np.ndarray) -> float:
    """Mean square of the louder half of the 20 ms frames, so that pauses do not count."""
    frames = len(waveform) // 320
    if frames == 0:
        return float(np.mean(np.square(waveform))) if len(waveform) else 0.0
    shaped = waveform[: frames * 320].reshape(frames, 320)
    energy = np.einsum("ij,ij->i", shaped, shaped) / 320.0
    return float(np.mean(energy[energy >= np.median(energy)]))


class Augmenter:
    """Applies the chain. Rooms and noise pools are made once, before worker processes fork."""

    def __init__(self, corpus: Corpus, config: AugmentConfig, seed: int) -> None:
        self.config = config
        self.noises = NoiseBank(corpus, seed)
        rng = np.random.default_rng([seed, 2])
        self.rooms = [room_response(rng, rng.uniform(*config.rt60_range_s)) for _ in range(config.room_count)]
        self.mu_law = mu_law_table()

    def draw_speed(self, rng: np.random.Generator) -> float:
        """Speed factor of an utterance. Drawn apart, because it decides the utterance's length."""
        return float(rng.uniform(*self.config.speed_range)) if rng.random() < self.config.speed else 1.0

    def __call__(self, waveform: np.ndarray, rng: np.random.Generator, *, narrow: bool) -> np.ndarray:
        """Room, noise, level and band of clean speech, length unchanged.

        Args:
            waveform: (samples,) float32 in [-1, 1]; all zeros for an utterance of noise alone.
            narrow: the recording holds nothing above 4 kHz already.
        """
        config = self.config
        power = speech_power(waveform)
        if power > 0.0:
            if rng.random() < config.room and self.rooms:
                waveform = convolve(waveform, self.rooms[int(rng.integers(len(self.rooms)))])
                power = speech_power(waveform)
            if rng.random() < config.noise:
                snr_db = rng.uniform(*config.snr_range_db)
                level = np.float32(np.sqrt(power * 10.0 ** (-snr_db / 10.0)))
                waveform = waveform + level * self.noises.cut(rng, len(waveform))
            gain_db = rng.uniform(*config.gain_range_db)
            if rng.random() < config.quiet:
                gain_db += rng.uniform(*config.quiet_range_db)
            waveform = waveform * np.float32(10.0 ** (gain_db / 20.0))
        else:
            # Noise alone, from barely there to loud; in one case of eight nothing at all.
            level_db = rng.uniform(-80.0, -15.0) if rng.random() < 0.875 else -200.0
            waveform = np.float32(10.0 ** (level_db / 20.0)) * self.noises.cut(rng, len(waveform))
        narrow = narrow or rng.random() < config.narrow_band
        coded = narrow and rng.random() < config.mu_law
        cutoff_hz = rng.uniform(*config.cutoff_range_hz)
        floor_first = rng.random() < 0.5  # the line's own noise is band-limited, the receiver's is not
        if floor_first:
            waveform = self._add_floor(waveform, rng)
        if narrow:
            waveform = low_pass(waveform, cutoff_hz)
        if not floor_first:
            waveform = self._add_floor(waveform, rng)
        peak = float(np.max(np.abs(waveform), initial=0.0))
        if peak > 1.0 and rng.random() < 0.9:  # a few recordings do clip
            waveform = waveform * np.float32(0.99 / peak)
        samples = np.clip(np.rint(waveform * 32768.0), -32768.0, 32767.0).astype(np.int16)
        return self.mu_law[samples.view(np.uint16)] if coded else samples

    def _add_floor(self, waveform: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() >= self.config.floor:
            return waveform
        level = np.float32(10.0 ** (rng.uniform(*self.config.floor_range_dbfs) / 20.0))
        return waveform + level * self.noises.cut_white(rng, len(waveform))
