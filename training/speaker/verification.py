"""Pairs of recordings that are of one speaker or of two, and the equal error rate of a model on them.

development speakers -> dev_sets() -> named sets of waveforms and pairs;  embeddings (n, dim) -> error rate
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.corpus import SAMPLE_RATE
from training.speaker.material import Material, speaker_of

PIECE_S = 4.0  # length of what LibriSpeech's single recordings are cut into
WORDS = 3  # of Speech Commands in one waveform
BATCH_SAMPLES = 40 * 60 * SAMPLE_RATE // 10  # padded, of a batch of embeddings

Embed = Callable[[Sequence[Tensor]], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class VerificationSet:
    """`pairs` (n, 2) index `waveforms` (samples,) int16; `targets` (n,) bool says which are of one speaker."""

    waveforms: list[Tensor]
    speakers: list[str]
    pairs: np.ndarray
    targets: np.ndarray


def all_pairs(waveforms: list[Tensor], speakers: list[str], genders: list[str]) -> VerificationSet:
    """Every pair within a gender."""
    first, second = np.triu_indices(len(waveforms), 1)
    gender, speaker = np.array(genders), np.array(speakers)
    same = gender[first] == gender[second]
    pairs = np.stack([first[same], second[same]], axis=1)
    targets = speaker[pairs[:, 0]] == speaker[pairs[:, 1]]
    return VerificationSet(waveforms=waveforms, speakers=speakers, pairs=pairs, targets=targets)


def dev_sets(material: Material, indices: Sequence[int]) -> dict[str, VerificationSet]:
    """Sets of each corpus among the recordings `indices`.

    AN4's recordings as they are; LibriSpeech's, of which there is one a speaker, in pieces; three words of Speech
    Commands at a time.
    """
    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index in indices:
        recording = material.recordings[index]
        groups[recording.corpus][speaker_of(recording)].append(index)
    sets = {}
    for corpus, speakers in sorted(groups.items()):
        waveforms: list[Tensor] = []
        names: list[str] = []
        genders: list[str] = []
        for name, chosen in sorted(speakers.items()):
            parts = _parts(corpus, [material.waveform(index) for index in chosen])
            waveforms += parts
            names += [name] * len(parts)
            genders += [material.recordings[chosen[0]].gender] * len(parts)
        made = all_pairs(waveforms, names, genders)
        if made.targets.any() and not made.targets.all():
            sets[corpus] = made
    return sets


def _parts(corpus: str, waveforms: list[Tensor]) -> list[Tensor]:
    if corpus == "librispeech_mini":
        size = int(PIECE_S * SAMPLE_RATE)
        return [piece for whole in waveforms for piece in whole.split(size) if len(piece) == size]
    if corpus == "speech_commands":
        count = len(waveforms) // WORDS
        return [torch.cat(waveforms[place::count]) for place in range(count)]
    return waveforms


def equal_error_rate(scores: np.ndarray, targets: np.ndarray) -> float:
    """Where misses are as frequent as false alarms, between the two nearest thresholds by a straight line."""
    order = np.argsort(scores, kind="stable")
    target = targets[order]
    misses = np.cumsum(target) / max(1, target.sum())
    alarms = 1.0 - np.cumsum(~target) / max(1, (~target).sum())
    place = int(np.argmax(misses >= alarms))
    if place == 0:
        return float(misses[0])
    before, after = alarms[place - 1] - misses[place - 1], misses[place] - alarms[place]
    share = before / (before + after) if before + after > 0 else 0.0
    return float(misses[place - 1] + share * (misses[place] - misses[place - 1]))


def cosines(embeddings: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(n,) cosines of the pairs (n, 2)."""
    unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-9)
    return np.einsum("ij,ij->i", unit[pairs[:, 0]], unit[pairs[:, 1]])


def evaluate(sets: Mapping[str, VerificationSet], embed: Embed, mean: np.ndarray | None = None) -> dict[str, float]:
    """Equal error rate of each set; `mean` (dim,) is subtracted from the embeddings first."""
    rates = {}
    for name, made in sets.items():
        embeddings = embed(made.waveforms)
        centred = embeddings if mean is None else embeddings - mean
        rates[name] = equal_error_rate(cosines(centred, made.pairs), made.targets)
    return rates


@torch.no_grad()
def embed_waveforms(
    front_end: torch.nn.Module, network: torch.nn.Module, waveforms: Sequence[Tensor], device: torch.device
) -> np.ndarray:
    """Embeddings (n, dim) float32 of waveforms (samples,) int16 of any lengths."""
    order = sorted(range(len(waveforms)), key=lambda index: len(waveforms[index]))
    results: dict[int, np.ndarray] = {}
    while order:
        longest = len(waveforms[order[-1]])
        count = max(1, BATCH_SAMPLES // longest)
        batch, order = order[-count:], order[:-count]
        padded = torch.zeros(len(batch), longest)
        for row, index in zip(padded, batch, strict=True):
            row[: len(waveforms[index])] = waveforms[index].float() / 32768.0
        lengths = torch.tensor([len(waveforms[index]) for index in batch])
        features, frames = front_end(padded.to(device), lengths.to(device))
        results.update(zip(batch, network(features, frames).float().cpu().numpy(), strict=True))
    return np.stack([results[index] for index in range(len(waveforms))])


def read_trials(path: Path) -> list[tuple[bool, str, str]]:
    """`1 id id` for a pair of one speaker, `0 id id` for a pair of two."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(label == "1", first, second) for label, first, second in rows]
