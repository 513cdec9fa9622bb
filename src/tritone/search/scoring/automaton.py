"""Finding hotwords in a text that grows: an Aho-Corasick automaton over characters and the borders between words.

    phrases with weights, alphabet  ->  Automaton; a node and the next symbol  ->  the next node, gain and credit

A phrase is a sequence of words, and it occurs where these words follow each other in the text: "art" is not in "party",
but a Chinese phrase is found anywhere, because every character is a word. Each occurrence of each phrase adds the
phrase's weight to a hypothesis, overlapping ones too. Unless `overlapping` is False: then the first phrase that is
complete counts, of several the longest, and nothing of it is part of another one. So does `ContextGraph` of icefall
(icefall/context_graph.py, with `strict_mode=False` as its searches have it); "new york" is never found beside "new".

**Credit.** A beam drops prefixes long before a phrase is complete, so what a phrase promises is lent on the way: in the
middle of phrases a prefix has the credit max(0, weight · progress) of the phrase that promises most, progress being the
share of its symbols that are there. The automaton's node tells the credit, so it comes and goes with the node:
when a phrase breaks off, nothing stays of it but what the longest fitting beginning of another phrase gives. Negative
weights count when the phrase is complete; until then the words may still become something else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.search.compiled.addresses import address_of, int32s
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.hotwords import foreign
from tritone.search.scoring.alphabet import BORDER, Alphabet
from tritone.search.scoring.trie import Ids, Trie, child, grow

MAX_AUTOMATA = 64  # kept for requests with the same phrases

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Automaton:
    """The automaton of a set of phrases. Every phrase begins and ends with a border."""

    trie: Trie
    fail: Ids  # (nodes,): the longest proper ending of a node's symbols that is a node too
    gain: Floats  # (nodes,): the weights of all phrases that are complete here
    credit: Floats  # (nodes,): what is lent here
    after: Ids  # (nodes,): where to go on: the node itself; `start` if a phrase is complete and none may overlap
    most_credit: Floats  # (symbols,): the largest credit after a symbol
    start: int  # the node at the start of a text, which is a border


def automaton_of(
    phrases: Sequence[tuple[str, float]], alphabet: Alphabet, *, overlapping: bool = True
) -> Automaton | None:
    """Build the automaton of phrases over the characters of a token table, or find it among the last ones.

    The same phrase twice has the sum of the weights; None if no weight is left. The case of phrases does not matter
    where all tokens are of one case.

    Raises:
        InputError: a phrase has a character that no token writes.
    """
    return _automaton(tuple((phrase, float(weight)) for phrase, weight in phrases), alphabet, overlapping)


@lru_cache(MAX_AUTOMATA)
def _automaton(phrases: tuple[tuple[str, float], ...], alphabet: Alphabet, overlapping: bool) -> Automaton | None:
    weights: dict[tuple[int, ...], float] = {}
    for phrase, weight in phrases:
        try:
            words = alphabet.words(alphabet.in_case(phrase))
        except ValueError as error:
            raise foreign(phrase, str(error)) from None
        if words:
            key = (BORDER, *(symbol for word in words for symbol in (*word, BORDER)))
            weights[key] = weights.get(key, 0.0) + weight
    keys = sorted(key for key, weight in weights.items() if weight)
    if not keys:
        return None
    symbols = np.array([symbol for key in keys for symbol in key], dtype=np.int32)
    first = np.concatenate(([0], np.cumsum([len(key) for key in keys]))).astype(np.int64)
    trie, ends = grow(symbols, first, np.arange(len(keys), dtype=np.int64))
    lengths = np.diff(first)
    fail = np.zeros(len(trie.symbol), dtype=np.int32)
    places = (address_of(trie.first), address_of(trie.symbol), address_of(fail))
    gain, credit = _link(trie, ends, lengths, np.array([weights[key] for key in keys]), fail, overlapping, places)
    most_credit = np.zeros(len(alphabet), dtype=np.float64)
    np.maximum.at(most_credit, trie.symbol, credit)
    start = 1  # all phrases begin with a border, the root's only child
    after = np.arange(len(trie.symbol), dtype=np.int32)
    if not overlapping:
        after[gain != 0] = start
    return Automaton(trie, fail, gain, credit, after, most_credit, start)


@compiled
def _link(
    trie: Trie,
    ends: Ids,
    lengths: npt.NDArray[np.int64],
    weights: Floats,
    fail: Ids,
    overlapping: Any,
    places: Any,
) -> tuple[Floats, Floats]:
    """Complete a trie to an automaton: fill `fail`, and make `gain` and `credit` of its nodes.

    `places` are the addresses that `follow` takes.
    """
    first, symbols, fails = places
    count = len(trie.symbol)
    gain = np.zeros(count, dtype=np.float64)
    credit = np.zeros(count, dtype=np.float64)
    for i in range(len(ends)):
        gain[ends[i]] += weights[i]
        steps = lengths[i] - 1  # the border that a phrase begins with is no progress
        node = trie.parent[ends[i]]
        for step in range(steps - 1, 0, -1):
            credit[node] = max(credit[node], weights[i] * step / steps)
            node = trie.parent[node]
    for node in range(1, count):  # parents come before their children, so does every shorter node
        parent = trie.parent[node]
        if parent != 0:
            fail[node] = follow(first, symbols, fails, np.int64(fail[parent]), np.int64(trie.symbol[node]))
        if overlapping or gain[node] == 0.0:
            gain[node] += gain[fail[node]]
        credit[node] = max(credit[node], credit[fail[node]])
    return gain, credit


@inlined
def follow(first: Any, symbols: Any, fail: Any, node: Any, symbol: Any) -> Any:
    """The node after `node` and a symbol: the longest ending of all that was read which begins a phrase.

    `first`, `symbols` and `fail` are addresses of an automaton's arrays.
    """
    while True:
        following = child(first, symbols, node, symbol)
        if following >= 0:
            return following
        if node == 0:
            return np.int64(0)
        node = np.int64(int32s(fail)[node])
