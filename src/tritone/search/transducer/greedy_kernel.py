"""The compiled part of greedy search: what the joiner says to a block of frames of every row of a batch.

A row's block are its next frames, all joined with its present context. What comes after the first token in a block was
joined with a context that is no longer true, and is asked for again.
"""

from typing import Any

import numpy as np

from tritone.search.compiled.compiler import compiled
from tritone.search.compiled.ranks import LOWEST, float_of, largest_rank, rank_of
from tritone.search.transducer.softmax import sum_exp

# The search in one row of a batch.
ROW = np.dtype(
    [
        ("frame", np.int64),  # where it is
        ("symbols", np.int64),  # tokens found in that frame
        ("num_frames", np.int64),  # how many it has
        ("block", np.int64),  # frames that the joiner is asked for
        ("max_symbols", np.int64),  # the most tokens of one frame
        ("blank_penalty", np.float64),  # natural-log units
    ]
)

# A token that was found: of row `row` in frame `frame`.
FOUND = np.dtype([("row", np.int64), ("token", np.int64), ("frame", np.int64), ("confidence", np.float64)])


@compiled
def ask(rows: Any, block: Any, max_frames: Any, places: Any, askers: Any) -> Any:
    """Choose what the joiner computes: the next `block` frames of each row, or as many as it has left.

    Args:
        rows: (batch,) `ROW` records; their `block` is filled.
        max_frames: the frames that each row has in the table of frames.
        places: (n,) int64 indices in that table, `askers`: (n,) int64 of the rows; both are filled.

    Returns:
        How many frames there are.
    """
    count = np.int64(0)
    for i in range(len(rows)):
        row = rows[i]
        row.block = min(block, row.num_frames - row.frame)
        for frame in range(row.frame, row.frame + row.block):
            places[count], askers[count] = i * max_frames + frame, i
            count += 1
    return count


@compiled
def listen(rows: Any, logits: Any, contexts: Any, found: Any, first: Any, blank_id: Any, unk_id: Any) -> Any:
    """Move each row to the frame after its block, or to where it found a token, which goes into its context.

    Args:
        logits: (n, vocab) float32, the joiner's.
        contexts: (batch, context_size) int64.
        found: `FOUND` records, from `first` on; there is room for one of each row.
        unk_id: a token that counts as blank, or -1.

    Returns:
        How many records there are.
    """
    bits = logits.view(np.int32)
    at = np.int64(0)
    for i in range(len(rows)):
        row = rows[i]
        end = at + row.block
        while at < end:
            blank = np.float32(logits[at, blank_id] - np.float32(row.blank_penalty))
            logits[at, blank_id] = blank
            best = largest_rank(bits[at])
            # Of equal logits the first counts, as everywhere; NaN and infinity do not.
            token = np.int64(0)
            while best != LOWEST and rank_of(bits[at, token]) != best:
                token += 1
            if best == LOWEST or float_of(best) == -np.inf or token in (blank_id, unk_id):
                at += 1
                row.frame += 1
                row.symbols = 0
                continue
            found[first].row, found[first].token, found[first].frame = i, token, row.frame
            found[first].confidence = 1.0 / sum_exp(logits[at], float_of(best), 1.0)
            first += 1
            for j in range(contexts.shape[1] - 1):
                contexts[i, j] = contexts[i, j + 1]
            contexts[i, contexts.shape[1] - 1] = token
            row.symbols += 1
            if row.symbols >= row.max_symbols:
                row.frame += 1
                row.symbols = 0
            break
        at = end
    return first
