"""A pack: one zip of compressed recordings with an index, and the same recordings decoded into one int16 array.

    recordings -> write_pack() -> demo.zip (index.jsonl + audio/*.opus) -> Corpus.load() -> waveform(i)

Ogg Opus keeps the pack small enough to carry to a training machine. Everything in a `Corpus` is mono, 16 kHz.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
import soxr

SAMPLE_RATE = 16000
SERVED_TAIL_S = 0.2  # digital silence that serving appends to every utterance (`--tail-padding-ms` of the export)  # Hz
INDEX_NAME = "index.jsonl"
OPUS_MIN_BITRATE, OPUS_MAX_BITRATE = 6_000, 256_000  # bit/s for one channel at compression levels 1 and 0
VOICED_FRAME = 160  # samples, 10 ms: resolution of the voiced span
VOICED_RANGE_DB = 35.0  # frames this far below the loudest one count as silence
VOICED_MARGIN = 5  # frames kept on either side, so that weak consonants survive


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One recording of a pack. `num_samples` counts samples at `sample_rate`, the rate it is stored with."""

    id: str
    text: str  # lower-case words; "" when nobody speaks
    speaker: str
    corpus: str
    split: str
    sample_rate: int
    num_samples: int
    gender: str = ""  # "f" or "m" where the corpus says so


def opus_compression_level(bitrate: int) -> float:
    """Translate bit/s into libsndfile's compression level (0 = largest, 1 = smallest)."""
    if not OPUS_MIN_BITRATE <= bitrate <= OPUS_MAX_BITRATE:
        raise ValueError(f"bitrate must be {OPUS_MIN_BITRATE}..{OPUS_MAX_BITRATE} bit/s, got {bitrate}")
    return 1.0 - (bitrate - OPUS_MIN_BITRATE) / (OPUS_MAX_BITRATE - OPUS_MIN_BITRATE)


def encode_opus(waveform: np.ndarray, sample_rate: int, bitrate: int) -> bytes:
    """Encode mono samples (any dtype soundfile takes) as Ogg Opus."""
    buffer = io.BytesIO()
    level = opus_compression_level(bitrate)
    soundfile.write(buffer, waveform, sample_rate, format="OGG", subtype="OPUS", compression_level=level)
    return buffer.getvalue()


def write_pack(path: Path, items: Iterable[tuple[Recording, bytes]]) -> int:
    """Write recordings and their encoded audio; returns how many there were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    # Stored, not deflated: the audio is compressed already.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for number, (recording, audio) in enumerate(items):
            name = f"audio/{number:05d}.opus"
            archive.writestr(zipfile.ZipInfo(name), audio)
            rows.append(json.dumps({**asdict(recording), "file": name}))
        info = zipfile.ZipInfo(INDEX_NAME)
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, "\n".join(rows) + "\n")
    return len(rows)


def voiced_span(waveform: np.ndarray) -> tuple[int, int]:
    """First and one-past-last sample of what is heard: frames within 35 dB of the loudest, and 50 ms around them."""
    num_frames = len(waveform) // VOICED_FRAME
    if num_frames == 0:
        return 0, len(waveform)
    frames = waveform[: num_frames * VOICED_FRAME].reshape(num_frames, VOICED_FRAME).astype(np.float32)
    energy = np.mean((frames - frames.mean()) ** 2, axis=1)
    # The floor follows the recording's own background, else a noisy clip would never be trimmed.
    background = np.percentile(energy, 10) * 4.0
    threshold = max(energy.max() * 10.0 ** (-VOICED_RANGE_DB / 10.0), min(background, energy.max() * 0.05))
    heard = np.flatnonzero(energy >= threshold)
    begin = max(0, int(heard[0]) - VOICED_MARGIN) * VOICED_FRAME
    end = min(len(waveform), (int(heard[-1]) + 1 + VOICED_MARGIN) * VOICED_FRAME)
    return begin, end


class Corpus:
    """Decoded recordings: `samples` holds all of them end to end, int16, 16 kHz.

    `recordings[i]` says what `waveform(i)` is (its `num_samples` count 16 kHz samples here), and `voiced[i]` is its
    voiced span relative to its own beginning.
    """

    def __init__(self, recordings: list[Recording], waveforms: list[np.ndarray]) -> None:
        lengths = [len(waveform) for waveform in waveforms]
        self.recordings = [
            replace(recording, sample_rate=SAMPLE_RATE, num_samples=length)
            for recording, length in zip(recordings, lengths, strict=True)
        ]
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        self.samples = np.concatenate(waveforms) if waveforms else np.zeros(0, np.int16)
        self.voiced = np.array([voiced_span(waveform) for waveform in waveforms], np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.recordings)

    def waveform(self, index: int) -> np.ndarray:
        """Recording `index` as int16, a view."""
        return self.samples[self.offsets[index] : self.offsets[index + 1]]

    @classmethod
    def load(cls, paths: Iterable[Path], splits: Iterable[str] | None = None) -> Corpus:
        """Decode packs into memory, all splits or only those named.

        Raises:
            ValueError: nothing in the packs belongs to `splits`.
        """
        paths, wanted = list(paths), None if splits is None else set(splits)
        recordings: list[Recording] = []
        waveforms: list[np.ndarray] = []
        for path in paths:
            with zipfile.ZipFile(path) as archive:
                rows = [json.loads(line) for line in archive.read(INDEX_NAME).decode().splitlines()]
                rows = [row for row in rows if wanted is None or row["split"] in wanted]
                audio = [archive.read(row.pop("file")) for row in rows]
            recordings += [Recording(**row) for row in rows]
            # libsndfile works outside the interpreter lock, so threads are enough.
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                waveforms += pool.map(_decode, audio, chunksize=16)
        if not recordings:
            raise ValueError(f"no recordings of {sorted(wanted or [])} in {[str(path) for path in paths]}")
        return cls(recordings, waveforms)


def _decode(audio: bytes) -> np.ndarray:
    waveform, rate = soundfile.read(io.BytesIO(audio), dtype="float32")
    return to_int16(waveform, rate)


def to_int16(waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """Mono float samples in [-1, 1] at any rate to int16 at 16 kHz."""
    if sample_rate != SAMPLE_RATE:
        waveform = soxr.resample(waveform, sample_rate, SAMPLE_RATE)
    return np.clip(np.round(waveform * 32768.0), -32768, 32767).astype(np.int16)
