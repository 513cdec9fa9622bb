"""Where each word of AN4's training recordings begins and ends, by forced alignment with a trained run.

    python -m training.align training/runs/first --packs training/data/real.zip --output training/data/words.json

CTC puts every character somewhere within its sound. Between the last character of a word and the first one of the next,
the words part where the recording is quietest. Words that the same run no longer recognises in other orders are
left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from training.corpus import SAMPLE_RATE, Corpus
from training.dataset import FRAME_LENGTH, FRAME_SHIFT, RIGHT_CONTEXT, SUBSAMPLING
from training.score import load_model
from training.scoring import posteriors, transcribe
from training.units import BLANK_ID, Units
from tritone.families.layers.fbank import Fbank
from tritone.families.wenet.model import AsrModel

ENERGY_FRAME = 160  # samples, 10 ms
SMOOTHING = 3  # energy frames averaged before the quietest one is looked for
ABOVE_FLOOR_DB, BELOW_PEAK_DB = 6.0, 25.0  # what lies this far above the noise, or this close to the peak, is heard
LATENCY = 12  # energy frames by which CTC is late: causal convolutions, training in short chunks; see README.md
ASIDE_DB = 24.0  # a cut at a word's outermost token must be this much quieter than one in between
MARGIN = 6  # energy frames left around what is heard of a word, where its neighbours leave room
TRIALS = 2
EDGE = 3200  # samples of silence around words that are joined
NEVER = -1e30  # log-probability of what cannot be


WordTimes = dict[str, list[tuple[str, int, int]]]  # recording id -> (word, begin, end), in samples


class Alignment(NamedTuple):
    """First and last frame of every token, (tokens,) each, and by how many nats greedy decoding's path is likelier."""

    first: np.ndarray
    last: np.ndarray
    deficit: float


def ctc_viterbi(log_probs: np.ndarray, tokens: list[int]) -> Alignment:
    """Most probable CTC path that says `tokens`.

    Args:
        log_probs: (frames, vocab).
        tokens: ids without blanks, at least one.

    Raises:
        ValueError: no tokens, or fewer frames than they need.
    """
    needed = len(tokens) + sum(left == right for left, right in pairwise(tokens))
    if not tokens or len(log_probs) < needed:
        raise ValueError(f"{len(tokens)} tokens need at least one and {needed} frames, got {len(log_probs)}")
    labels = np.full(2 * len(tokens) + 1, BLANK_ID)
    labels[1::2] = tokens
    # State 2i+1 is token i; even states are blanks. A blank may be left out between tokens that differ.
    skips = np.zeros(len(labels), bool)
    skips[3::2] = labels[3::2] != labels[1:-2:2]
    emitted = log_probs[:, labels].astype(np.float64)
    score = np.full(len(labels), NEVER)
    score[:2] = emitted[0, :2]
    steps = np.zeros((len(log_probs), len(labels)), np.int8)
    choices = np.full((3, len(labels)), NEVER)
    for frame in range(1, len(log_probs)):
        choices[0] = score
        choices[1, 1:] = score[:-1]
        choices[2, 2:] = np.where(skips[2:], score[:-2], NEVER)
        steps[frame] = choices.argmax(axis=0)
        score = choices.max(axis=0) + emitted[frame]
    state = len(labels) - 1 if score[-1] > score[-2] else len(labels) - 2
    total = score[state]
    path = np.empty(len(log_probs), np.int64)
    for frame in range(len(log_probs) - 1, -1, -1):
        path[frame] = state
        state -= steps[frame, state]
    wanted = np.arange(len(tokens)) * 2 + 1
    first, last = np.searchsorted(path, wanted), np.searchsorted(path, wanted, side="right") - 1
    return Alignment(first, last, float(log_probs.max(axis=1).sum(dtype=np.float64) - total))


def word_frames(alignment: Alignment, text: str) -> list[tuple[int, int]]:
    """First and last encoder frame of each word of `text`, whose characters were the tokens."""
    spans, begin = [], 0
    for word in text.split(" "):
        end = begin + len(word)
        spans.append((int(alignment.first[begin]), int(alignment.last[end - 1])))
        begin = end + 1
    return spans


def energies_db(waveform: np.ndarray) -> np.ndarray:
    """Smoothed energy of the 10 ms frames of an int16 waveform, in dB."""
    count = len(waveform) // ENERGY_FRAME
    frames = waveform[: count * ENERGY_FRAME].reshape(count, ENERGY_FRAME).astype(np.float64)
    energy = np.square(frames - frames.mean(axis=1, keepdims=True)).mean(axis=1)
    padded = np.pad(energy, SMOOTHING // 2, mode="edge")
    return 10.0 * np.log10(np.convolve(padded, np.full(SMOOTHING, 1.0 / SMOOTHING), mode="valid") + 1.0)


def cut_words(waveform: np.ndarray, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sample ranges of words in an int16 waveform, from the encoder frames of their first and last tokens."""
    energy = energies_db(waveform)
    floor, peak = np.percentile(energy, [5, 98])
    heard = energy > min(floor + ABOVE_FLOOR_DB, peak - BELOW_PEAK_DB)
    # Token positions in energy frames: an encoder frame's middle, less the delay.
    middle = (FRAME_LENGTH + FRAME_SHIFT * RIGHT_CONTEXT) // 2
    tokens = (np.array(spans) * SUBSAMPLING * FRAME_SHIFT + middle) // ENERGY_FRAME - LATENCY
    tokens = np.clip(tokens, 0, len(energy) - 1)
    cuts = [0]
    for left, right in zip(tokens[:-1, 1].tolist(), tokens[1:, 0].tolist(), strict=True):
        # A stop in the middle of a word is quiet too, so the middle of the stretch is preferred a little.
        aside = np.linspace(-1.0, 1.0, right - left + 1) if right > left else np.zeros(1)
        cuts.append(left + int((energy[left : right + 1] + ASIDE_DB * aside**2).argmin()))
    cuts.append(len(energy))
    words = []
    for (first, last), begin, end in zip(tokens.tolist(), cuts[:-1], cuts[1:], strict=True):
        sounding = np.flatnonzero(heard[begin:end]) + begin
        low, high = (int(sounding[0]), int(sounding[-1])) if len(sounding) else (first, last)
        low, high = max(begin, min(low, first) - MARGIN), min(end, max(high, last) + 1 + MARGIN)
        words.append((low * ENERGY_FRAME, high * ENERGY_FRAME))
    return words


def recognised(model: AsrModel, joins: list[list[np.ndarray]], texts: list[list[str]]) -> list[list[bool]]:
    """Which words the model finds in joined waveforms (int16), given the waveform and the text of each word."""
    edge = np.zeros(EDGE, np.int16)
    waveforms = [np.concatenate([edge, *join, edge]) for join in joins]
    found = []
    for words, heard in zip(texts, transcribe(model, Fbank(), waveforms, Units(), torch.device("cpu")), strict=True):
        right = [False] * len(words)
        for block in SequenceMatcher(None, words, heard.split(), autojunk=False).get_matching_blocks():
            right[block.a : block.a + block.size] = [True] * block.size
        found.append(right)
    return found


def keep_recognised(model: AsrModel, corpus: Corpus, words: WordTimes, rng: np.random.Generator) -> WordTimes:
    """Drop the words that are recognised in none of `TRIALS` random orders of their recording's words."""
    places = {recording.id: index for index, recording in enumerate(corpus.recordings)}
    right = {name: np.zeros(len(rows), bool) for name, rows in words.items()}
    for _ in range(TRIALS):
        orders = {name: rng.permutation(len(rows)) for name, rows in words.items()}
        joins, texts = [], []
        for name, order in orders.items():
            waveform, rows = corpus.waveform(places[name]), [words[name][place] for place in order]
            joins.append([waveform[begin:end] for _, begin, end in rows])
            texts.append([word for word, _, _ in rows])
        for (name, order), found in zip(orders.items(), recognised(model, joins, texts), strict=True):
            right[name][order] |= found
    kept = {name: [row for row, ok in zip(rows, right[name], strict=True) if ok] for name, rows in words.items()}
    return {name: rows for name, rows in kept.items() if rows}


def align(model: AsrModel, corpus: Corpus, max_deficit: float) -> WordTimes:
    """Word times of AN4's recordings in `corpus`, without those that fit their text badly.

    Args:
        model: of an output folder of training.train.
        max_deficit: nats per token that the text's path may be less probable than the best path of any text.
    """
    indices = [index for index, recording in enumerate(corpus.recordings) if recording.corpus == "an4"]
    waveforms = [corpus.waveform(index) for index in indices]
    units = Units()
    words: WordTimes = {}
    for chosen, log_probs, lengths in posteriors(model, Fbank(), waveforms, torch.device("cpu")):
        for place, row, length in zip(chosen, log_probs.numpy(), lengths.tolist(), strict=True):
            recording = corpus.recordings[indices[place]]
            tokens = units.encode(recording.text)
            if not tokens or units.frames_needed(recording.text) > length:
                continue
            alignment = ctc_viterbi(row[:length], tokens)
            if alignment.deficit <= max_deficit * len(tokens):
                spans = cut_words(waveforms[place], word_frames(alignment, recording.text))
                rows = zip(recording.text.split(" "), spans, strict=True)
                words[recording.id] = [(word, begin, end) for word, (begin, end) in rows]
    return dict(sorted(words.items()))


def duration_table(words: WordTimes) -> list[str]:
    """Lines of a table: how often each word was found, and its tenth, fiftieth and ninetieth percentile in ms."""
    durations: dict[str, list[float]] = defaultdict(list)
    for rows in words.values():
        for word, begin, end in rows:
            durations[word].append(1000.0 * (end - begin) / SAMPLE_RATE)
    lines = ["| word | count | 10 % ms | median ms | 90 % ms |", "| --- | --- | --- | --- | --- |"]
    for word, values in sorted(durations.items(), key=lambda item: (-len(item[1]), item[0])):
        low, median, high = np.percentile(values, [10, 50, 90])
        lines.append(f"| {word} | {len(values)} | {low:.0f} | {median:.0f} | {high:.0f} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="output folder of training.train")
    parser.add_argument("--packs", type=Path, nargs="+", required=True, help="packs that hold AN4's train split")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--max-deficit", type=float, default=0.5, help="nats per token; see align()")
    parser.add_argument("--keep-all", action="store_true", help="keep the words that are no longer recognised, too")
    arguments = parser.parse_args(argv)
    corpus = Corpus.load(arguments.packs, {"train"})
    model = load_model(arguments.model)
    words = align(model, corpus, arguments.max_deficit)
    total = sum(recording.corpus == "an4" for recording in corpus.recordings)
    if not words:
        raise SystemExit(
            f"none of the {total} AN4 training recordings fits its text within {arguments.max_deficit} nats per token; "
            "train longer first, or raise --max-deficit"
        )
    if not arguments.keep_all:
        words = keep_recognised(model, corpus, words, np.random.default_rng(0))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in words.items()]
    arguments.output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print("\n".join(duration_table(words)))
    count = sum(len(rows) for rows in words.values())
    print(
        f"{arguments.output}: {count} words of {len(words)} of {total} recordings, {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
