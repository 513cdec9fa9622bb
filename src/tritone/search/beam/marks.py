"""Compiled work on marks: lists of tokens with their times, each list named by its last mark.

Marks are in the order of their frames, a parent before its children; -1 is the empty list.
"""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import compiled, inlined


@inlined
def compact(marks: Any, count: Any, lists: Any, settled: Any, keeps_last: Any) -> Any:
    """Move the marks that are still needed to the front.

    Args:
        marks: (room,) MARK, of which the first `count` are used.
        lists: (n,) int32, all lists; each is replaced by where it is then.
        settled: as long as `count` at least; tokens at the beginning that all lists share are moved here.
        keeps_last: whether the last of these stays, because its time may still change.

    Returns:
        How many marks there are then, and how many were settled.
    """
    uses = np.zeros(count, dtype=np.int32)
    for i in range(len(lists)):
        if lists[i] >= 0:
            uses[lists[i]] += 1
    common = np.int64(-1)
    for each in range(count - 1, -1, -1):
        if uses[each] == len(lists) and common < 0:
            common = np.int64(each)
        if marks[each].parent >= 0:
            uses[marks[each].parent] += uses[each]
    if keeps_last and common >= 0:
        common = np.int64(marks[common].parent)
    num_settled = length_of(marks, common)
    at, mark = num_settled, common
    while mark >= 0:
        at -= 1
        settled[at] = marks[mark]
        mark = np.int64(marks[mark].parent)
    moved = np.empty(count, dtype=np.int32)
    kept = np.int64(0)
    for each in range(common + 1, count):
        if uses[each] > 0:
            moved[each] = kept
            marks[kept] = marks[each]
            before = marks[each].parent
            marks[kept].parent = -1 if before <= common else moved[before]
            kept += 1
    for i in range(len(lists)):
        lists[i] = -1 if lists[i] <= common else moved[lists[i]]
    return kept, num_settled


@inlined
def graft(marks: Any, last: Any, final: Any, length: Any) -> Any:
    """Let the list `last` begin with the list `final` of `length` marks, if its tokens do.

    Returns:
        Its new end, or -1: its tokens differ, or the first one after those comes no later than the last of `final`.
    """
    more = length_of(marks, last) - length
    mark, next_mark = np.int64(last), np.int64(-1)
    for _ in range(more):
        mark, next_mark = np.int64(marks[mark].parent), mark
    if more < 0 or (next_mark >= 0 and marks[next_mark].frame <= marks[final].frame):
        return np.int64(-1)
    other = final
    while mark >= 0 and mark != other:
        if marks[mark].token != marks[other].token:
            return np.int64(-1)
        mark, other = np.int64(marks[mark].parent), np.int64(marks[other].parent)
    if next_mark < 0:
        return np.int64(final)
    marks[next_mark].parent = final
    return np.int64(last)


@inlined
def length_of(marks: Any, last: Any) -> Any:
    """How many marks a list has."""
    length, mark = np.int64(0), np.int64(last)
    while mark >= 0:
        length += 1
        mark = np.int64(marks[mark].parent)
    return length


@compiled
def measure_lists(marks: Any, lasts: Any, ends: Any) -> None:
    """Write where each of some lists ends when all of them stand one after the other.

    Args:
        lasts: (n,) int32, their last marks.
        ends: (n,) int64, to write to.
    """
    end = np.int64(0)
    for i in range(len(lasts)):
        end += length_of(marks, lasts[i])
        ends[i] = end


@compiled
def read_lists(marks: Any, lasts: Any, num_settled: Any, ends: Any, out: Any) -> None:
    """Write the marks of lists to `out`, one list after the other, each with the settled marks in front.

    Args:
        num_settled: they are 0, 1 ... in `out`, and those of `marks` follow them.
        ends: where each list ends in `out`.
    """
    for i in range(len(lasts)):
        at, mark = ends[i], np.int64(lasts[i])
        while mark >= 0:
            at -= 1
            out[at] = num_settled + mark
            mark = np.int64(marks[mark].parent)
        for each in range(num_settled):
            out[at - num_settled + each] = each
