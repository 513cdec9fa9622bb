"""What a language model's words are in terms of a token table: words of several tokens, or tokens.

NgramModel, spellings  ->  Lexicon: a trie of the words that tokens can write, or a word for each token
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from tritone.errors import LanguageModelError
from tritone.search.compiled.compiler import compiled
from tritone.search.ngram.model import NgramModel
from tritone.search.options import LmUnit
from tritone.search.scoring.alphabet import BORDER, IDEOGRAPH, Alphabet
from tritone.search.scoring.trie import Ids, Trie, grow

MIN_USABLE = 0.1  # share of the model's words that must be of use; below, model and tokens do not belong together
NEVER = -90.0  # log10; files write -99 for what has no probability
SPACE_NAMES = ("▁", "<space>")  # how models of characters call a space

_LOCK = threading.Lock()
_LEXICONS: WeakKeyDictionary[NgramModel, dict[tuple[Alphabet, LmUnit], "Lexicon"]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The words of a language model. Probabilities are log10, as in its tables.

    `by_token`: every token is a word; `token_words` (tokens,) has their ids, 0 where the model does not know a token,
    -1 where nothing is to be scored. Else `trie` holds the words that can be written; `word_at` (nodes,) their ids or
    -1, `best` (nodes,) the largest unigram probability of a word that begins so.

    `beginnings` (tokens,): the same of a word that begins with the letters of a token, -inf if none does.

    `floor`: the least unigram probability of a word that has any; an unknown word is never taken for less likely.
    """

    by_token: bool
    token_words: Ids
    trie: Trie
    word_at: Ids
    best: npt.NDArray[np.float64]
    beginnings: npt.NDArray[np.float64]
    floor: float


def lexicon_of(lm: NgramModel, alphabet: Alphabet, unit: LmUnit) -> Lexicon:
    """Make the lexicon of a model, or find it: it is kept as long as the model is.

    Args:
        unit: what the model's words are; "auto" takes tokens if most of the words that are of any use are tokens.

    Raises:
        LanguageModelError: hardly a word of the model can be made of the tokens; says what both look like.
        ValueError: `unit` is none of the three.
    """
    if unit not in get_args(LmUnit):
        raise ValueError(f"lm_unit must be one of {', '.join(get_args(LmUnit))}, got {unit!r}")
    with _LOCK:
        known = _LEXICONS.setdefault(lm, {})
        key = (alphabet, unit)
        if key not in known:
            known[key] = _make(lm, alphabet, unit)
        return known[key]


def _make(lm: NgramModel, alphabet: Alphabet, unit: LmUnit) -> Lexicon:
    pairs = list(lm.spellings())
    ids = np.array([id for id, _ in pairs], dtype=np.int32)
    words = [word for _, word in pairs]
    token_words = _token_words(lm, alphabet)
    symbols, first, writable = alphabet.encode(words)
    is_token = np.isin(ids, token_words[token_words > 0])
    if unit == "auto":
        unit = "token" if _are_tokens(lm, alphabet, words, ids, writable) else "word"
    usable = is_token if unit == "token" else writable
    if usable.sum() < MIN_USABLE * len(ids) or not usable.any():
        raise LanguageModelError(_misfit(lm, alphabet, unit, words, int(usable.sum())))
    log_probs = _unigrams(lm)
    possible = log_probs[ids] > NEVER
    floor = float(log_probs[ids][possible].min()) if possible.any() else NEVER

    order = np.flatnonzero(writable) if unit == "word" else np.empty(0, dtype=np.int64)
    # Symbols are numbered by code point, so the order of the words is that of their symbols.
    order = np.array(sorted(order.tolist(), key=words.__getitem__), dtype=np.int64)
    trie, ends = grow(symbols, first, order)
    word_at = np.full(len(trie.symbol), -1, dtype=np.int32)
    word_at[ends] = ids[order]
    best = np.full(len(trie.symbol), -np.inf, dtype=np.float64)
    best[ends] = log_probs[ids[order]]
    _spread(trie, best)
    return Lexicon(unit == "token", token_words, trie, word_at, best, _beginnings(trie, best, alphabet), floor)


def _beginnings(trie: Trie, best: npt.NDArray[np.float64], alphabet: Alphabet) -> npt.NDArray[np.float64]:
    # Nodes are in the order of their parents, children in that of their symbols: one search finds a child by both.
    edges = trie.parent[1:].astype(np.int64) * len(alphabet) + trie.symbol[1:]
    node = np.zeros(len(alphabet.spellings), dtype=np.int64)
    at = alphabet.first[:-1].copy()
    while len(edges) and (left := np.flatnonzero((at < alphabet.first[1:]) & (node >= 0))).size:
        symbol = alphabet.symbols[at[left]]
        wanted = node[left] * len(alphabet) + symbol
        found = np.minimum(np.searchsorted(edges, wanted), len(edges) - 1)
        after = np.where(edges[found] == wanted, found + 1, -1)
        node[left] = np.where((symbol == BORDER) & (node[left] == 0), 0, after)
        at[left] += 1
    return np.where(node > 0, best[node], -np.inf)


def _are_tokens(
    lm: NgramModel, alphabet: Alphabet, words: Sequence[str], ids: Ids, writable: npt.NDArray[np.bool_]
) -> bool:
    """Whether most words of the model that are of any use are tokens: pieces with their ▁, or letters.

    A token such as ▁one says nothing of the word "one", which models of whole words have too. And a single ideograph is
    a word whether it is a token or not.
    """
    exact = {lm.word_id(part.replace(" ", "▁")) for part in alphabet.spellings if part.strip()} - {0}
    is_token = np.isin(ids, list(exact))
    telling = (writable | is_token) & ~np.array([bool(IDEOGRAPH.fullmatch(word)) for word in words], dtype=bool)
    return 2 * int((telling & is_token).sum()) > int(telling.sum())


@compiled
def _spread(trie: Trie, best: npt.NDArray[np.float64]) -> None:
    for node in range(len(best) - 1, 0, -1):  # children come after their parents
        best[trie.parent[node]] = max(best[trie.parent[node]], best[node])


def _unigrams(lm: NgramModel) -> npt.NDArray[np.float64]:
    tables = lm.tables
    stride = tables.unigram_stride
    log10 = tables.values[tables.unigrams : tables.unigrams + stride * tables.num_words : stride]
    return -np.abs(log10.astype(np.float64))


def _token_words(lm: NgramModel, alphabet: Alphabet) -> Ids:
    """The word that each token is, spaces written as ▁ or left out."""
    words = np.full(len(alphabet.spellings), -1, dtype=np.int32)
    for token, spelling in enumerate(alphabet.spellings):
        bare = spelling.strip()
        if bare:
            words[token] = lm.word_id(spelling.replace(" ", "▁")) or lm.word_id(bare)
        elif spelling:  # a space by itself; most models do not have it as a word
            words[token] = next(filter(None, map(lm.word_id, SPACE_NAMES)), -1)
    return words


def _misfit(lm: NgramModel, alphabet: Alphabet, unit: LmUnit, words: Sequence[str], usable: int) -> str:
    some = words[:: max(1, len(words) // 5)][:5]
    letters = sorted({part.strip() for part in alphabet.spellings if any(char in alphabet.letters for char in part)})
    tokens = letters[:: max(1, len(letters) // 5)][:5]
    if unit == "token":
        what = "are tokens of the model."
        advice = "Set the unit of the language model to word, or train it on text split into the model's tokens."
    else:
        what = "can be written with the model's tokens."
        advice = "Use a language model of the same language and spelling."
        for name, fold in (("upper", str.lower), ("lower", str.upper)):
            if alphabet.encode([fold(word) for word in words])[2].mean() >= MIN_USABLE:
                other = "lower" if name == "upper" else "upper"
                advice = f"The language model is in {name} case, the tokens are in {other} case: convert its file."
        if sum(len(word) > 1 and all(char in alphabet.letters for char in word) for word in words) > len(words) / 2:
            advice = "Each Chinese or Japanese character is a word here: train it on text with spaces between them."
    return (
        f"{lm.path} does not fit this model: {usable} of its {len(words)} words {what} "
        f"LM words are like {_quoted(some)}, tokens like {_quoted(tokens)}. {advice}"
    )


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(repr(word[:40]) for word in words) or "nothing"
