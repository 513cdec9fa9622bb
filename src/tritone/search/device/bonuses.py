"""What hotwords add to tokens, in the memory of a device: the tables of many lists, one after the other.

    tables = BonusTables(8193, "cuda:0", change)
    share = tables.share(scorer)      # None: there is no room; else its rows are there as long as `share` is
    tables.gains[share.start]         # (tokens,) what each token adds at the start of a text

A search on the device cannot walk an automaton symbol by symbol, so each state is a row over all tokens: what the token
adds, and the row of the state after it. Row 0 stands for no hotwords.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tritone.search.scoring.scorer import Scorer

FIRST_ENTRIES, MOST_ENTRIES = 2**20, 2**25  # of all rows and tokens, at first and at most: 8 and 256 MB
LIST_ENTRIES = 2**23  # of one list of hotwords, 125 names with 8,193 tokens; longer ones are searched on the CPU


class Share:
    """The rows of one scorer, which nobody else uses as long as this is there; `start`: the row of an empty text."""

    def __init__(self, start: int) -> None:
        """Take the row."""
        self.start = start


@dataclass(eq=False)
class _Block:
    """Rows of a scorer; when nobody has a share any more, others may have them if there is no other room."""

    scorer: Any
    first: int
    rows: int
    start: int
    shared: Callable[[], Share | None] = lambda: None


class BonusTables:
    """The tables of the lists in use, and of others as long as nobody needs their room.

    `gains` (rows, tokens) float32, `following` (rows, tokens) int32, `endings` (rows,) float64: see `Expanded`.
    """

    def __init__(
        self,
        num_tokens: int,
        silent: tuple[int, ...],
        device: torch.device | str = "cpu",
        change: Callable[[Callable[[], object], bool], object] = lambda change, moves: change(),
    ) -> None:
        """Start with row 0 alone.

        Args:
            silent: tokens that add nothing, such as the blank.
            change: calls a function while no search runs; whether the tensors become others.
        """
        self._num_tokens, self._silent, self._change = num_tokens, silent, change
        self._most = max(1, MOST_ENTRIES // num_tokens)
        rows = min(self._most, max(2, FIRST_ENTRIES // num_tokens))
        self.gains = torch.zeros(rows, num_tokens, dtype=torch.float32, device=device)
        self.following = torch.zeros(rows, num_tokens, dtype=torch.int32, device=device)
        self.endings = torch.zeros(rows, dtype=torch.float64, device=device)
        self._blocks: list[_Block] = []  # by their first rows
        self._lock = threading.Lock()

    @staticmethod
    def takes(scorer: "Scorer") -> bool:
        """Whether a scorer has hotwords alone, and no longer list of them than has a place here."""
        automaton = scorer.automaton
        if automaton is None or scorer.has_lm:
            return False
        return len(automaton.trie.symbol) * scorer.num_tokens <= LIST_ENTRIES

    def share(self, scorer: "Scorer") -> Share | None:
        """The rows of a scorer that `takes` allows, made if they are not there; None while others need all room."""
        with self._lock:
            block = next((each for each in self._blocks if each.scorer is scorer), None) or self._made(scorer)
            if block is None:
                return None
            share = block.shared() or Share(block.start)
            block.shared = weakref.ref(share)
            return share

    def _made(self, scorer: "Scorer") -> _Block | None:
        from tritone.search.scoring.expanded import expanded

        assert scorer.automaton is not None
        rows = len(scorer.automaton.trie.symbol)
        first = self._room(rows)
        if first is None:
            return None
        tables = expanded(scorer, self._silent)
        last, size = first + rows, len(self.gains)
        while size < last:
            size = min(2 * size, self._most)

        def write() -> None:
            parts = {"gains": tables.gains, "following": tables.following + first, "endings": tables.endings}
            for name, values in parts.items():
                tensor: torch.Tensor = getattr(self, name)
                if len(tensor) < size:
                    grown = tensor.new_zeros(size, *tensor.shape[1:])
                    grown[: len(tensor)] = tensor
                    setattr(self, name, tensor := grown)
                tensor[first:last] = torch.from_numpy(values)

        self._change(write, size > len(self.gains))
        block = _Block(scorer, first, rows, first + tables.start)
        self._blocks = sorted([*self._blocks, block], key=lambda each: each.first)
        return block

    def _room(self, rows: int) -> int | None:
        """The first of so many rows that nobody has; lists that nobody uses are dropped for it."""
        while True:
            first = 1
            for block in self._blocks:
                if block.first - first >= rows:
                    break
                first = block.first + block.rows
            if first + rows <= self._most:
                return first
            unused = next((each for each in self._blocks if each.shared() is None), None)
            if unused is None:
                return None
            self._blocks.remove(unused)
