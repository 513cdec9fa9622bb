"""Greedy text of a network in training, and its word error rate.

Corpus -> dev_sets() -> {"an4": [Utterance, ...], ...} -> evaluate() -> {"an4": {"full": {...}, "chunk": {...}}, ...}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.corpus import SAMPLE_RATE, SERVED_TAIL_S, Corpus
from training.units import Labels, Units
from tritone.evaluate.score import count_errors, pool
from tritone.families.wenet.model import AsrModel

STRINGS_PER_SPEAKER = 10
BATCH_SECONDS = 300
MIN_SAMPLES = 1360  # the shortest waveform that gives one encoder frame: 7 fbank frames


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A waveform (int16, 16 kHz) and what is said in it."""

    id: str
    waveform: np.ndarray
    text: str


def joined_digits(corpus: Corpus, rng: np.random.Generator) -> list[Utterance]:
    """Digit strings of FSDD recordings, made as the public `fsdd/strings` are: 3-8 digits, gaps of 0.1-0.4 s."""
    by_speaker: dict[str, list[int]] = defaultdict(list)
    for index, recording in enumerate(corpus.recordings):
        if recording.corpus == "fsdd":
            by_speaker[recording.speaker].append(index)
    strings = []
    for speaker, indices in sorted(by_speaker.items()):
        for number in range(STRINGS_PER_SPEAKER):
            chosen = rng.choice(indices, size=int(rng.integers(3, 9)))
            parts = [np.zeros(int(rng.uniform(0.2, 0.4) * SAMPLE_RATE), np.float32)]
            for index in chosen:
                parts += [
                    corpus.waveform(index).astype(np.float32),
                    np.zeros(int(rng.uniform(0.1, 0.4) * SAMPLE_RATE), np.float32),
                ]
            waveform = np.concatenate(parts)
            waveform += rng.standard_normal(len(waveform)) * 32768.0 * 10.0 ** (rng.uniform(-62.0, -52.0) / 20.0)
            text = " ".join(corpus.recordings[index].text for index in chosen)
            samples = np.clip(np.rint(waveform), -32768, 32767).astype(np.int16)
            strings.append(Utterance(id=f"{speaker}-{number}", waveform=samples, text=text))
    return strings


def dev_sets(corpus: Corpus) -> dict[str, list[Utterance]]:
    """Development sets of a corpus that holds the dev split: one per source, and digit strings joined from FSDD."""
    sets: dict[str, list[Utterance]] = defaultdict(list)
    for index, recording in enumerate(corpus.recordings):
        sets[recording.corpus].append(Utterance(id=recording.id, waveform=corpus.waveform(index), text=recording.text))
    strings = joined_digits(corpus, np.random.default_rng(5))
    return {**sets, **({"fsdd_strings": strings} if strings else {})}


def greedy(log_probs: Tensor, lengths: Tensor, units: Units | Labels) -> list[str]:
    """Best path of (batch, frames, vocab), repeats merged and blanks dropped."""
    best = log_probs.argmax(dim=-1).cpu().numpy()
    texts = []
    for row, length in zip(best, lengths.tolist(), strict=True):
        path = row[:length]
        kept = path[np.flatnonzero(np.diff(path, prepend=-1))]
        texts.append(units.decode(kept[kept != units.blank_id].tolist()))
    return texts


def padded_batches(
    waveforms: Sequence[np.ndarray], tail: int, device: torch.device
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Batches of int16 waveforms, shortest first: which ones, padded float samples, and their number (batch,).

    `tail` samples of silence follow each waveform and count as its own.
    """
    order = sorted(range(len(waveforms)), key=lambda index: len(waveforms[index]))
    while order:
        # the rest's shortest utterances, as many as fit
        size = 1
        while size < len(order) and (size + 1) * len(waveforms[order[size]]) <= BATCH_SECONDS * SAMPLE_RATE:
            size += 1
        chosen, order = order[:size], order[size:]
        longest = max(MIN_SAMPLES, tail + max(len(waveforms[index]) for index in chosen))
        padded = np.zeros((size, longest), np.float32)
        for row, index in enumerate(chosen):
            padded[row, : len(waveforms[index])] = waveforms[index] / np.float32(32768.0)
        num_samples = torch.tensor([tail + len(waveforms[index]) for index in chosen], device=device)
        yield chosen, torch.from_numpy(padded).to(device), num_samples


@torch.no_grad()
def posteriors(
    model: AsrModel,
    features: torch.nn.Module,
    waveforms: Sequence[np.ndarray],
    device: torch.device,
    chunk_size: int = -1,
    left_chunks: int = -1,
    tail: int = 0,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """As `padded_batches`, but CTC log-probabilities (batch, frames, vocab) and their lengths."""
    for chosen, padded, num_samples in padded_batches(waveforms, tail, device):
        feats, lengths = features(padded, num_samples)
        encoded, lengths = model.encoder(feats, lengths, chunk_size, left_chunks)
        yield chosen, model.ctc(encoded), lengths


def transcribe(
    model: AsrModel,
    features: torch.nn.Module,
    waveforms: Sequence[np.ndarray],
    units: Units,
    device: torch.device,
    chunk_size: int = -1,
    left_chunks: int = -1,
) -> list[str]:
    """Text of int16 waveforms as serving gives it, in the order given."""
    tail = round(SERVED_TAIL_S * SAMPLE_RATE)
    texts = [""] * len(waveforms)
    for chosen, log_probs, lengths in posteriors(model, features, waveforms, device, chunk_size, left_chunks, tail):
        for index, text in zip(chosen, greedy(log_probs, lengths, units), strict=True):
            texts[index] = text
    return texts


Transcriber = Callable[[Sequence[np.ndarray]], list[str]]
"""int16 waveforms -> texts, in the same order."""


def network_modes(
    model: AsrModel,
    features: torch.nn.Module,
    units: Units,
    device: torch.device,
    *,
    chunk_size: int,
    left_chunks: int,
) -> dict[str, Transcriber]:
    """Greedy transcription by a torch network with full context ("full") and in chunks ("chunk")."""

    def mode(chunk: int, left: int) -> Transcriber:
        return lambda waveforms: transcribe(model, features, waveforms, units, device, chunk, left)

    return {"full": mode(-1, -1), "chunk": mode(chunk_size, left_chunks)}


def evaluate(sets: dict[str, list[Utterance]], modes: dict[str, Transcriber]) -> dict[str, dict[str, dict[str, Any]]]:
    """Score every set in every mode: errors, words, wer, and what went wrong."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name, utterances in sets.items():
        results[name] = {}
        for mode, transcriber in modes.items():
            texts = transcriber([utterance.waveform for utterance in utterances])
            counts = [
                count_errors(utterance.text.split(), text.split())
                for utterance, text in zip(utterances, texts, strict=True)
            ]
            total = pool(counts)
            results[name][mode] = {
                "errors": total.errors,
                "words": total.reference_length,
                "wer": total.rate,
                "counts": [(each.errors, each.reference_length) for each in counts],
                "wrong": [
                    {"id": utterance.id, "text": utterance.text, "found": text}
                    for utterance, text in zip(utterances, texts, strict=True)
                    if utterance.text != text
                ],
            }
    return results


def summary(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """One line: WER in percent of each set, in every mode."""
    parts = [
        f"{name} " + "/".join(f"{100 * mode['wer']:.2f}" for mode in modes.values())
        for name, modes in sorted(results.items())
    ]
    return " ".join(parts)
