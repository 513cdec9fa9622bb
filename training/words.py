"""Single words inside recordings, and new utterances of them.

    words.json: {recording id: [[word, begin sample, end sample], ...]}  ->  WordBank.draw() -> words to join

What one speaker said in a few sentences is said again in other orders, with the rare words more often.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from training.corpus import Corpus
from training.grammar import sentence

MIN_WORDS, MAX_WORDS = 2, 8
MIXED = 0.1  # share of draws that take every word from any speaker
SENTENCES = 0.5  # share of draws that follow the grammar, as far as the speaker's words go
RARITY = 0.5  # of a word that is said n times, each saying is drawn in proportion to n ** -RARITY
SHAPES = ["digits", "phone", "number", "date", "letters", "spelled", "name", "mixture", "command"]
SHAPE_WEIGHTS = [3, 1, 3, 2, 2, 5, 2, 4, 3]


class Word(NamedTuple):
    """A word in a recording of the corpus: `begin` to `end` in samples at 16 kHz."""

    recording: int
    begin: int
    end: int
    text: str


class WordBank:
    """Words of some recordings of `corpus` to draw utterances from."""

    def __init__(self, words: list[Word], corpus: Corpus) -> None:
        self.words = words
        self.speaker_of = [corpus.recordings[word.recording].speaker for word in words]
        counts = Counter(word.text for word in words)
        self.weights = np.array([counts[word.text] ** -RARITY for word in words])
        self.everyone = _edges(self.weights)
        places: dict[str, list[int]] = defaultdict(list)
        for place, speaker in enumerate(self.speaker_of):
            places[speaker].append(place)
        self.speakers = {speaker: (own, _edges(self.weights[own])) for speaker, own in places.items()}
        self.sayings: dict[str, dict[str, list[Word]]] = {speaker: {} for speaker in places}
        for word, speaker in zip(words, self.speaker_of, strict=True):
            self.sayings[speaker].setdefault(word.text, []).append(word)

    @classmethod
    def load(cls, path: Path, corpus: Corpus) -> WordBank:
        """Read the word times of recordings in `corpus`.

        Raises:
            ValueError: there are none, or they belong to recordings that the corpus lacks or has in another length.
        """
        places = {recording.id: index for index, recording in enumerate(corpus.recordings)}
        words = []
        for name, rows in json.loads(path.read_text(encoding="utf-8")).items():
            if name not in places:
                raise ValueError(f"{path}: recording {name} is not in the packs; align the pack that is trained on")
            index = places[name]
            length = corpus.recordings[index].num_samples
            for text, begin, end in rows:
                if not 0 <= begin < end <= length:
                    raise ValueError(
                        f"{path}: {name} has {length} samples, but its word {text!r} is said to be at {begin}..{end}; "
                        "align the pack that is trained on"
                    )
                words.append(Word(index, begin, end, text))
        if not words:
            raise ValueError(f"{path} holds no words; align with a model that recognises the recordings")
        return cls(words, corpus)

    def draw(self, rng: np.random.Generator) -> tuple[list[Word], bool]:
        """Words of one utterance in order, 2 to 8, and whether one speaker says all of them."""
        count = int(rng.integers(MIN_WORDS, MAX_WORDS + 1))
        first, style = _pick(self.everyone, rng), rng.random()
        if style < MIXED:
            return [self.words[_pick(self.everyone, rng)] for _ in range(count)], False
        speaker = self.speaker_of[first]
        if style < MIXED + SENTENCES:
            said = self._say(speaker, random.Random(int(rng.integers(2**63))))
            if len(said) >= MIN_WORDS:
                return said, True
        own, edges = self.speakers[speaker]
        chosen = [first] + [own[_pick(edges, rng)] for _ in range(count - 1)]
        return [self.words[chosen[place]] for place in rng.permutation(count)], True

    def _say(self, speaker: str, random_: random.Random) -> list[Word]:
        """A sentence of the grammar without the words that the speaker is not known to have said."""
        sayings = self.sayings[speaker]
        text = sentence(random_, random_.choices(SHAPES, weights=SHAPE_WEIGHTS)[0])
        return [random_.choice(sayings[word]) for word in text.split() if word in sayings][:MAX_WORDS]


def _edges(weights: np.ndarray) -> np.ndarray:
    return np.cumsum(weights) / weights.sum()


def _pick(edges: np.ndarray, rng: np.random.Generator) -> int:
    return min(int(np.searchsorted(edges, rng.random())), len(edges) - 1)
