"""Compiled work on fast beam searches between frames: dropping marks and entries that nobody needs."""

from typing import Any

import numpy as np

from tritone.search.beam.marks import compact, graft, length_of
from tritone.search.compiled.addresses import int32s
from tritone.search.compiled.compiler import compiled
from tritone.search.scoring.scorer import LEXICON, OPEN, finish, scorer_at


@compiled
def make_room(marks: Any, states: Any, entries: Any, count: Any, settled: Any) -> Any:
    """Move the marks that are still needed to the front.

    Tokens with their times that all entries share are moved to `settled`, which has room for all.

    Args:
        marks: (room,) MARK, of which the first `count` are used.
        states: those alive, whose entries are those of `entries`.

    Returns:
        How many marks there are then, and how many were settled.
    """
    total = np.int64(0)
    for number in range(len(states)):
        total += states[number].count
    lists = np.empty(total, dtype=np.int32)
    at = np.int64(0)
    for number in range(len(states)):
        for i in range(states[number].first, states[number].first + states[number].count):
            lists[at] = entries[i].mark
            at += 1
    counts = compact(marks, count, lists, settled, False)
    at = np.int64(0)
    for number in range(len(states)):
        for i in range(states[number].first, states[number].first + states[number].count):
            entries[i].mark = lists[at]
            at += 1
    return counts


@compiled
def decide(marks: Any, states: Any, entries: Any, before: Any) -> None:
    """Keep only the entries that begin with the tokens which the best one has before frame `before`.

    They take over the times of these tokens too, or are dropped where their later ones come before these. States that
    are left without an entry have a `count` of 0, and the other entries of a state move up.
    """
    final = np.int64(entries[states[0].first].mark)
    while final >= 0 and marks[final].frame >= before:
        final = np.int64(marks[final].parent)
    length = length_of(marks, final)
    if length == 0:
        return
    for number in range(len(states)):
        state = states[number]
        kept = 0
        for at in range(state.first, state.first + state.count):
            mark = graft(marks, entries[at].mark, final, length)
            if mark >= 0:
                entries[state.first + kept] = entries[at]
                entries[state.first + kept].mark = mark
                kept += 1
        state.count = kept


@compiled
def finish_all(address: Any, words: Any, gains: Any, ends: Any) -> None:
    """What the end of the text adds in each state of the scorer, and whether no unknown word is open there.

    Args:
        address: of a `SCORER`. words: (states, 2, size) int32.
        gains: (states,) float64, and `ends`: (states,) bool; both are filled.
    """
    scorer = scorer_at(address)
    for number in range(len(words)):
        state = words[number, 0]
        gains[number] = finish(address, state)
        ends[number] = True
        if scorer.has_lm and not scorer.by_token and state[OPEN]:
            node = np.int64(state[LEXICON])
            ends[number] = node >= 0 and int32s(scorer.lexicon_word)[node] >= 0
