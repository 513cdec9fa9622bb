"""How long each row of a batch is, at some layer of a network.

What is behind a row's end is zeroed before every convolution that looks at more than one frame, as a convolution's own
padding would be, and left out of means and deviations. So a row gives what it gives alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tritone.families.export.precision import as_dtype

VARIANCE_GUARD = 1e-7  # under the root of a variance


@dataclass(frozen=True)
class Rows:
    """`frames`: (batch,) int64. `inside`: (batch, 1, frames) bool, whether a frame is before its row's end.

    `mask`: the same as 1 and 0 in the type of the activations. `even`: it is known that all frames are of audio,
    so that there is nothing to zero.
    """

    frames: Tensor
    inside: Tensor
    mask: Tensor
    even: bool = False

    @classmethod
    def of(cls, frames: Tensor, x: Tensor, *, even: bool = False) -> "Rows":
        """The rows of activations (batch, ..., frames)."""
        inside = (torch.arange(x.shape[-1], device=x.device) < frames.unsqueeze(1)).unsqueeze(1)
        return cls(frames, inside, inside.to(x.dtype), even)

    def halved(self, x: Tensor) -> "Rows":
        """The rows of `x`, which a convolution of stride 2 has made; odd lengths are rounded up."""
        return Rows.of((self.frames + 1) // 2, x, even=self.even)

    def mute(self, x: Tensor) -> Tensor:
        """Zeros behind the ends: of (batch, channels, frames), or of images (batch, channels, bins, frames)."""
        if self.even:
            return x
        return x * (self.mask if x.dim() == 3 else self.mask.unsqueeze(1))

    def count(self, less: int = 0) -> Tensor:
        """Frames of each row (batch, 1, 1), `less` so many; at least 1, to divide by. In a type that holds them all."""
        return torch.clamp(self.frames - less, min=1).to(wide(self.mask).dtype).unsqueeze(1).unsqueeze(1)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over frames of (batch, channels, frames): (batch, channels, 1)."""
        return as_dtype(wide(self.mute(x)).sum(dim=2, keepdim=True) / self.count(), x.dtype)


def wide(x: Tensor) -> Tensor:
    """`x` in a type in which statistics over many frames keep their digits."""
    return as_dtype(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def cut(features: Tensor, num_frames: Tensor, dtype: torch.dtype, *, even: bool = False) -> tuple[Tensor, Rows]:
    """Features (batch, frames, bins) as (batch, bins, frames), zero behind the rows' ends, and how long rows are."""
    x = as_dtype(features, dtype).transpose(1, 2)
    rows = Rows.of(num_frames, x, even=even)
    return torch.where(rows.inside, x, torch.zeros((), dtype=dtype, device=x.device)), rows


def wide_rows(x: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
    """Activations and rows in a type for statistics."""
    x = wide(x)
    return x, Rows(rows.frames, rows.inside, wide(rows.mask))


def mean_and_deviation(x: Tensor, rows: Rows, guard: float = VARIANCE_GUARD) -> tuple[Tensor, Tensor]:
    """Mean and unbiased deviation over the frames of each row, (batch, channels, 1) each."""
    mean = rows.mean(x)
    variance = rows.mute(x - mean).square().sum(dim=2, keepdim=True) / rows.count(less=1)
    return mean, torch.sqrt(variance + guard)


def weighted(x: Tensor, scores: Tensor, rows: Rows, guard: float = VARIANCE_GUARD) -> Tensor:
    """Mean and deviation (batch, 2 x channels) with weights that are the softmax of `scores` over a row's frames.

    `scores`: (batch, channels or 1, frames). `guard`: the least variance.
    """
    scores = torch.where(rows.inside, scores, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=2)
    x = rows.mute(x)
    mean = (weights * x).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2)
    return torch.cat([mean.squeeze(2), torch.sqrt(variance.clamp(min=guard))], dim=1)
