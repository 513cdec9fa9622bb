"""What speaker training reads: voices at several speeds, noises and rooms, decoded once and kept in one file.

    python -m training.speaker.material --packs training/data/speaker/*.zip --output /tmp/material.pt

Every speed of a voice counts as a voice of its own, because playing faster moves the pitch and the formants.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.augment import AugmentConfig, Augmenter, change_speed
from training.corpus import SAMPLE_RATE, Corpus, Recording
from training.files import save_torch

SPEEDS = (1.0, 0.9, 1.1)
ROOM_SAMPLES = 8000  # of an impulse response, 0.5 s
# Speakers that are left out of training while settings are chosen, beside the development parts.
HELD_OUT_SHARE = {"an4": 0.15, "librispeech_mini": 0.15, "speech_commands": 0.04}
ONE_PERSON = {"an4/mdcs2": "an4/mdcs"}  # AN4's description says "perhaps one person"


@dataclass(frozen=True, kw_only=True)
class Material:
    """`samples` (all,) int16 hold what `bounds` (speeds, recordings, 2) says: where a recording begins and ends.

    `recordings` are voices alone. `noises`: stretches of unit power, of which the i-th is to be heard with probability
    `noise_shares[i]`; the first is white. `rooms` (rooms, samples) float32.
    """

    recordings: list[Recording]
    speeds: tuple[float, ...]
    samples: Tensor
    bounds: Tensor
    noises: list[Tensor]
    noise_shares: list[float]
    rooms: Tensor

    def waveform(self, index: int, speed: int = 0) -> Tensor:
        """A recording, (samples,) int16."""
        begin, end = self.bounds[speed, index].tolist()
        return self.samples[begin:end]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        values: dict[str, Any] = {**vars(self), "recordings": [asdict(recording) for recording in self.recordings]}
        save_torch(values, path)

    @classmethod
    def load(cls, path: Path) -> Material:
        values = torch.load(path, weights_only=True)
        return cls(**{**values, "recordings": [Recording(**row) for row in values["recordings"]]})


def make_material(
    packs: Iterable[Path], *, speeds: Sequence[float] = SPEEDS, rooms: int = 300, seed: int = 2026
) -> Material:
    """Decode packs that `training.speaker.pack` wrote."""
    corpus = Corpus.load(packs)
    augmenter = Augmenter(_training(corpus), AugmentConfig(room_count=rooms), seed)
    chosen = [index for index, recording in enumerate(corpus.recordings) if recording.corpus != "noise"]

    def at_speeds(index: int) -> list[np.ndarray]:
        waveform = corpus.waveform(index)
        if corpus.recordings[index].corpus == "speech_commands":
            # Words of one second are silence for half of it.
            begin, end = corpus.voiced[index]
            waveform = waveform[begin:end]
        clean = waveform.astype(np.float32)
        return [waveform if speed == 1.0 else _to_int16(change_speed(clean, speed)) for speed in speeds]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        versions = list(pool.map(at_speeds, chosen))
    series = [versions[place][speed] for speed in range(len(speeds)) for place in range(len(chosen))]
    ends = np.cumsum([len(waveform) for waveform in series], dtype=np.int64)
    begins = np.concatenate([[0], ends[:-1]])
    shares = np.diff(augmenter.noises.cumulative, prepend=0.0)
    responses = torch.zeros(len(augmenter.rooms), ROOM_SAMPLES)
    for row, response in zip(responses, augmenter.rooms, strict=True):
        row[: len(response[:ROOM_SAMPLES])] = torch.from_numpy(response[:ROOM_SAMPLES].copy())
    return Material(
        recordings=[corpus.recordings[index] for index in chosen],
        speeds=tuple(speeds),
        samples=torch.from_numpy(np.concatenate(series)),
        bounds=torch.from_numpy(np.stack([begins, ends], axis=1)).reshape(len(speeds), len(chosen), 2),
        noises=[torch.from_numpy(pool.astype(np.float32)) for _, pool in augmenter.noises.pools],
        noise_shares=[float(share) for share in shares],
        rooms=responses,
    )


def speaker_of(recording: Recording) -> str:
    """The person: `corpus/name`."""
    return ONE_PERSON.get(recording.speaker, recording.speaker)


def is_development(recording: Recording, *, hold_out: bool) -> bool:
    """Whether a recording's speaker serves for development: the development parts, with `hold_out` a few more."""
    if recording.split == "dev":
        return True
    if not hold_out:
        return False
    digest = hashlib.sha256(f"held out: {speaker_of(recording)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < HELD_OUT_SHARE.get(recording.corpus, 0.0)


def _training(corpus: Corpus) -> Corpus:
    """The part that noises may be made of: babble has to come from voices of training."""
    indices = [
        index for index, recording in enumerate(corpus.recordings) if not is_development(recording, hold_out=True)
    ]
    return Corpus([corpus.recordings[index] for index in indices], [corpus.waveform(index) for index in indices])


def _to_int16(waveform: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(waveform), -32768, 32767).astype(np.int16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--speeds", type=float, nargs="+", default=SPEEDS, help="the first has to be 1")
    arguments = parser.parse_args()
    started = time.monotonic()
    material = make_material(arguments.packs, speeds=arguments.speeds)
    material.save(arguments.output)
    hours, seconds = len(material.samples) / SAMPLE_RATE / 3600, time.monotonic() - started
    print(f"{arguments.output}: {len(material.recordings)} recordings, {hours:.2f} h with all speeds, {seconds:.0f} s")


if __name__ == "__main__":
    main()
