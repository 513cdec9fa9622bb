"""What training wants of embeddings: a class each, with a margin, and two crops of a voice near each other."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MarginSoftmax(nn.Module):
    """Cross entropy over cosines to the classes' directions, the true class's angle widened by `margin` radians.

    A class may have several directions, of which the nearest counts.
    Source: Deng et al., ArcFace, CVPR 2019; Deng et al., Sub-center ArcFace, ECCV 2020.
    """

    def __init__(self, dim: int, classes: int, *, scale: float = 32.0, directions: int = 1) -> None:
        super().__init__()
        self.scale, self.directions = scale, directions
        self.weight = nn.Parameter(torch.empty(classes * directions, dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, embeddings: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, Tensor]:
        """Loss and share of rows whose own class is nearest, of (rows, dim) and (rows,)."""
        cosine = F.linear(F.normalize(embeddings), F.normalize(self.weight))
        cosine = cosine.view(len(labels), -1, self.directions).amax(dim=2)
        own = cosine.gather(1, labels.unsqueeze(1))
        sine = torch.sqrt(torch.clamp(1.0 - own.square(), min=1e-6))
        wide = own * math.cos(margin) - sine * math.sin(margin)
        # Beyond pi the cosine would rise again; a straight line goes on in its place.
        wide = torch.where(own > math.cos(math.pi - margin), wide, own - math.sin(math.pi - margin) * margin)
        logits = self.scale * cosine.scatter(1, labels.unsqueeze(1), wide)
        correct = (cosine.argmax(dim=1) == labels).float().mean()
        return F.cross_entropy(logits, labels), correct


class PairLoss(nn.Module):
    """The two crops of a voice find each other among all crops of a batch, by cosine.

    Source: Chung et al., In defence of metric learning for speaker recognition, Interspeech 2020 (angular
    prototypical loss), here in both directions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Mean over rows, of (classes, dim) each."""
        cosine = F.normalize(first) @ F.normalize(second).T
        logits = torch.exp(torch.clamp(self.log_scale, max=math.log(50.0))) * cosine
        truth = torch.arange(len(first), device=first.device)
        return 0.5 * (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth))
