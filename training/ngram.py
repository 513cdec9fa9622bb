"""n-gram language models: sentences to an ARPA file, by interpolated modified Kneser-Ney smoothing.

    python -m training.ngram --data ../shared/data --output training/lm

    [["enter", "six"], ...]  ->  BackoffModel  ->  an4-3gram.arpa, digits.arpa

Probabilities are log10 in models and files, as the format has them. `</s>` and `<unk>` are words that have a
probability, `<s>` is only a context. Nothing is pruned, so an n-gram's own prefixes and suffixes are in the model too.

Source: S. F. Chen, J. Goodman, "An empirical study of smoothing techniques for language modeling", TR-10-98, Harvard
University 1998, section 4.1.6 and equation 26; interpolated with uniform unigrams as KenLM's lmplz does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from training.grammar import DIGITS

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
IMPOSSIBLE = -99.0  # log10, what ARPA files write for the probability of <s>
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # lmplz's, of counts 1, 2 and more; for data that has no natural ones

MIN_DIGITS, MEAN_DIGITS = 3, 5.5  # the strings of fsdd/strings have 3-8 digits
RARE = 1e-6  # probability of what the digit grammar does not foresee: unlikely, but not the end of a search

Gram = tuple[str, ...]


class Perplexity(NamedTuple):
    """Of a text: `all` with unknown words at the probability of <unk>, `known` without them; `unknown`: how many."""

    all: float
    known: float
    unknown: int


@dataclass(frozen=True, kw_only=True)
class BackoffModel:
    """An n-gram model as ARPA files hold it.

    `log_probs`: log10 P of each n-gram's last word after the others. `backoffs`: log10 of the factor that a context
    gives to the shorter context's probability, of words that were not seen after it; 0 where there is none.
    """

    log_probs: Mapping[Gram, float]
    backoffs: Mapping[Gram, float]

    @property
    def order(self) -> int:
        return max(map(len, self.log_probs))

    @property
    def words(self) -> list[str]:
        """What may follow a context: the words, </s> and <unk>."""
        return [gram[0] for gram in self.log_probs if len(gram) == 1 and gram[0] != START]

    def log_prob(self, word: str, context: Gram = ()) -> float:
        """log10 P(word | context); the context may be longer than the model looks back, and starts with <s>."""
        known = word if (word,) in self.log_probs else UNKNOWN
        gram = (*context[max(0, len(context) - self.order + 1) :], known)
        penalty = 0.0
        while gram not in self.log_probs:
            penalty += self.backoffs.get(gram[:-1], 0.0)
            gram = gram[1:]
        return penalty + self.log_probs[gram]

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> Perplexity:
        """Perplexity a word, ends of sentences included."""
        known: list[float] = []
        unknown: list[float] = []
        for sentence in sentences:
            words = (START, *sentence, END)
            for place in range(1, len(words)):
                value = self.log_prob(words[place], words[:place])
                (known if (words[place],) in self.log_probs else unknown).append(value)
        if not known:
            return Perplexity(math.inf, math.inf, len(unknown))
        together = known + unknown
        return Perplexity(10 ** (-sum(together) / len(together)), 10 ** (-sum(known) / len(known)), len(unknown))

    def write(self, path: Path) -> None:
        """Write an ARPA file, compressed if the name ends in .gz; equal models give equal files."""
        text = self.to_arpa().encode()
        path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)

    def to_arpa(self) -> str:
        by_order: dict[int, list[Gram]] = defaultdict(list)
        for gram in sorted(self.log_probs):
            by_order[len(gram)].append(gram)
        parts = ["\\data\\"]
        parts += [f"ngram {order}={len(by_order[order])}" for order in sorted(by_order)]
        for order in sorted(by_order):
            parts += ["", f"\\{order}-grams:"]
            for gram in by_order[order]:
                line = f"{_number(self.log_probs[gram])}\t{' '.join(gram)}"
                if gram in self.backoffs:
                    line += f"\t{_number(self.backoffs[gram])}"
                parts.append(line)
        return "\n".join([*parts, "", "\\end\\", ""])


def estimate(sentences: Iterable[Sequence[str]], order: int = 3) -> BackoffModel:
    """Estimate a model of sentences.

    Args:
        sentences: words of each; without the marks of start and end.
        order: of the longest n-grams.

    Raises:
        ValueError: `order` is below 1, there are no words, or a word is one of the marks or has spaces in it.
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    counts = _adjusted_counts(sentences, order)
    log_probs: dict[Gram, float] = {}
    backoffs: dict[Gram, float] = {}
    words = sorted(gram[0] for gram in counts[0])
    if words in ([], [END]):
        raise ValueError("the sentences have no words to learn from")
    # Every word has a share of the mass that discounting frees, and so has the one that was never seen.
    probs: dict[Gram, float] = dict.fromkeys([(word,) for word in [*words, UNKNOWN]], 1 / (len(words) + 1))
    for number, grams in enumerate(counts, start=1):
        discounts = _discounts(grams.values())
        totals: Counter[Gram] = Counter()
        freed: defaultdict[Gram, float] = defaultdict(float)
        for gram, count in grams.items():
            totals[gram[:-1]] += count
            freed[gram[:-1]] += discounts[min(count, 3) - 1]
        shares = {context: freed[context] / total for context, total in totals.items()}
        candidates = probs if number == 1 else grams
        shorter, probs = probs, {}
        for gram in candidates:
            context, count = gram[:-1], grams.get(gram, 0)
            own = count - discounts[min(count, 3) - 1] if count else 0.0
            # A suffix of an n-gram that was seen was seen as well, so the shorter probability is there.
            lower = shorter[gram if number == 1 else gram[1:]]
            probs[gram] = own / totals[context] + shares[context] * lower
        log_probs.update((gram, math.log10(prob)) for gram, prob in probs.items())
        if number > 1:
            backoffs.update((context, math.log10(share)) for context, share in shares.items())
    log_probs[(START,)] = IMPOSSIBLE
    return BackoffModel(log_probs=log_probs, backoffs=backoffs)


def _adjusted_counts(sentences: Iterable[Sequence[str]], order: int) -> list[Counter[Gram]]:
    """Counts of n-grams by their length.

    Those of the highest order, and those that start a sentence, are counted as they occur. The others by how many
    different words come before them: that is what tells how likely they are where the longer context is new.
    """
    raw: list[Counter[Gram]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        for word in sentence:
            if word in (START, END, UNKNOWN) or word.split() != [word]:
                raise ValueError(f"{word!r} cannot be a word of a language model")
        marked = (START, *sentence, END)
        for number, grams in enumerate(raw, start=1):
            grams.update(marked[place : place + number] for place in range(len(marked) - number + 1))
    adjusted = [Counter({gram: count for gram, count in grams.items() if gram[0] == START}) for grams in raw[:-1]]
    for shorter, grams in zip(adjusted, raw[1:], strict=True):
        shorter.update(gram[1:] for gram in grams)
    adjusted.append(raw[-1])
    del adjusted[0][(START,)]  # nothing says how likely a start is
    return adjusted


def _discounts(counts: Iterable[int]) -> tuple[float, float, float]:
    """What is taken from counts of 1, 2, and 3 or more."""
    t1, t2, t3, t4 = (found[number] for found in [Counter(counts)] for number in (1, 2, 3, 4))
    if not (t1 and t2 and t3):
        return FALLBACK_DISCOUNTS
    y = t1 / (t1 + 2 * t2)
    natural = 1 - 2 * y * t2 / t1, 2 - 3 * y * t3 / t2, 3 - 4 * y * t4 / t3
    # If nothing were taken, nothing would be left for words that were not seen.
    return natural if min(natural) > 0 else FALLBACK_DISCOUNTS


def digit_grammar() -> BackoffModel:
    """Strings of digits, "oh" included: every digit as likely as any other, at least `MIN_DIGITS` of them, after these
    an end with the same chance after each, so that strings have `MEAN_DIGITS` on the average."""
    digits = [*DIGITS, "oh"]
    end = 1 / (MEAN_DIGITS - MIN_DIGITS + 1)
    probs: dict[Gram, float] = {(word,): (1 - end - RARE) / len(digits) for word in digits}
    probs |= {(END,): end, (UNKNOWN,): RARE}
    backoffs: dict[Gram, float] = {}
    # Contexts that are too short to end: an end is as rare as an unknown word, and the rest grows in proportion.
    contexts: list[Gram] = [(START,)]
    for _ in range(MIN_DIGITS):
        for context in contexts:
            ended = (*context, END)
            probs[ended] = RARE
            backoffs[context] = (1 - RARE) / (1 - end)
            if len(context) > 1:
                # The context is an n-gram itself, with the probability that backing off would give it.
                probs[context] = _backed_off(probs, backoffs, context)
        contexts = [(*context, word) for context in contexts for word in digits]
    return BackoffModel(
        log_probs={(START,): IMPOSSIBLE} | {gram: math.log10(prob) for gram, prob in probs.items()},
        backoffs={context: math.log10(factor) for context, factor in backoffs.items()},
    )


def _backed_off(probs: Mapping[Gram, float], backoffs: Mapping[Gram, float], gram: Gram) -> float:
    factor = 1.0
    while gram not in probs:
        factor *= backoffs.get(gram[:-1], 1.0)
        gram = gram[1:]
    return factor * probs[gram]


def _number(value: float) -> str:
    text = f"{value:.7f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def read_texts(data: Path, split: str) -> list[list[str]]:
    """Words of the sentences of one of AN4's splits, lower case, as the demo model writes them."""
    rows = [json.loads(line) for line in (data / "an4" / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row["text"].split() for row in rows if row["split"] == split]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with one folder per corpus")
    parser.add_argument("--output", type=Path, default=Path("training/lm"))
    parser.add_argument("--order", type=int, default=3)
    arguments = parser.parse_args()

    training, development = (read_texts(arguments.data, split) for split in ("train", "dev"))
    print("| order | n-grams | perplexity of AN4 train | perplexity of AN4 dev | unknown words |")
    print("| --- | --- | --- | --- | --- |")
    for order in range(1, arguments.order + 2):
        model = estimate(training, order)
        seen, new = model.perplexity(training), model.perplexity(development)
        print(f"| {order} | {len(model.log_probs)} | {seen.all:.2f} | {new.all:.2f} | {new.unknown} |")
    arguments.output.mkdir(parents=True, exist_ok=True)
    files = {f"an4-{arguments.order}gram.arpa": estimate(training, arguments.order), "digits.arpa": digit_grammar()}
    for name, model in files.items():
        model.write(arguments.output / name)
        print(f"{arguments.output / name}: {(arguments.output / name).stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
