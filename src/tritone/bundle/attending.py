"""What the parts of manifests have in common whose models have a decoder that attends to audio."""

from typing import Annotated

from pydantic import Field

from tritone.bundle.part import KindPart, NonNegative

NUM_FRAMES = "num_frames"
"""The tensor that says how many encoder frames are an input's own."""


class AttendingPart(KindPart):
    """A decoder that attends to audio: its sizes, and tokens that it never writes.

    `text_context`: tokens of prompt and text together. `layers`, `heads`, `head_dim`: for the tensors of its cache.
    `eot`: the id of the token that ends a text. `suppress`: ids that are never written.
    """

    text_context: Annotated[int, Field(ge=8, le=2**16)]
    layers: Annotated[int, Field(gt=0, le=256)]
    heads: Annotated[int, Field(gt=0, le=1024)]
    head_dim: Annotated[int, Field(gt=0, le=4096)]
    eot: NonNegative
    suppress: tuple[NonNegative, ...] = ()

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All ids that the vocabulary must have."""
        raise NotImplementedError

    @property
    def cross_names(self) -> tuple[str, ...]:
        """Tensors of the keys and values of the audio, of each layer."""
        return layer_names("cross", self.layers)

    @property
    def encoder_names(self) -> tuple[str, ...]:
        """What the decoder takes of the encoder."""
        return self.cross_names

    @property
    def self_names(self) -> tuple[str, ...]:
        """Tensors of the keys and values of the text, of each layer; `next_` before them where they come out."""
        return layer_names("self", self.layers)


def layer_names(name: str, layers: int) -> tuple[str, ...]:
    """Names of keys and values of all layers: self_key_0, self_value_0, self_key_1, ..."""
    return tuple(f"{name}_{part}_{layer}" for layer in range(layers) for part in ("key", "value"))
