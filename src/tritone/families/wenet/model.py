"""A whole WeNet model: encoder, CTC head and, where the config has one, attention decoder."""

from torch import Tensor, nn

from tritone.families.layers.ctc import token_log_probs
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.decoder import BiTransformerDecoder, TransformerDecoder
from tritone.families.wenet.encoder import Encoder


class CtcHead(nn.Module):
    """Projection to the vocabulary and log-softmax; upstream's `ctc.ctc_lo`."""

    fused = False

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.ctc_lo = nn.Linear(width, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return token_log_probs(self.ctc_lo, x, fused=self.fused)


class AsrModel(nn.Module):
    """The network of `final.pt`: `state_dict()` has upstream's names (without position tables, which are computed)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, eps = config.encoder.output_size, config.encoder.norm_eps
        self.encoder = Encoder(config.encoder, config.uses_cmvn)
        self.ctc = CtcHead(width, config.vocab_size)
        self.decoder: TransformerDecoder | BiTransformerDecoder | None = None
        if config.decoder is not None and config.decoder.kind == "bitransformer":
            self.decoder = BiTransformerDecoder(config.decoder, config.vocab_size, width, eps)
        elif config.decoder is not None:
            self.decoder = TransformerDecoder(config.decoder, config.decoder.num_blocks, config.vocab_size, width, eps)

    def decode(
        self, memory: Tensor, memory_lengths: Tensor, tokens: Tensor, reversed_tokens: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of the left and, given `reversed_tokens`, of the right decoder; see `TransformerDecoder.forward`."""
        if self.decoder is None:
            raise ValueError("this model has no attention decoder")
        if isinstance(self.decoder, TransformerDecoder):
            return self.decoder(memory, memory_lengths, tokens), None
        left = self.decoder.left_decoder(memory, memory_lengths, tokens)
        if reversed_tokens is None:
            return left, None
        return left, self.decoder.right_decoder(memory, memory_lengths, reversed_tokens)
