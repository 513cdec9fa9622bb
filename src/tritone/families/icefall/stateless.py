"""icefall's stateless predictor (upstream's `decoder`) and its joiner; the same for conformer and zipformer.

    context (rows, context_size)          ->  predictor_out (rows, width)
    encoder_out, predictor_out (rows, J)  ->  logits (rows, vocab)

Upstream's joiner projects both its inputs by itself. Here the projections are methods of their own, so that a graph can
do them where they are done once: an encoder frame is joined with many contexts, and a context with many frames.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.export.precision import as_dtype

MAX_CONTEXT = 16


@dataclass(frozen=True, kw_only=True)
class PredictorConfig:
    """Sizes of predictor and joiner.

    `group_size`: channels that each output of the convolution sees; 1 in the conformer recipes, 4 in zipformer's.
    `bare_relu`: a context of one token, for which there is no convolution, is passed through ReLU all the same, as the
    conformer recipes do and zipformer's does not.
    """

    vocab_size: int
    width: int
    joiner_dim: int
    context_size: int = 2
    group_size: int = 1
    bare_relu: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.context_size <= MAX_CONTEXT:
            raise ExportError(f"the predictor sees {self.context_size} tokens; 1 to {MAX_CONTEXT} are supported")
        if self.group_size < 1 or self.width % self.group_size:
            raise ExportError(f"the predictor's width {self.width} is no multiple of its group size {self.group_size}")

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], *, bare_relu: bool) -> "PredictorConfig":
        """Read the sizes off a checkpoint's tensors, by upstream's full names.

        Raises:
            ExportError: one of them is missing or has the wrong number of axes.
        """
        for name, axes in (
            ("decoder.embedding.weight", 2),
            ("decoder.conv.weight", 3),
            ("joiner.encoder_proj.weight", 2),
        ):
            if name not in state and name != "decoder.conv.weight":
                raise ExportError(
                    f"{name} is missing: this checkpoint has no predictor and joiner, or others than icefall's"
                )
            if name in state and state[name].dim() != axes:
                raise ExportError(f"{name} is of shape {tuple(state[name].shape)}; it should have {axes} axes")
        vocab_size, width = state["decoder.embedding.weight"].shape
        conv = state.get("decoder.conv.weight")
        return cls(
            vocab_size=vocab_size,
            width=width,
            joiner_dim=state["joiner.encoder_proj.weight"].shape[0],
            context_size=1 if conv is None else conv.shape[2],
            group_size=1 if conv is None else conv.shape[1],
            bare_relu=bare_relu,
        )


class StatelessPredictor(nn.Module):
    """A prediction from the last few tokens: embeddings under a grouped convolution. Upstream's `decoder`."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.conv: nn.Conv1d | None = None
        if config.context_size > 1:
            groups = config.width // config.group_size
            self.conv = nn.Conv1d(config.width, config.width, config.context_size, groups=groups, bias=False)

    @property
    def context_size(self) -> int:
        """Tokens that it sees."""
        return self.config.context_size

    def forward(self, context: Tensor) -> Tensor:
        """(rows, context_size) int64, the newest token last, a negative id for none -> (rows, width)."""
        present = (context >= 0).unsqueeze(2)
        x = self.embedding(context.clamp(min=0)) * as_dtype(present, self.embedding.weight.dtype)
        if self.conv is None:
            x = x[:, 0]
            return torch.relu(x) if self.config.bare_relu else x
        return torch.relu(self.conv(x.transpose(1, 2))[:, :, 0])


class Joiner(nn.Module):
    """logits = output_linear(tanh(encoder_proj(encoder) + decoder_proj(predictor)))."""

    def __init__(self, encoder_dim: int, config: PredictorConfig) -> None:
        super().__init__()
        self.encoder_proj = nn.Linear(encoder_dim, config.joiner_dim)
        self.decoder_proj = nn.Linear(config.width, config.joiner_dim)
        self.output_linear = nn.Linear(config.joiner_dim, config.vocab_size)

    @property
    def dim(self) -> int:
        """Width of what is joined."""
        return self.output_linear.in_features

    def project_encoder(self, encoded: Tensor) -> Tensor:
        """(…, encoder_dim) -> (…, dim)."""
        return self.encoder_proj(encoded)

    def project_predictor(self, predicted: Tensor) -> Tensor:
        """(…, predictor width) -> (…, dim)."""
        return self.decoder_proj(predicted)

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        """Projected (…, dim) of both, of shapes that broadcast -> logits (…, vocab) float32."""
        # Summed in float32, in which graphs are given both.
        joined = as_dtype(torch.tanh(encoder_out + predictor_out), self.output_linear.weight.dtype)
        return as_dtype(self.output_linear(joined), torch.float32)
