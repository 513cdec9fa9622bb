"""WeNet's attention decoders: left-to-right transformer and the two-way bitransformer of U2++.

    encoder frames, token ids after <sos>  ->  logits (rows, tokens, vocab) for the next token at each place

Each utterance may have several rows of tokens, its hypotheses. They share the keys and values of its frames, which are
computed once: the queries of all its hypotheses stand side by side in one attention.
Source: wenet/transformer/{decoder,decoder_layer}.py.
"""

import math

import torch
from torch import Tensor, nn

from tritone.families.export.precision import as_dtype
from tritone.families.layers.sinusoids import sinusoids
from tritone.families.wenet.config import DecoderConfig
from tritone.families.wenet.layers import MultiHeadedAttention, PositionwiseFeedForward


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig, width: int, eps: float) -> None:
        super().__init__()
        self.pre_norm = config.normalize_before
        self.self_attn = MultiHeadedAttention(config.attention_heads, width, config.self_attention_dropout_rate)
        self.src_attn = MultiHeadedAttention(config.attention_heads, width, config.src_attention_dropout_rate)
        self.feed_forward = PositionwiseFeedForward(width, config.linear_units, config.dropout_rate, "relu")
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, eps=eps) for _ in range(3))
        self.dropout = nn.Dropout(config.dropout_rate)

    def _sublayer(self, norm: nn.Module, x: Tensor, apply) -> Tensor:  # type: ignore[no-untyped-def]
        x = x + self.dropout(apply(norm(x) if self.pre_norm else x))
        return x if self.pre_norm else norm(x)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Args: x (batch · n, tokens, width), mask (1, tokens, tokens); memory (batch, T', width) with its mask."""
        key_value = self.src_attn.key_value(memory)
        x = self._sublayer(self.norm1, x, lambda y: self.self_attn(y, self.self_attn.key_value(y), mask))
        x = self._sublayer(self.norm2, x, lambda y: self._look_at(y, key_value, memory_mask))
        return self._sublayer(self.norm3, x, self.feed_forward)

    def _look_at(self, x: Tensor, key_value: Tensor, memory_mask: Tensor) -> Tensor:
        side_by_side = x.reshape(key_value.shape[0], -1, x.shape[-1])
        return self.src_attn(side_by_side, key_value, memory_mask).reshape(x.shape)


class TransformerDecoder(nn.Module):
    """One direction. `embed` is a list so that the table is named `embed.0.weight`, as upstream has it."""

    def __init__(self, config: DecoderConfig, num_blocks: int, vocab_size: int, width: int, eps: float) -> None:
        super().__init__()
        self.width, self.pre_norm = width, config.normalize_before
        self.embed = nn.ModuleList([nn.Embedding(vocab_size, width)])
        self.decoders = nn.ModuleList(DecoderLayer(config, width, eps) for _ in range(num_blocks))
        self.after_norm = nn.LayerNorm(width, eps=eps)
        self.output_layer = nn.Linear(width, vocab_size)
        self.dropout = nn.Dropout(config.positional_dropout_rate)

    def forward(self, memory: Tensor, memory_lengths: Tensor, tokens: Tensor) -> Tensor:
        """Predict the token after each place.

        Args:
            memory: (batch, T', width) encoder frames, of which `memory_lengths` (batch,) are valid.
            tokens: (batch · n, length) ids from <sos> on, the n rows of an utterance next to each other. Whatever
                follows a row's tokens has no influence on the places before it.

        Returns:
            Logits (batch · n, length, vocab).
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        # No place sees a later one. Padding comes last, so this hides it too.
        mask = (places.unsqueeze(0) <= places.unsqueeze(1)).unsqueeze(0)
        memory_mask = (torch.arange(memory.shape[1], device=memory.device) < memory_lengths.unsqueeze(1)).unsqueeze(1)
        embedded = self.embed[0](tokens)
        x = embedded * math.sqrt(self.width) + as_dtype(sinusoids(places, self.width), embedded.dtype)
        x = self.dropout(x)
        for layer in self.decoders:
            x = layer(x, mask, memory, memory_mask)
        return self.output_layer(self.after_norm(x) if self.pre_norm else x)


class BiTransformerDecoder(nn.Module):
    """Two whole decoders that share nothing; the right one reads the tokens in reverse."""

    def __init__(self, config: DecoderConfig, vocab_size: int, width: int, eps: float) -> None:
        super().__init__()
        self.left_decoder = TransformerDecoder(config, config.num_blocks, vocab_size, width, eps)
        self.right_decoder = TransformerDecoder(config, config.r_num_blocks, vocab_size, width, eps)
