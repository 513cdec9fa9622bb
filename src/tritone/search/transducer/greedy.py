"""Greedy search: in each frame the best token, until a blank is better or the frame has enough.

    encoder_out (batch, frames, dim), one GreedyState for each row  ->  the new tokens of each row

Most frames are blank, and until a token is found the context stays what it is. So the joiner is asked for a block of
the next frames of every row at once, and each row goes on after its first token: the number of calls follows the number
of tokens, not that of frames. Rows do not wait for each other.

Logits that are not finite are ruled out; where that leaves nothing, the frame is blank.

Source: `greedy_search` and `greedy_search_batch` of icefall (egs/librispeech/ASR/pruned_transducer_stateless2/
beam_search.py), whose tokens and times it gives, without their limit of 1000 tokens. The loop over labels in place of
frames is that of NVIDIA's NeMo ("Label-Looping: Highly Efficient Decoding for Transducers", arXiv 2406.06220).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritone.later import later
from tritone.search.hypothesis import Token
from tritone.search.transducer.network import Vectors, as_answers
from tritone.search.transducer.predictor import PredictorCache, common_cache

if TYPE_CHECKING:
    from tritone.search.transducer import greedy_kernel
else:
    greedy_kernel = later("greedy_kernel")

CALL_ROWS = 10  # what a call of the joiner costs on top, in rows: 0.06 ms on two cores, at 5 us a row of 512 by 500
MAX_BLOCK = 32  # frames
USUAL_RATE, USUAL_FRAMES = 0.15, 50  # tokens per frame to expect of a stream, and how many frames that belief is worth


class GreedyState:
    """The search in one utterance or stream. Not for several threads at once.

    Any cutting of the frames into calls of `advance_greedy`, and any neighbours there, give the same tokens.
    """

    def __init__(self, cache: PredictorCache, *, blank_penalty: float = 0.0, max_symbols: int = 1) -> None:
        """Start before the first token.

        Args:
            cache: of the predictor of the network that is searched with.
            blank_penalty: is subtracted from the blank's logit.
            max_symbols: the most tokens of one frame, at least 1.
        """
        if max_symbols < 1:
            raise ValueError(f"max_symbols must be at least 1, got {max_symbols}")
        self.cache = cache
        self.blank_penalty = blank_penalty
        self.max_symbols = max_symbols
        self.context: npt.NDArray[np.int64] = np.array(cache.network.start, dtype=np.int64)
        self.num_frames = 0
        self.num_tokens = 0


def advance_greedy(
    states: Sequence[GreedyState],
    encoder_out: Vectors,
    num_frames: npt.NDArray[np.integer[Any]],
    *,
    call_rows: int = CALL_ROWS,
) -> list[list[Token]]:
    """Search further frames of several utterances or streams.

    Args:
        states: one for each row, all different, all with the same cache.
        encoder_out: (batch, frames, dim) float32; what lies at or beyond `num_frames` is ignored.
        num_frames: (batch,) further frames of each row; 0 or less are none.
        call_rows: as how many rows a call of the joiner costs on top; where calls are dear and rows cheap, as on a GPU,
            more rows are joined in vain and calls saved. The result is the same.

    Returns:
        The new tokens of each row. Frames count from the start of the state; `end_frame` is the next one.

    Raises:
        ValueError: there is not one of `states` for each row, or they have not one cache.
    """
    encoder_out = np.ascontiguousarray(encoder_out, dtype=np.float32)
    batch, max_frames, dim = encoder_out.shape
    if not batch and not states:
        return []
    frames = encoder_out.reshape(-1, dim)
    cache = common_cache(states, batch, num_frames)
    network = cache.network
    contexts = np.stack([state.context for state in states])
    unk_id = -1 if network.unk_id is None else network.unk_id
    rows = np.zeros(batch, dtype=greedy_kernel.ROW)
    rows["num_frames"] = np.clip(num_frames, 0, max_frames)
    rows["blank_penalty"] = [state.blank_penalty for state in states]
    rows["max_symbols"] = [state.max_symbols for state in states]
    places, askers = (np.empty(batch * MAX_BLOCK, dtype=np.int64) for _ in range(2))
    found, num_found = np.empty(4 * batch, dtype=greedy_kernel.FOUND), 0
    before = sum(state.num_tokens for state in states), sum(state.num_frames for state in states)
    while num_rows := int(np.count_nonzero(rows["frame"] < rows["num_frames"])):
        passed = before[1] + int(rows["frame"].sum())
        rate = (before[0] + num_found + USUAL_RATE * USUAL_FRAMES) / (passed + USUAL_FRAMES)
        count = greedy_kernel.ask(rows, _block_size(num_rows, round(rate, 2), call_rows), max_frames, places, askers)
        predicted = np.take(cache(contexts), askers[:count], axis=0)
        logits = network.join(np.take(frames, places[:count], axis=0), predicted)
        if num_found + batch > len(found):
            found = np.concatenate([found, np.empty_like(found)])
        answers = as_answers(logits, count, network.vocab_size)
        num_found = greedy_kernel.listen(rows, answers, contexts, found, num_found, network.blank_id, unk_id)
    new: list[list[Token]] = [[] for _ in states]
    for row, token, frame, confidence in found[:num_found].tolist():
        frame += states[row].num_frames
        new[row].append(Token(token, frame, frame + 1, confidence))
    for state, context, tokens, row in zip(states, contexts, new, rows, strict=True):
        state.context = context
        state.num_tokens += len(tokens)
        state.num_frames += int(row["num_frames"])
    return new


@lru_cache(4096)
def _block_size(num_rows: int, rate: float, call_rows: int) -> int:
    """How many frames of each row to ask for: as many as bring the rows on the furthest for what the call costs.

    A row goes on to its first token: by (1 - (1 - rate)^n) / rate frames of n, if tokens come at that rate.
    """
    rate = min(max(rate, 0.01), 0.99)

    def worth(size: int) -> float:
        return (1 - (1 - rate) ** size) / rate / (call_rows / num_rows + size)

    return max(range(1, MAX_BLOCK + 1), key=worth)
