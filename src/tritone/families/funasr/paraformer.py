"""Paraformer: an encoder, a predictor that says where tokens are, and a decoder that writes all of them at once.

    rows of features                       ->  encoder frames, sums of weights, number of tokens
    encoder frames, sums, number of tokens ->  log-probabilities of each token

Continuous integrate-and-fire (CIF): each frame is a part of a token, its weight from 0 to 1. Where the sum of the
weights passes a whole number, a token ends. Its vector is the sum of the frames from one whole number to the next,
each by the part of its weight that lies between them. Sources: funasr/models/paraformer/model.py, cif_predictor.py and
decoder.py, funasr/models/sanm/attention.py.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.funasr.config import DecoderConfig, EncoderConfig, ModelConfig, PredictorConfig
from tritone.families.funasr.layers import Encoder, Memory, attend, fitted
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.ctc import token_log_probs

if TYPE_CHECKING:
    from typing import Self

OF_PHRASES = ("decoder.embed.", "bias_embed.", "bias_encoder.", "lstm_proj.")
OF_SEACO = ("seaco_decoder.", "hotword_output_layer.")
"""Tensors of model.pt that a Paraformer does not need to write texts; see `hotwords.py`."""


class Predictor(nn.Module):
    """Weights of frames, summed up; its convolution and all after it are float32 in every precision."""

    in_float32 = True

    def __init__(self, width: int, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.cif_conv1d = Convolution(width, width, config.left + config.right + 1)
        self.cif_output = Output(width, 1)

    def forward(self, encoded: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Sums (batch, frames) float32 of the weights up to each frame, and numbers of tokens (batch,) int64.

        Beyond the `frames` (batch,) of a row its sum stays as it is.
        """
        valid = torch.arange(encoded.shape[1], device=encoded.device) < frames.unsqueeze(1)
        sums = torch.cumsum(self.weights(encoded, valid).to(torch.float64), dim=1)  # float32 loses tokens of hours
        total = as_dtype(sums[:, -1] + self.config.tail, torch.float32)
        return as_dtype(sums, torch.float32), torch.where(frames > 0, torch.floor(total), 0.0).to(torch.int64)

    def weights(self, encoded: Tensor, valid: Tensor) -> Tensor:
        """Weights (batch, frames) float32, 0 where `valid` (batch, frames) bool is not."""
        known = torch.where(valid.unsqueeze(2), as_dtype(encoded, torch.float32), 0.0)
        padded = F.pad(known.transpose(1, 2), (self.config.left, self.config.right))
        seen = torch.relu(self.cif_conv1d(padded)).transpose(1, 2)
        found = torch.sigmoid(self.cif_output(seen)).squeeze(2)
        return torch.where(valid, torch.relu(found * self.config.factor - self.config.floor), 0.0)


class Convolution(nn.Conv1d):
    """A convolution that stays float32."""

    in_float32 = True


class Output(nn.Linear):
    """A layer that stays float32."""

    in_float32 = True


def token_vectors(encoded: Tensor, sums: Tensor, places: Tensor) -> Tensor:
    """The vectors (batch, tokens, width) of the tokens at `places` (tokens,) int64, of the sums of weights."""
    before = F.pad(sums[:, :-1], (1, 0)).unsqueeze(1)
    start = places.to(sums.dtype)[None, :, None]
    parts = torch.relu(torch.minimum(sums.unsqueeze(1), start + 1) - torch.maximum(before, start))
    return as_dtype(parts, encoded.dtype) @ encoded


class CrossAttention(nn.Module):
    """Attention of tokens to encoder frames."""

    wide_softmax = False
    fused = False

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k_v = nn.Linear(width, 2 * width)
        self.linear_out = nn.Linear(width, width)

    def forward(self, x: Tensor, key_value: Tensor, hidden: Tensor) -> Tensor:
        """Attend from x (batch, tokens, width) to what `linear_k_v` makes of frames; `hidden` as of `attend`."""
        return self.linear_out(attend(self.linear_q(x), key_value, hidden, self))


class NormedFeedForward(nn.Module):
    """Two linear layers with a ReLU and a layer norm between."""

    def __init__(self, width: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(width, hidden), nn.Linear(hidden, width, bias=False)
        self.norm = nn.LayerNorm(hidden, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.norm(torch.relu(self.w_1(x))))


class DecoderLayer(nn.Module):
    """Feed-forward, then the memory over tokens, then attention to the audio; the last layer is feed-forward alone.

    Args:
        shift: of the memory; None of a layer that has none.
    """

    def __init__(self, width: int, config: DecoderConfig, eps: float, shift: int | None, *, attends: bool) -> None:
        super().__init__()
        self.feed_forward = NormedFeedForward(width, config.hidden, eps)
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.self_attn = None if shift is None else Memory(width, config.kernel, shift)
        self.norm2 = None if shift is None else nn.LayerNorm(width, eps=eps)
        self.src_attn = CrossAttention(width, config.heads) if attends else None
        self.norm3 = nn.LayerNorm(width, eps=eps) if attends else None

    def forward(self, x: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        x = self.remembered(x, valid)
        return x if self.src_attn is None else self.looked(x, self.src_attn.linear_k_v(memory), hidden)

    def remembered(self, x: Tensor, valid: Tensor) -> Tensor:
        """x before its attention to the audio."""
        moved = self.feed_forward(self.norm1(x))
        if self.self_attn is None or self.norm2 is None:
            return moved
        return x + self.self_attn.memory(self.norm2(moved), valid)

    def looked(self, x: Tensor, key_value: Tensor, hidden: Tensor) -> Tensor:
        """x with what its attention to the audio gives; arguments as of `CrossAttention`."""
        assert self.src_attn is not None
        assert self.norm3 is not None
        return x + self.src_attn(self.norm3(x), key_value, hidden)


class DecoderLayers(nn.Module):
    """Token vectors to states: each sees those around it and all of a memory."""

    def __init__(self, encoder: EncoderConfig, config: DecoderConfig) -> None:
        super().__init__()
        width, eps = encoder.output_size, encoder.norm_eps

        def layers(count: int, shift: int | None, *, attends: bool) -> nn.ModuleList:
            return nn.ModuleList(DecoderLayer(width, config, eps, shift, attends=attends) for _ in range(count))

        self.decoders = layers(config.blocks, config.shift, attends=True)
        if config.after_blocks:
            self.decoders2 = layers(config.after_blocks, 0, attends=False)
        self.decoders3 = layers(1, None, attends=False)
        self.after_norm = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        """States of x (batch, places, width); `valid` as of `Memory`, `hidden` (batch, 1, 1, keys) as of `attend`."""
        for layer in (*self.decoders, *getattr(self, "decoders2", ()), *self.decoders3):
            x = layer(x, valid, memory, hidden)
        return self.after_norm(x)


class Decoder(DecoderLayers):
    """Token vectors to log-probabilities of tokens, from the frames of the audio."""

    fused = False

    def __init__(self, encoder: EncoderConfig, config: DecoderConfig, vocab_size: int) -> None:
        super().__init__(encoder, config)
        self.output_layer = nn.Linear(encoder.output_size, vocab_size)

    def written(
        self, encoded: Tensor, frames: Tensor, sums: Tensor, tokens: Tensor, places: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities (batch, places, vocab), and `STATES` (batch, places, width), all float32.

        Args:
            encoded: (batch, frames, width), of which each row has `frames` (batch,) int64; the rest may be anything.
            sums, tokens: of the predictor.
            places: (places,) int64, 0, 1, 2 …; what comes out beyond the `tokens` of a row means nothing.
        """
        dtype = self.output_layer.weight.dtype
        is_frame = torch.arange(encoded.shape[1], device=encoded.device) < frames.unsqueeze(1)
        memory = torch.where(is_frame.unsqueeze(2), encoded, 0.0)
        x = as_dtype(token_vectors(memory, sums, places), dtype)
        memory = as_dtype(memory, dtype)
        valid = (places < tokens.unsqueeze(1)).unsqueeze(2).to(dtype)
        hidden = torch.where(is_frame, 0.0, HIDDEN).to(dtype)[:, None, None, :]
        log_probs, vectors, states = self.decoded(x, valid, memory, hidden)
        return log_probs, as_dtype(vectors, torch.float32), as_dtype(states, torch.float32)

    def decoded(self, x: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, and what a part for hotwords looks at: vectors and states; arguments as of `forward`."""
        states = self(x, valid, memory, hidden)
        return token_log_probs(self.output_layer, states, fused=self.fused), x, states


class Paraformer(nn.Module):
    """The network of model.pt; `state_dict()` has upstream's names."""

    decoder_class = Decoder

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        assert config.decoder is not None
        assert config.predictor is not None
        self.config = config
        self.encoder = Encoder(config.encoder)
        self.predictor = Predictor(config.encoder.output_size, config.predictor)
        self.decoder = self.decoder_class(config.encoder, config.decoder, vocab_size)

    @classmethod
    def of(cls, config: ModelConfig, state: Mapping[str, Tensor], vocab_size: int, origin: str) -> "Self":
        """Make a network of the tensors of model.pt.

        Raises:
            ExportError: tensors are missing, misshapen, not finite or unknown; see `require_fit`.
        """
        own = {name: value for name, value in state.items() if not name.startswith(OF_PHRASES + OF_SEACO)}
        return fitted(lambda: cls(config, vocab_size), own, origin, f"its config and {vocab_size} tokens")
