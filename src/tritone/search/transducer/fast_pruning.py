"""Room for a fast beam search: dropping marks that no state needs, and deciding what has been open for too long."""

from typing import Any

import numpy as np

from tritone.search.beam.pruning import length_of
from tritone.search.compiled.addresses import int32s
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.scoring.scorer import LEXICON, OPEN, finish


@compiled
def make_room(marks: Any, states: Any, entries: Any, count: Any, settled: Any) -> Any:
    """Move the marks that are still needed to the front.

    Tokens with their times that all entries share are moved to `settled`, as long as `marks`.

    Args:
        marks: (room,) MARK, of which the first `count` are used.
        states: those alive, which say where their entries are.

    Returns:
        How many marks there are then, and how many were settled.
    """
    uses = np.zeros(count, dtype=np.int32)
    lists = 0
    for number in range(len(states)):
        for at in range(states[number].first, states[number].first + states[number].count):
            lists += 1
            if entries[at].mark >= 0:
                uses[entries[at].mark] += 1
    common = -1
    for mark in range(count - 1, -1, -1):
        if uses[mark] == lists and common < 0:
            common = mark
        if marks[mark].parent >= 0:
            uses[marks[mark].parent] += uses[mark]
    num_settled, mark = 0, common
    while mark >= 0:
        num_settled += 1
        mark = marks[mark].parent
    at, mark = num_settled, common
    while mark >= 0:
        at -= 1
        settled[at] = marks[mark]
        mark = marks[mark].parent
    moved = np.empty(count, dtype=np.int32)
    kept = 0
    for mark in range(common + 1, count):
        if uses[mark] > 0:
            moved[mark] = kept
            marks[kept] = marks[mark]
            before = marks[mark].parent
            marks[kept].parent = -1 if before <= common else moved[before]
            kept += 1
    for number in range(len(states)):
        for at in range(states[number].first, states[number].first + states[number].count):
            mark = entries[at].mark
            entries[at].mark = -1 if mark <= common else moved[mark]
    return kept, num_settled


@inlined
def _taken_over(marks: Any, last: Any, final: Any, length: Any) -> Any:
    """Let the list that ends in `last` begin with the list of `length` marks that ends in `final`, if it says the same.

    Returns:
        Its new end, or -1 if it says something else, or its next token before the last one of the other list.
    """
    more = length_of(marks, last) - length
    mark, next_mark = last, np.int64(-1)
    for _ in range(more):
        mark, next_mark = np.int64(marks[mark].parent), np.int64(mark)
    if more < 0 or (next_mark >= 0 and marks[next_mark].frame <= marks[final].frame):
        return np.int64(-1)
    other = final
    while mark >= 0 and mark != other:
        if marks[mark].token != marks[other].token:
            return np.int64(-1)
        mark, other = np.int64(marks[mark].parent), np.int64(marks[other].parent)
    if next_mark < 0:
        return final
    marks[next_mark].parent = final
    return np.int64(last)


@compiled
def decide(marks: Any, states: Any, entries: Any, before: Any) -> None:
    """Make final what the best entry says before frame `before`: drop the entries that say something else.

    The others take over the times of these tokens too, or are dropped where their later ones come before these. States
    that are left without an entry have a `count` of 0, and the other entries of a state move up.
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
            mark = _taken_over(marks, np.int64(entries[at].mark), final, length)
            if mark >= 0:
                entries[state.first + kept] = entries[at]
                entries[state.first + kept].mark = mark
                kept += 1
        state.count = kept


@compiled
def finish_all(scorer: Any, words: Any, gains: Any, ends: Any) -> None:
    """What the end of the text adds in each state of the scorer, and whether no unknown word is open there.

    Args:
        scorer: SCORER. words: (states, 2, size) int32. gains: (states,) float64 and `ends`: (states,) bool are filled.
    """
    for number in range(len(words)):
        state = words[number, 0]
        gains[number] = finish(scorer, state)
        ends[number] = True
        if scorer.has_lm and not scorer.by_token and state[OPEN]:
            node = np.int64(state[LEXICON])
            ends[number] = node >= 0 and int32s(scorer.lexicon_word)[node] >= 0
