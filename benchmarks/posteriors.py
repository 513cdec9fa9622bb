"""Log-probabilities as CTC models give them, made from nothing, so that searches can be timed on any vocabulary.

    Speech(vocab)  ->  words, log_probs (frames, vocab), a language model of the same words

Tokens are pieces of three letters; the first piece of a word begins with "▁", so that any search's text can be cut into
tokens again. A token takes four frames on average: its peak, and blanks around it. Beside the right one, a few tokens
that a model would confuse with it get a share; the rest is noise.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLANK = 0
FRAMES_PER_TOKEN = 4.0
CONFUSED = 6  # tokens that share in a peak
LogProbs = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How sure the model is; natural-log units.

    `peak`: how far the right token stands over the noise; `spread`: by how much that varies, which makes the hard
    places; `blank`: how far the blank does between peaks; `width`: the share of a peak that leaks into the next frame.
    """

    peak: float
    spread: float
    blank: float
    width: float


PEAKY = Shape(peak=16.0, spread=2.5, blank=17.0, width=0.3)
FLAT = Shape(peak=11.0, spread=2.5, blank=11.0, width=0.6)


class Speech:
    """Sentences over a made-up vocabulary, and what a model would say of them."""

    def __init__(self, vocab: int, words: int = 2000, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        codes = ["".join(letters) for letters in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=3)]
        codes = [codes[i] for i in rng.permutation(len(codes))[: vocab // 2]]
        starts = [f"▁{code}" for code in codes]
        self.labels = ["", "▁⁇▁", *starts, *codes][:vocab]
        self.ids = {label: id for id, label in enumerate(self.labels)}
        follow = self.labels[2 + len(starts) :]
        lengths = rng.choice([1, 2, 3], words, p=[0.5, 0.35, 0.15])
        self.words = sorted(
            {"".join([starts[rng.integers(len(starts))][1:], *(rng.choice(follow, length - 1))]) for length in lengths}
        )
        rank = np.arange(1, len(self.words) + 1)
        self._frequency = (1 / rank) / (1 / rank).sum()

    def tokens(self, text: str) -> list[int]:
        """The tokens of words; pieces that no token has are left out."""
        pieces = []
        for word in text.split():
            for at in range(0, len(word), 3):
                pieces.append(("▁" if at == 0 else "") + word[at : at + 3])
        return [self.ids[piece] for piece in pieces if piece in self.ids]

    def sentence(self, words: int, seed: int) -> str:
        """Random words, frequent ones more often; one is likelier after its neighbour in the list."""
        rng = np.random.default_rng(seed)
        said = [int(rng.choice(len(self.words), p=self._frequency))]
        while len(said) < words:
            fresh = int(rng.choice(len(self.words), p=self._frequency))
            said.append((said[-1] + 1 + int(rng.integers(3))) % len(self.words) if rng.random() < 0.6 else fresh)
        return " ".join(self.words[word] for word in said)

    def log_probs(self, frames: int, shape: Shape, seed: int) -> tuple[LogProbs, str]:
        """What a model says, (frames, vocab), and the words that were said."""
        rng = np.random.default_rng([seed, 1])
        text = self.sentence(max(1, int(frames / FRAMES_PER_TOKEN / 1.65)), seed)
        tokens = self.tokens(text)
        logits = rng.standard_normal((frames, len(self.labels)), dtype=np.float32) * 1.5
        logits[:, BLANK] += shape.blank + rng.normal(0, 1.0, frames)
        if frames > 2:
            times = np.sort(rng.choice(frames - 1, min(len(tokens), (frames - 1) // 2), replace=False))
            for time, token in zip(times.tolist(), tokens, strict=False):
                height = max(3.0, rng.normal(shape.peak, shape.spread))
                logits[time, BLANK] -= shape.blank * 0.6
                logits[time, token] += height
                logits[time + 1, token] += height * shape.width
                confused = rng.integers(2, len(self.labels), CONFUSED)
                logits[time, confused] += height * rng.uniform(0.3, 0.9, CONFUSED)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits, text

    def write_arpa(self, path: Path, sentences: int = 3000) -> None:
        """A 3-gram model of such sentences: absolute discounting by 0.5, backed off to lower orders."""
        counts: list[Counter[tuple[str, ...]]] = [Counter(), Counter(), Counter()]
        for seed in range(sentences):
            said = ["<s>", *self.sentence(10, 10_000 + seed).split(), "</s>"]
            for order, counter in enumerate(counts, start=1):
                counter.update(zip(*(said[at:] for at in range(order)), strict=False))
        counts[0].update({(word,): 1 for word in self.words})
        lines = ["\\data\\", *(f"ngram {order}={len(c) + (order == 1)}" for order, c in enumerate(counts, start=1))]
        total = sum(counts[0].values())
        for order, counter in enumerate(counts, start=1):
            lines += ["", f"\\{order}-grams:"]
            kinds = Counter(gram[:-1] for gram in counts[order]) if order < 3 else Counter()
            for gram, count in sorted(counter.items()):
                before = counts[order - 2][gram[:-1]] if order > 1 else total
                line = f"{math.log10(max(count - 0.5, 0.1) / before):.5f}\t{' '.join(gram)}"
                held_out = 0.5 * max(kinds[gram], 1) / max(count, 1)
                lines.append(line + (f"\t{math.log10(min(held_out, 0.99)):.5f}" if order < 3 else ""))
            if order == 1:
                lines.append("-6.0\t<unk>")
        path.write_text("\n".join([*lines, "", "\\end\\", ""]), encoding="utf-8")


def describe(log_probs: LogProbs) -> dict[str, float]:
    """How sure the model is: shares of frames by their best token's probability, and tokens above 0.1 % in a frame."""
    best = np.exp(log_probs.max(axis=-1))
    return {
        "frames over 0.95": float((best > 0.95).mean()),
        "frames under 0.5": float((best < 0.5).mean()),
        "tokens over 0.001": float((log_probs > math.log(0.001)).sum(axis=-1).mean()),
    }


def ctc_log_prob(log_probs: LogProbs, tokens: Sequence[int]) -> float:
    """The log-probability of a token sequence, summed over all alignments."""
    labels = np.zeros(2 * len(tokens) + 1, dtype=int)
    labels[1::2] = tokens
    skip = np.zeros(len(labels), dtype=bool)
    skip[2:] = (labels[2:] != BLANK) & (labels[2:] != labels[:-2])
    alpha: npt.NDArray[Any] = np.full(len(labels), -np.inf)
    alpha[:1] = 0.0
    started = np.full(len(labels), -np.inf)
    for frame, row in enumerate(log_probs.astype(np.float64)):
        if frame == 0:
            started[: min(2, len(labels))] = row[labels[:2]]
            alpha = started
            continue
        one = np.concatenate(([-np.inf], alpha[:-1]))
        two = np.where(skip, np.concatenate(([-np.inf, -np.inf], alpha[:-2]))[: len(labels)], -np.inf)
        alpha = np.logaddexp(np.logaddexp(alpha, one), two) + row[labels]
    return float(np.logaddexp.reduce(alpha[-2:]))
