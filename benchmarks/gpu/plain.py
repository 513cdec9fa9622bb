"""A conformer as plain as can be: features in, best tokens out, one precision, torch's own attention.

What a compiled network of the same size does without features and masks; random weights.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class Plain(nn.Module):
    """(batch, frames, bins) -> best tokens and their log-probabilities, (batch, frames / 4) each."""

    def __init__(self, width: int, heads: int, hidden: int, kernel: int, layers: int, vocab: int, bins: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, 2)
        self.second = nn.Conv2d(width, width, 3, 2)
        self.embed = nn.Linear(width * (((bins - 1) // 2 - 1) // 2), width)
        self.layers = nn.ModuleList(_Layer(width, heads, hidden, kernel) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.second(F.relu(self.first(features.unsqueeze(1)))))
        x = self.embed(x.transpose(1, 2).flatten(2))
        for layer in self.layers:
            x = layer(x)
        scores, tokens = self.head(self.norm(x)).float().log_softmax(dim=-1).max(dim=-1)
        return tokens, scores


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, kernel: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(6))
        self.before, self.after = (
            nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width)) for _ in range(2)
        )
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gated, self.last = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.depthwise = nn.Conv1d(width, width, kernel, groups=width, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(self.norms[0](x))
        q, k, v = self.qkv(self.norms[1](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = F.glu(self.gated(self.norms[2](x)), dim=-1).transpose(1, 2)
        y = F.silu(self.norms[3](self.depthwise(y).transpose(1, 2)))
        x = x + self.last(y)
        x = x + 0.5 * self.after(self.norms[4](x))
        out: Tensor = self.norms[5](x)
        return out
