"""What Paraformers have for hotwords: a network that is told phrases and writes those that it finds among the tokens.

    tokens of phrases             ->  a vector of each phrase, what an LSTM has behind its last token
    vectors, states of tokens     ->  log-probabilities of tokens; SeACo's with one that stands for no phrase

The last phrase of a list is `<s>`, which is none. A SeACo-Paraformer decodes beside its decoder; a
ContextualParaformer's last layers look at phrases, and at `<s>` alone where there are none. Sources:
funasr/models/seaco_paraformer/model.py, funasr/models/contextual_paraformer/{model,decoder}.py.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.funasr.config import DecoderConfig, EncoderConfig, ModelConfig
from tritone.families.funasr.layers import attention_weights, by_head, fitted
from tritone.families.funasr.paraformer import (
    OF_SEACO,
    CrossAttention,
    Decoder,
    DecoderLayer,
    DecoderLayers,
    Paraformer,
)
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.ctc import token_log_probs

CHOSEN = 50  # of longer lists SeACo's decoder is told so many phrases; upstream's `nfilter`
CHOOSING = 5  # the layer whose attention chooses them, counted from 0


class PhraseEncoder(nn.Module):
    """The part of model.pt that reads phrases; `embed.weight` has another name there."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        assert config.hotwords is not None
        width = config.encoder.output_size
        self.embed = nn.Embedding(vocab_size, width)
        self.bias_encoder = nn.LSTM(width, width, config.hotwords.layers, batch_first=True)

    @classmethod
    def of(cls, config: ModelConfig, state: Mapping[str, Tensor], vocab_size: int, origin: str) -> "PhraseEncoder":
        """Make it of the tensors of model.pt.

        Raises:
            ExportError: tensors are missing, misshapen, not finite or unknown; see `require_fit`.
        """
        assert config.hotwords is not None
        own = {name: value for name, value in state.items() if name.startswith(("bias_encoder.", "lstm_proj."))}
        if (embedding := state.get(config.hotwords.embedding)) is not None:
            own["embed.weight"] = embedding
        return fitted(lambda: cls(config, vocab_size), own, origin, f"its config and {vocab_size} tokens")

    def forward(self, phrases: Tensor, lengths: Tensor) -> Tensor:
        """Vectors (phrases, width) float32 of ids (phrases, `MAX_TOKENS`) int64 with `lengths` (phrases,) int64."""
        read, _ = self.bias_encoder(self.embed(phrases))
        last = (lengths - 1)[:, None, None].expand(-1, 1, read.shape[2])
        return read.gather(1, last).squeeze(1)


class HotwordDecoder(nn.Module):
    """Tokens where phrases are told."""

    fused = False

    def forward(
        self, vectors: Tensor, states: Tensor, tokens: Tensor, phrases: Tensor, listed: Tensor, counts: Tensor
    ) -> Tensor:
        """Log-probabilities (batch, places, vocab) float32.

        Args:
            vectors, states: (batch, places, width) float32, what `Decoder.decoded` has of tokens.
            tokens: (batch,) int64, how many places are a row's own.
            phrases: (phrases, width) float32, of `PhraseEncoder`.
            listed: (batch, most) int64, the phrases of each row by their numbers, of which it has `counts` (batch,).
        """
        is_listed = torch.arange(listed.shape[1], device=listed.device) < counts.unsqueeze(1)
        places = torch.arange(vectors.shape[1], device=vectors.device)
        valid = (places < tokens.unsqueeze(1)).unsqueeze(2).to(vectors.dtype)
        hidden = torch.where(is_listed, 0.0, HIDDEN)
        return self.told(vectors, states, valid, phrases[listed], hidden, counts)

    def told(
        self, vectors: Tensor, states: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor, counts: Tensor
    ) -> Tensor:
        """The same of vectors of each row's phrases (batch, most, width), and what hides others (batch, most)."""
        raise NotImplementedError


class SeacoDecoder(HotwordDecoder):
    """The part for hotwords of a SeACo-Paraformer's model.pt; `state_dict()` has upstream's names."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        assert config.hotwords is not None
        assert config.hotwords.decoder is not None
        self.seaco_decoder = DecoderLayers(config.encoder, config.hotwords.decoder)
        self.hotword_output_layer = nn.Linear(config.encoder.output_size, vocab_size)

    @classmethod
    def of(cls, config: ModelConfig, state: Mapping[str, Tensor], vocab_size: int, origin: str) -> "SeacoDecoder":
        """Make it of the tensors of model.pt; as `PhraseEncoder.of`."""
        own = {name: value for name, value in state.items() if name.startswith(OF_SEACO)}
        return fitted(lambda: cls(config, vocab_size), own, origin, f"its config and {vocab_size} tokens")

    def told(
        self, vectors: Tensor, states: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor, counts: Tensor
    ) -> Tensor:
        if len(self.seaco_decoder.decoders) > CHOOSING:
            hidden = self._chosen(states, valid, memory, hidden, counts.unsqueeze(1))
        hidden = hidden[:, None, None, :]
        seen = self.seaco_decoder(vectors, valid, memory, hidden) + self.seaco_decoder(states, valid, memory, hidden)
        return token_log_probs(self.hotword_output_layer, seen, fused=self.fused)

    def _chosen(self, x: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor, counts: Tensor) -> Tensor:
        """What hides phrases, too, that tokens attend to least, where a row has more than `CHOSEN`.

        `<s>` is always seen; upstream has it twice where it is among those that are chosen.
        """
        among = hidden[:, None, None, :]
        for layer in self.seaco_decoder.decoders[:CHOOSING]:
            x = layer(x, valid, memory, among)
        layer = self.seaco_decoder.decoders[CHOOSING]
        assert isinstance(layer, DecoderLayer)
        attention = layer.src_attn
        assert attention is not None
        assert layer.norm3 is not None
        query = by_head(attention.linear_q(layer.norm3(layer.remembered(x, valid))), attention)
        key = by_head(attention.linear_k_v(memory).chunk(2, dim=-1)[0], attention)
        weights = attention_weights(query, key, among, attention) * valid.unsqueeze(1)
        scores = torch.where(hidden == 0, weights.sum(dim=(1, 2)), -1.0)
        least = torch.topk(F.pad(scores, (0, CHOSEN), value=-1.0), CHOSEN).values[:, -1:]
        is_last = torch.arange(scores.shape[1], device=scores.device) == counts - 1
        is_chosen, is_long = scores >= least, counts > CHOSEN
        hidden = torch.where(is_long & ~is_chosen & ~is_last, HIDDEN, hidden)
        return torch.where(is_long & is_chosen & is_last, math.log(2.0), hidden)


class PhraseAttention(nn.Module):
    """Attention of tokens to phrases."""

    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.norm3 = nn.LayerNorm(width, eps=eps)
        self.src_attn = CrossAttention(width, heads)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        return self.src_attn(self.norm3(x), self.src_attn.linear_k_v(memory), hidden)


class ContextualDecoder(Decoder):
    """A decoder whose last layer that sees the audio sees phrases too."""

    def __init__(self, encoder: EncoderConfig, config: DecoderConfig, vocab_size: int) -> None:
        super().__init__(encoder, replace(config, blocks=config.blocks - 1), vocab_size)
        width, eps = encoder.output_size, encoder.norm_eps
        self.last_decoder = DecoderLayer(width, config, eps, config.shift, attends=True)
        self.bias_decoder = PhraseAttention(width, config.heads, eps)
        self.bias_output = nn.Conv1d(2 * width, width, 1, bias=False)
        self.register_buffer("none", torch.zeros(width), persistent=False)  # the vector of `<s>`

    def decoded(self, x: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for layer in self.decoders:
            x = layer(x, valid, memory, hidden)
        last, none = self.last_decoder, self.none
        assert isinstance(none, Tensor)
        attention = last.src_attn
        assert attention is not None
        assert last.norm3 is not None
        own = last.remembered(x, valid)
        heard = attention(last.norm3(own), attention.linear_k_v(memory), hidden)
        nothing = none.expand(x.shape[0], 1, -1)
        return biased(self, heard, own, valid, nothing, torch.zeros_like(hidden[..., :1])), heard, own


class ContextualHotwords(HotwordDecoder):
    """The part of a `ContextualDecoder` that depends on phrases."""

    def __init__(self, decoder: ContextualDecoder) -> None:
        super().__init__()
        self.bias_decoder, self.bias_output = decoder.bias_decoder, decoder.bias_output
        if hasattr(decoder, "decoders2"):
            self.decoders2 = decoder.decoders2
        self.decoders3, self.after_norm, self.output_layer = decoder.decoders3, decoder.after_norm, decoder.output_layer

    def told(
        self, vectors: Tensor, states: Tensor, valid: Tensor, memory: Tensor, hidden: Tensor, counts: Tensor
    ) -> Tensor:
        # Without layers behind that remember, nothing else depends on how many tokens a row has.
        return biased(self, vectors * valid, states * valid, valid, memory, hidden[:, None, None, :])


def biased(
    part: ContextualDecoder | ContextualHotwords,
    heard: Tensor,
    own: Tensor,
    valid: Tensor,
    memory: Tensor,
    hidden: Tensor,
) -> Tensor:
    """Log-probabilities (batch, places, vocab) float32, by what follows the layers that see the audio alone.

    Args:
        part: where these layers are.
        heard, own: (batch, places, width), what attention to the audio gives in the last layer, and what to.
        memory: vectors of phrases (batch, phrases, width); `hidden` (batch, 1, 1, phrases) as of `attend`.
    """
    weight = part.bias_output.weight.squeeze(2)
    x = own + F.linear(torch.cat([heard, part.bias_decoder(own, memory, hidden)], dim=2), weight)
    for layer in (*getattr(part, "decoders2", ()), *part.decoders3):
        x = layer(x, valid, memory, hidden)
    return token_log_probs(part.output_layer, part.after_norm(x), fused=part.fused)


class ContextualParaformer(Paraformer):
    """The network of a ContextualParaformer's model.pt, told no phrase."""

    decoder: ContextualDecoder
    decoder_class = ContextualDecoder

    def tell_none(self, phrases: PhraseEncoder) -> None:
        """Read `<s>`, which stands for no phrase."""
        ids = torch.full((1, 1), self.config.sos_id)
        self.decoder.none = as_dtype(phrases(ids, torch.ones(1, dtype=torch.int64)), torch.float32)[0]
