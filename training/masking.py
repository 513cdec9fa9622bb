"""SpecAugment: bands and stretches of features that the network does not get to see."""

from __future__ import annotations

import torch
from torch import Tensor


class SpecAugment:
    """Masks bands and stretches of features with their mean."""

    def __init__(self, *, freq_masks: int, freq_mask_bins: int, time_masks: int, time_mask_share: float) -> None:
        self.freq_masks, self.freq_mask_bins = freq_masks, freq_mask_bins
        self.time_masks, self.time_mask_share = time_masks, time_mask_share

    def __call__(self, feats: Tensor, lengths: Tensor, mean: Tensor) -> Tensor:
        """Mask (batch, frames, bins) within the valid frames (batch,); `mean` (bins,) takes the place."""
        batch, frames, bins = feats.shape
        device = feats.device
        width = torch.rand(batch, self.freq_masks, 1, device=device) * (self.freq_mask_bins + 1)
        begin = torch.rand(batch, self.freq_masks, 1, device=device) * (bins - width)
        places = torch.arange(bins, device=device)
        masked_bins = ((places >= begin) & (places < begin + width.floor())).any(dim=1)
        limits = lengths.view(batch, 1, 1).float()
        # Words are short: each mask covers at most this share of the utterance.
        width = torch.rand(batch, self.time_masks, 1, device=device) * self.time_mask_share * limits
        begin = torch.rand(batch, self.time_masks, 1, device=device) * (limits - width)
        places = torch.arange(frames, device=device)
        masked_frames = ((places >= begin) & (places < begin + width.floor())).any(dim=1)
        return torch.where(masked_bins.unsqueeze(1) | masked_frames.unsqueeze(2), mean, feats)
