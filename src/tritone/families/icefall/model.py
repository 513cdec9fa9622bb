"""A whole icefall model: encoder, predictor, joiner, and zipformer's CTC head where there is one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.icefall.conformer import Conformer, ConformerConfig, ConformerStep
from tritone.families.icefall.stateless import Joiner, PredictorConfig, StatelessPredictor

if TYPE_CHECKING:
    from tritone.families.icefall.zipformer import Zipformer
    from tritone.families.icefall.zipformer_config import ZipformerConfig
    from tritone.families.icefall.zipformer_streaming import StreamingZipformer

Architecture = Literal["conformer", "zipformer2"]
CTC_WEIGHT = "ctc_output.1.weight"  # upstream's name


@dataclass(frozen=True, kw_only=True)
class IcefallConfig:
    """What a model is made of. `predictor` is None for models that have a CTC head and nothing else."""

    encoder: "ConformerConfig | ZipformerConfig"
    predictor: PredictorConfig | None
    ctc_vocab_size: int | None = None

    @property
    def architecture(self) -> Architecture:
        return "conformer" if isinstance(self.encoder, ConformerConfig) else "zipformer2"

    @property
    def vocab_size(self) -> int:
        """Tokens, blank among them.

        Raises:
            ValueError: the configuration has neither a transducer nor a CTC head.
        """
        size = self.predictor.vocab_size if self.predictor else self.ctc_vocab_size
        if size is None:
            raise ValueError("a model needs a predictor or a CTC head")
        return size


class CtcHead(nn.Sequential):
    """Dropout, projection to the vocabulary, log-softmax in float32; upstream's `ctc_output`."""

    def __init__(self, width: int, vocab_size: int, dropout: float = 0.1) -> None:
        super().__init__(nn.Dropout(dropout), nn.Linear(width, vocab_size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(super().forward(x).float(), dim=-1)


class IcefallModel(nn.Module):
    """The network of a `pretrained.pt`, in upstream's terms `encoder`, `decoder` (here `predictor`) and `joiner`."""

    def __init__(
        self,
        encoder: "Conformer | Zipformer",
        predictor: StatelessPredictor | None,
        joiner: Joiner | None,
        ctc: CtcHead | None,
        config: IcefallConfig,
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self._predictor, self._joiner = predictor, joiner
        self.ctc = ctc

    @classmethod
    def from_config(cls, config: IcefallConfig) -> "IcefallModel":
        """A model with fresh weights, ready to be trained."""
        encoder = make_encoder(config.encoder)
        predictor = joiner = ctc = None
        if config.predictor is not None:
            predictor, joiner = StatelessPredictor(config.predictor), Joiner(encoder.output_dim, config.predictor)
        if config.ctc_vocab_size is not None:
            ctc = CtcHead(encoder.output_dim, config.ctc_vocab_size)
        return cls(encoder, predictor, joiner, ctc, config)

    @property
    def predictor(self) -> StatelessPredictor:
        """Raises ExportError if the model has a CTC head alone."""
        if self._predictor is None:
            raise ExportError("this model has a CTC head and no transducer; export it with --head ctc")
        return self._predictor

    @property
    def joiner(self) -> Joiner:
        """Raises ExportError if the model has a CTC head alone."""
        if self._joiner is None:
            raise ExportError("this model has a CTC head and no transducer; export it with --head ctc")
        return self._joiner

    def upstream_parts(self) -> dict[str, nn.Module]:
        """The parts under the prefixes that upstream's state dicts have for them."""
        # zipformer's front end is beside its encoder, the conformer's inside of it
        parts: dict[str, nn.Module | None] = {
            "encoder." if self.config.architecture == "conformer" else "": self.encoder,
            "decoder.": self._predictor,
            "joiner.": self._joiner,
            "ctc_output.": self.ctc,
        }
        return {prefix: part for prefix, part in parts.items() if part is not None}

    def upstream_state(self) -> dict[str, Tensor]:
        """All tensors by upstream's names, as `{"model": …}` of a `pretrained.pt` holds them, with scales folded in."""
        return {
            prefix + name: value
            for prefix, part in self.upstream_parts().items()
            for name, value in part.state_dict().items()
        }


def streaming_step(
    encoder: "Conformer | Zipformer", chunk_size: int, left_context: int, right_context: int
) -> "ConformerStep | StreamingZipformer":
    """The form of an encoder that takes one chunk of many streams at a time; it shares the encoder's weights.

    Args:
        chunk_size, left_context, right_context: in frames as the network counts them.

    Raises:
        ExportError: the encoder is not causal, or the sizes do not fit it.
    """
    if isinstance(encoder, Conformer):
        return encoder.streaming(chunk_size, left_context, right_context)
    from tritone.families.icefall.zipformer_streaming import StreamingZipformer

    return StreamingZipformer(encoder, chunk_size, left_context, right_context)


def make_encoder(config: "ConformerConfig | ZipformerConfig") -> "Conformer | Zipformer":
    """The network that a configuration describes."""
    if isinstance(config, ConformerConfig):
        return Conformer(config)
    from tritone.families.icefall.zipformer import Zipformer

    return Zipformer(config)
