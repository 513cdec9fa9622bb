"""Features less their mean, and divided by their deviation, over a row's own frames."""

import torch
from torch import Tensor

VARIANCE_GUARD = 1e-7  # is added to the variance that features are divided by the root of


def normalised(features: Tensor, num_frames: Tensor, normalize: str) -> Tensor:
    """Subtract the mean over a row's `num_frames` (batch,) frames; 0 beyond them.

    Args:
        features: (batch, frames, bins), of any finite numbers where a row has no frames.
        normalize: `none`, `mean`, or `per-feature`, which divides by the deviation as well.
    """
    places = torch.arange(features.shape[1], device=features.device)
    beyond = (places >= num_frames.unsqueeze(1)).unsqueeze(2)
    if normalize == "none":
        return features.masked_fill(beyond, 0.0)
    count = torch.clamp(num_frames, min=1).unsqueeze(1).unsqueeze(2)
    # Sums of float32 over an hour of frames are off in the third digit. A mean that is nearly right is subtracted
    # first, and what is left of it, which is small, by a second one; bands that are constant become 0 exactly.
    features = (features - features[:, :1]).masked_fill(beyond, 0.0)
    for _ in range(2):
        mean = features.sum(dim=1, keepdim=True) / count
        features = (features - mean).masked_fill(beyond, 0.0)
    if normalize == "mean":
        return features
    variance = features.square().sum(dim=1, keepdim=True) / torch.clamp(count - 1, min=1)
    return features / torch.sqrt(variance + VARIANCE_GUARD)
