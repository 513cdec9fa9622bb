"""What SeACo adds to a Paraformer: a network that is told phrases and writes those that it finds among the tokens.

    tokens of phrases               ->  a vector of each phrase, what an LSTM has behind its last token
    vectors and states of tokens    ->  log-probabilities of tokens, with one that stands for no phrase

The last phrase is `<s>`, which is none. Source: funasr/models/seaco_paraformer/model.py.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tritone.families.funasr.config import ModelConfig
from tritone.families.funasr.layers import fitted
from tritone.families.funasr.paraformer import OF_HOTWORDS, DecoderLayers
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.ctc import token_log_probs


class HotwordDecoder(nn.Module):
    """The part for hotwords of model.pt; `state_dict()` has upstream's names, but `embed.weight`, the decoder's."""

    fused = False

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        assert config.hotwords is not None
        width = config.encoder.output_size
        self.embed = nn.Embedding(vocab_size, width)
        self.bias_encoder = nn.LSTM(width, width, 2, batch_first=True)
        self.seaco_decoder = DecoderLayers(config.encoder, config.hotwords.decoder)
        self.hotword_output_layer = nn.Linear(width, vocab_size)

    @classmethod
    def of(cls, config: ModelConfig, state: Mapping[str, Tensor], vocab_size: int, origin: str) -> "HotwordDecoder":
        """Make it of the tensors of model.pt.

        Raises:
            ExportError: tensors are missing, misshapen, not finite or unknown; see `require_fit`.
        """
        own = {
            name.replace("decoder.embed.0.", "embed.") if name.startswith("decoder.") else name: value
            for name, value in state.items()
            if name.startswith(OF_HOTWORDS)
        }
        return fitted(lambda: cls(config, vocab_size), own, origin, f"its config and {vocab_size} tokens")

    def forward(
        self,
        vectors: Tensor,
        states: Tensor,
        tokens: Tensor,
        phrases: Tensor,
        lengths: Tensor,
        listed: Tensor,
        counts: Tensor,
    ) -> Tensor:
        """Log-probabilities (batch, places, vocab) float32.

        Args:
            vectors, states: (batch, places, width) float32, of the decoder before and behind its layers.
            tokens: (batch,) int64, how many places are a row's own.
            phrases: (phrases, `MAX_TOKENS`) int64, ids of tokens, of which each has `lengths` (phrases,) int64.
            listed: (batch, most) int64, the phrases of each row by their numbers, of which it has `counts` (batch,).
        """
        read, _ = self.bias_encoder(self.embed(phrases))
        last = (lengths - 1)[:, None, None].expand(-1, 1, read.shape[2])
        memory = read.gather(1, last).squeeze(1)[listed]
        is_listed = torch.arange(listed.shape[1], device=listed.device) < counts.unsqueeze(1)
        hidden = torch.where(is_listed, 0.0, HIDDEN)[:, None, None, :]
        places = torch.arange(vectors.shape[1], device=vectors.device)
        valid = (places < tokens.unsqueeze(1)).unsqueeze(2).to(vectors.dtype)
        seen = self.seaco_decoder(vectors, valid, memory, hidden) + self.seaco_decoder(states, valid, memory, hidden)
        return token_log_probs(self.hotword_output_layer, seen, fused=self.fused)
