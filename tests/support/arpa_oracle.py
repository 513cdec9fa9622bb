"""What a language model of words adds to token sequences, by its definition, in plain Python."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritone.search.scoring.alphabet import IDEOGRAPH

LN_10 = math.log(10)


class Oracle:
    """A back-off model by its textbook definition, from the lines of the ARPA file."""

    def __init__(self, path: Path) -> None:
        self.log_prob: dict[tuple[str, ...], float] = {}
        self.backoff: dict[tuple[str, ...], float] = {}
        for line in path.read_text(encoding="utf-8").split("\n"):
            if re.match(r"[-0-9]", line):
                prob, words, *backoff = line.split("\t")
                self.log_prob[tuple(words.split(" "))] = float(prob)
                self.backoff[tuple(words.split(" "))] = float(backoff[0]) if backoff else 0.0
        self.known = {words[0]: value for words, value in self.log_prob.items() if len(words) == 1}
        self.words = set(self.known) - {"<s>", "</s>", "<unk>"}
        self.rarest = min(self.known[word] for word in self.words)

    def log10(self, word: str, history: tuple[str, ...]) -> float:
        history = history[-3:]
        gram = (*history, word)
        if gram in self.log_prob:
            return self.log_prob[gram]
        return self.backoff.get(history, 0.0) + self.log10(word, history[1:])

    def score(self, words: Sequence[str], weight: float, bonus: float, penalty: float) -> tuple[float, tuple[str, ...]]:
        """What complete words add, and the history after them."""
        history: tuple[str, ...] = ("<s>",)
        total = 0.0
        for word in words:
            if word in self.words:
                score = self.log10(word, history) * LN_10
            else:
                word = "<unk>"
                score = max(self.log10(word, history), self.rarest) * LN_10 - penalty
            total += weight * score + bonus
            history = (*history, word)
        return total, history

    def total(self, words: Sequence[str], weight: float, bonus: float, penalty: float) -> float:
        """What a finished text adds."""
        total, history = self.score(words, weight, bonus, penalty)
        return total + weight * LN_10 * self.log10("</s>", history)


def words_of(text: str) -> list[str]:
    return [word for word in re.split(f"\\s+|({IDEOGRAPH.pattern})", text) if word]


@dataclass(frozen=True)
class Bonus:
    """What a model adds to a prefix of a search with these spellings, the look-ahead of its open word included."""

    oracle: Oracle
    spellings: Sequence[str]
    weight: float
    bonus: float
    penalty: float

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self.spellings[id] for id in ids)

    def prefix(self, ids: Sequence[int]) -> float:
        text = self.text(ids)
        words = words_of(text)
        if not words or text[-1].isspace() or IDEOGRAPH.match(text[-1]):
            return self.oracle.score(words, self.weight, self.bonus, self.penalty)[0]
        complete, _ = self.oracle.score(words[:-1], self.weight, self.bonus, self.penalty)
        letters = set("".join(self.spellings))
        ahead = [self.oracle.known[word] for word in self.oracle.words if self._leads(words[-1], word, letters)]
        unknown = max(self.oracle.known["<unk>"], self.oracle.rarest) - self.penalty / LN_10
        return complete + self.weight * LN_10 * max([unknown, *ahead]) + self.bonus

    def _leads(self, beginning: str, word: str, letters: set[str]) -> bool:
        return word.startswith(beginning) and set(word) <= letters and words_of(word) == [word]

    def finished(self, ids: Sequence[int]) -> float:
        return self.oracle.total(words_of(self.text(ids)), self.weight, self.bonus, self.penalty)
