"""Greedy search with a predictor that has a state, such as an LSTM; of TDT models with durations.

    encoder_out (batch, frames, dim), one StatefulState for each row  ->  the new tokens of each row

In each step every row joins its next frame with the vector of its last token. An RNN transducer stays in the frame
after a token and goes on after a blank. A token-and-duration transducer (TDT) has a duration for either, by how many
frames it goes on, after a blank by one at least. A frame with as many tokens as it may have is left.

Logits that are not finite are ruled out; where that leaves nothing, the frame is blank.

Source: NeMo's greedy decoding (nemo/collections/asr/parts/submodules/transducer_decoding/rnnt_label_looping.py and
tdt_label_looping.py; "Efficient Sequence Transduction by Jointly Predicting Tokens and Durations", arXiv 2304.06795),
whose tokens and times it gives.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.search.hypothesis import Token
from tritone.search.transducer.network import StatefulNetwork, Vectors


class StatefulState:
    """The search in one utterance or stream. Not for several threads at once.

    Any cutting of the frames into calls of `advance_stateful`, and any neighbours there, give the same tokens and
    starts.
    """

    def __init__(self, network: StatefulNetwork, *, blank_penalty: float = 0.0, max_symbols: int = 1) -> None:
        """Start before the first token.

        Args:
            blank_penalty: is subtracted from the blank's logit.
            max_symbols: the most tokens of one frame, at least 1.
        """
        if max_symbols < 1:
            raise ValueError(f"max_symbols must be at least 1, got {max_symbols}")
        self.network = network
        self.blank_penalty = blank_penalty
        self.max_symbols = max_symbols
        self.num_frames = 0
        self.ahead = 0  # frames to skip of those that come next
        self.symbols = 0  # tokens of the frame that it is in
        vector, states = network.first
        self.vector, self.states = vector[0], [state[0] for state in states]


def advance_stateful(
    searches: Sequence[StatefulState], encoder_out: Vectors, num_frames: npt.NDArray[np.integer[Any]]
) -> list[list[Token]]:
    """Search further frames of several utterances or streams.

    Args:
        searches: one for each row, all different, all with the same network.
        encoder_out: (batch, frames, dim) float32; what lies at or beyond `num_frames` is ignored.
        num_frames: (batch,) further frames of each row; 0 or less are none.

    Returns:
        The new tokens of each row. Frames count from the start of the search; `end_frame` is the next one, or with
        durations where the token ends, within the frames of this call.

    Raises:
        ValueError: there is not one of `searches` for each row, they have not one network, or the network's answers
            are of another shape.
    """
    batch, max_frames, _ = encoder_out.shape
    networks = {id(each.network): each.network for each in searches}
    if not len({id(each) for each in searches}) == len(searches) == batch == len(num_frames) or len(networks) > 1:
        raise ValueError(
            f"each row needs a search of its own, all with one network; got {batch} rows, {len(searches)} searches, "
            f"{len(networks)} networks and {len(num_frames)} numbers of frames"
        )
    new: list[list[Token]] = [[] for _ in searches]
    if not searches:
        return new
    [network] = networks.values()
    ends = np.clip(num_frames, 0, max_frames).astype(np.int64)
    place = np.array([each.ahead for each in searches])
    symbols = np.array([each.symbols for each in searches])
    penalties = np.array([each.blank_penalty for each in searches], dtype=np.float32)
    most = np.array([each.max_symbols for each in searches])
    vectors = np.stack([each.vector for each in searches])
    states = [np.stack(each) for each in zip(*(search.states for search in searches), strict=True)]
    durations = np.array(network.durations, dtype=np.int64)
    while len(rows := np.flatnonzero(place < ends)):
        tokens, spans, confidences = _answers(network, encoder_out[rows, place[rows]], vectors[rows], penalties[rows])
        emits = tokens != network.blank_id
        # A blank leaves its frame whatever its duration; without durations nothing else does.
        steps = np.where(emits, durations[spans], np.maximum(durations[spans], 1)) if len(durations) else 1 - emits
        symbols[rows] = np.where(steps == 0, symbols[rows] + 1, 0)
        full = (steps == 0) & (symbols[rows] >= most[rows])
        symbols[rows[full]] = 0
        for index in np.flatnonzero(emits).tolist():
            row = int(rows[index])
            start, length = int(place[row]), max(1, int(steps[index]))
            first, end = searches[row].num_frames, min(start + length, int(ends[row]))
            new[row].append(Token(int(tokens[index]), first + start, first + end, float(confidences[index])))
        place[rows] += np.where(full, 1, steps)
        if len(spoken := rows[emits]):
            given = tokens[emits].astype(np.int64)[:, None]
            vectors[spoken], found = network.step(given, [state[spoken] for state in states])
            for state, value in zip(states, found, strict=True):
                state[spoken] = value
    for row, search in enumerate(searches):
        search.ahead, search.symbols = int(place[row] - ends[row]), int(symbols[row])
        search.num_frames += int(ends[row])
        # Copies: a view would keep the whole batch.
        search.vector, search.states = vectors[row].copy(), [state[row].copy() for state in states]
    return new


def _answers(
    network: StatefulNetwork, frames: Vectors, vectors: Vectors, penalties: Vectors
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """For each row the best token, the index of the best duration, and the token's probability."""
    logits = network.join(frames, vectors)
    if logits.shape != (len(frames), width := network.vocab_size + len(network.durations)):
        raise ValueError(f"the joiner's logits must be {(len(frames), width)}, got {logits.shape}")
    logits = np.where(np.isfinite(logits), logits, -np.inf).astype(np.float32, copy=False)
    scores, spans = logits[:, : network.vocab_size], logits[:, network.vocab_size :]
    scores[:, network.blank_id] -= penalties
    best = scores.max(axis=1)
    tokens = np.where(best > -np.inf, scores.argmax(axis=1), network.blank_id)
    with np.errstate(invalid="ignore"):  # a row of -inf alone, whose probability nobody reads
        confidences = 1.0 / np.exp(scores - best[:, None]).sum(axis=1)
    return tokens, spans.argmax(axis=1) if spans.shape[1] else tokens, confidences
