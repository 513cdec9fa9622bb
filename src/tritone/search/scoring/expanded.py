"""What hotwords add, as tables over all tokens: for searches that cannot walk an automaton symbol by symbol.

    scorer of hotwords alone  ->  Expanded; a row and a token  ->  what the token adds, and the next row

Without a language model a scorer's state is a node of its automaton: the last symbol of the node says whether a word is
open, because every border leads to the node that begins all phrases, or to one after it.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tritone.search.compiled.compiler import compiled
from tritone.search.scoring.alphabet import BORDER
from tritone.search.scoring.scorer import HOTWORDS, OPEN, STATE_SIZE, Scorer, extend, finish


class Expanded(NamedTuple):
    """The tables of a scorer; `start` is the row of the empty text."""

    gains: npt.NDArray[np.float32]  # (rows, tokens)
    following: npt.NDArray[np.int32]  # (rows, tokens)
    endings: npt.NDArray[np.float64]  # (rows,), what the end of the text adds
    start: int


def expanded(scorer: Scorer, silent: tuple[int, ...]) -> Expanded:
    """Walk all tokens from all nodes of a scorer without a language model; some 50 ns for each pair.

    Args:
        silent: tokens that add nothing, such as the blank.
    """
    assert scorer.automaton is not None
    assert not scorer.has_lm
    symbols = scorer.automaton.trie.symbol
    rows, tokens = len(symbols), scorer.num_tokens
    gains, following = np.zeros((rows, tokens), np.float32), np.zeros((rows, tokens), np.int32)
    endings = np.zeros(rows)
    _fill(scorer.address, symbols, gains, following, endings)
    gains[:, silent] = 0.0
    following[:, silent] = np.arange(rows)[:, None]
    return Expanded(gains, following, endings, scorer.automaton.start)


@compiled
def _fill(address: Any, symbols: Any, gains: Any, following: Any, endings: Any) -> None:
    state, after = np.empty(STATE_SIZE, dtype=np.int32), np.empty(STATE_SIZE, dtype=np.int32)
    for row in range(len(gains)):
        for i in range(STATE_SIZE):
            state[i] = -1
        state[HOTWORDS] = row
        state[OPEN] = row == 0 or symbols[row] != BORDER
        endings[row] = finish(address, state)
        for token in range(gains.shape[1]):
            gains[row, token] = extend(address, state, token, after)
            following[row, token] = after[HOTWORDS]
