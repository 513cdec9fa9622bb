"""The sizes of a Whisper model, and the tensors that a model of these sizes has."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

State: TypeAlias = dict[str, npt.NDArray[np.float32]]
"""The tensors of a model by OpenAI's names."""


@dataclass(frozen=True, kw_only=True)
class Dims:
    """Sizes of a model. `*_context`: positions of the encoder's output, and tokens of prompt and text together."""

    num_bins: int
    audio_context: int
    audio_width: int
    audio_heads: int
    audio_layers: int
    audio_hidden: int
    vocab: int
    text_context: int
    text_heads: int
    text_layers: int
    text_hidden: int
    tied: bool = True  # whether the output layer is the table of the tokens' vectors

    @property
    def head_dim(self) -> int:
        """Width of one head of the decoder."""
        return self.audio_width // self.text_heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors by OpenAI's names."""
        width = self.audio_width
        found: dict[str, tuple[int, ...]] = {
            "encoder.positional_embedding": (self.audio_context, width),
            "decoder.positional_embedding": (self.text_context, width),
            "decoder.token_embedding.weight": (self.vocab, width),
        }
        for name, inputs in (("conv1", self.num_bins), ("conv2", width)):
            found |= {f"encoder.{name}.weight": (width, inputs, 3), f"encoder.{name}.bias": (width,)}
        norms = ["encoder.ln_post", "decoder.ln"]
        for side, layers, hidden in (
            ("encoder", self.audio_layers, self.audio_hidden),
            ("decoder", self.text_layers, self.text_hidden),
        ):
            for block in (f"{side}.blocks.{layer}" for layer in range(layers)):
                for attention in ("attn", "cross_attn") if side == "decoder" else ("attn",):
                    for part in ("query", "key", "value", "out"):
                        found[f"{block}.{attention}.{part}.weight"] = (width, width)
                        if part != "key":
                            found[f"{block}.{attention}.{part}.bias"] = (width,)
                    norms.append(f"{block}.{attention}_ln")
                found |= {f"{block}.mlp.0.weight": (hidden, width), f"{block}.mlp.0.bias": (hidden,)}
                found |= {f"{block}.mlp.2.weight": (width, hidden), f"{block}.mlp.2.bias": (width,)}
                norms.append(f"{block}.mlp_ln")
        found |= {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}
        if not self.tied:
            found["decoder.head.weight"] = (self.vocab, width)
        return found
