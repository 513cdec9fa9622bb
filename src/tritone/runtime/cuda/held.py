"""Outputs that stay on their device, for another graph or a search there: nothing of them goes through the host.

encoder("held:encoder_out")  ->  Held  ->  decoder(encoder_out=Held)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Held:
    """An output on its device: its rows can be chosen, and graphs of the device take it. Freed when it is dropped."""

    def __init__(self, tensor: Tensor, ready: Any = None, rows: tuple[int, ...] | None = None) -> None:
        """Take a tensor that nobody else writes to.

        Args:
            ready: the CUDA event after which it has its numbers; None on the CPU.
            rows: the rows that this stands for, in their order; None for all.
        """
        self._tensor, self._ready, self._rows = tensor, ready, rows
        self.shape = (len(tensor) if rows is None else len(rows), *tensor.shape[1:])
        self.dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
        self.ndim = tensor.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> "Held":
        """Some of the rows, as of an array."""
        return Held(self._tensor[rows], self._ready) if self._rows is None else self.rows(range(len(self))[rows])

    def rows(self, rows: Sequence[int]) -> "Held":
        """Some of the rows, in any order; a row may be there twice."""
        chosen = tuple(rows if self._rows is None else (self._rows[row] for row in rows))
        return Held(self._tensor, self._ready, None if chosen == tuple(range(len(self._tensor))) else chosen)

    def tensor(self) -> Tensor:
        """The rows as a tensor. On a GPU for work on the present stream, which waits until the numbers are there."""
        found = self._tensor
        if self._ready is not None:
            stream = torch.cuda.current_stream(found.device)
            stream.wait_event(self._ready)
            found.record_stream(stream)  # its memory is not used again before this stream is done with it
        if self._rows is None:
            return found
        index = torch.tensor(self._rows, dtype=torch.int64, pin_memory=found.is_cuda)
        return found.index_select(0, index.to(found.device, non_blocking=True))

    def numpy(self) -> npt.NDArray[Any]:
        """The rows on the host; waits for them."""
        with torch.inference_mode():
            return self.tensor().cpu().numpy()


def tensor_of(value: Any) -> Tensor:
    """The tensor of an array or of a `Held`."""
    return value.tensor() if isinstance(value, Held) else torch.from_numpy(value)
