"""A cache-aware FastConformer one chunk at a time, for many streams at once.

    features (batch, f·chunk + f - 1, bins), what streams keep  ->  (batch, chunk, width), what they keep next

f is the factor of the subsampling. With a context [left, right] a chunk has right + 1 frames, each of which sees all of
them and the `left` frames before them, so that frame n is the frame n of the whole utterance. One graph takes chunks of
any size and as much of the past as it is given, up to what the model was trained for.
Upstream keeps the input of each layer's attention; here keys and values are kept, which takes twice the memory and
spares the products of all of the past in every step. Features that two windows share are computed again, in place of a
cache.
Source: NeMo, nemo/collections/asr/modules/conformer_encoder.py, `cache_aware_stream_step`.
"""

import copy
import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from tritone.bundle.manifest import LEFT_FRAMES
from tritone.errors import ExportError
from tritone.families.export.precision import as_dtype, kept, taken
from tritone.families.layers.sinusoids import sinusoids
from tritone.families.nemo.config import ModelConfig
from tritone.families.nemo.encoder import ConformerEncoder, ConformerLayer, frame_mask

OFFSET = "offset"  # the state that counts a stream's frames


def contexts_of_streams(config: ModelConfig) -> dict[int, int]:
    """The chunk sizes that a model was trained to be streamed with, and past frames of each, in the config's order.

    Raises:
        ExportError: a frame of it needs more than the past and its own chunk; says why.
    """
    encoder, reason = config.encoder, ""
    found = {right + 1: left for left, right in encoder.contexts if min(left, right) >= 0}
    if encoder.style != "chunked_limited" or not found:
        contexts = ", ".join(str(list(each)) for each in encoder.contexts)
        reason = (
            f"its attention has the contexts {contexts} of style {encoder.style}; needed is one without -1, of style "
            "chunked_limited"
        )
    elif not encoder.causal:
        reason = "its subsampling sees the future (causal_downsampling is false)"
    elif encoder.padding != (encoder.kernel - 1, 0):
        reason = f"its convolutions see the future (conv_context_size is {list(encoder.padding)}, not causal)"
    elif config.features.normalize != "none":
        reason = f"its features are normalised over whole utterances (normalize {config.features.normalize})"
    if reason:
        raise ExportError(f"this model cannot be streamed: {reason}. Export it without --streaming.")
    return found


class StreamingEncoder(nn.Module):
    """One step of many streams of an encoder, whose weights it uses.

    Args:
        encoder: a causal one.
        sizes: chunk sizes and past frames of steps; all others have at most the largest of either.
    """

    places: Tensor

    def __init__(self, encoder: ConformerEncoder, sizes: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        self.config = encoder.config
        self.pre_encode, self.out_proj = encoder.pre_encode, encoder.out_proj
        self.dtype = encoder.pre_encode.out.weight.dtype
        chunks, pasts = zip(*sizes, strict=True)
        self.keys = max(chunks) + max(pasts)
        # What the layers make of a distance is the same in every step: computing it there would be most of the work of
        # a small one.
        distances = torch.arange(self.keys - 1, -max(chunks) - 1, -1)
        vectors = as_dtype(sinusoids(distances, encoder.config.width), self.dtype).unsqueeze(0)
        with torch.no_grad():
            places = torch.cat([layer.self_attn.place(vectors) for layer in encoder.conformer_layers])
        self.register_buffer("places", places, persistent=False)  # (layers, heads, distances, size)
        self.layers = nn.ModuleList(map(_without_positions, encoder.conformer_layers))

    @property
    def state_shapes(self) -> dict[str, tuple[int | Literal["left_frames"], ...]]:
        """Of one stream, zeros at its start; `offset` is int64 and counts its frames, the others are of `kept_as`."""
        config = self.config
        return {
            OFFSET: (),
            "att_cache": (config.layers, config.heads, LEFT_FRAMES, 2 * config.width // config.heads),
            "conv_cache": (config.layers, config.kernel - 1, config.width),
        }

    def forward(
        self, features: Tensor, ends: Tensor, offset: Tensor, att_cache: Tensor, conv_cache: Tensor
    ) -> tuple[Tensor, ...]:
        """Encode one window of each of several streams.

        Args:
            features, ends: as of `Subsampling.step`, features in float32.
            offset: (batch,) int64, frames of the stream so far.
            att_cache: (batch, layers, heads, past, 2·size), keys and values of frames, newest last, as of `kept`.
            conv_cache: (batch, layers, kernel - 1, width), what convolutions saw last, likewise.

        Returns:
            (batch, chunk, output_dim), how many of them (batch,) are the stream's, and the next states.
        """
        config, dtype = self.config, self.dtype
        x = self.pre_encode.step(as_dtype(features, dtype), offset, ends)
        if config.xscale:
            x = x * math.sqrt(config.width)
        num_frames = ends // config.factor
        past, chunk = att_cache.shape[3], x.shape[1]
        valid = frame_mask(x, num_frames)
        known = torch.arange(past, device=x.device).unsqueeze(0) >= past - offset.unsqueeze(1)
        mask = torch.cat([known, valid], dim=1).unsqueeze(1)
        factor = as_dtype(valid, dtype).unsqueeze(2)
        # A lookup, not a slice: torch.export would take the bounds of a slice for limits of its sizes.
        needed = torch.arange(past + 2 * chunk, device=x.device) + (self.keys - past - chunk)
        stored, convolved = [], []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, ConformerLayer)
            x = x + 0.5 * layer.feed_forward1(layer.norm_feed_forward1(x))
            query, key, value = layer.self_attn.project(layer.norm_self_att(x))
            both = torch.cat([key, value], dim=3)
            stored.append(kept(both))
            keys, values = torch.cat([taken(att_cache[:, index], dtype), both], dim=2).chunk(2, dim=3)
            place = self.places[index].index_select(1, needed).unsqueeze(0)
            x = x + layer.self_attn(query, keys, values, place, mask)
            gated = layer.conv.gated(layer.norm_conv(x), factor)
            gated = torch.cat([taken(conv_cache[:, index], dtype), gated], dim=1)
            convolved.append(kept(gated[:, chunk:]))
            x = layer.end(x + layer.conv(gated))
        if self.out_proj is not None:
            x = self.out_proj(x)
        next_att = torch.cat([att_cache, torch.stack(stored, dim=1)], dim=3)[:, :, :, chunk:]
        return x, num_frames, offset + num_frames, next_att, torch.stack(convolved, dim=1)


def _without_positions(layer: ConformerLayer) -> ConformerLayer:
    """The same layer without the product for distances, which an exported program would keep."""
    attention, result = copy.copy(layer.self_attn), copy.copy(layer)
    attention._modules = {name: each for name, each in attention._modules.items() if name != "linear_pos"}
    result._modules = {**layer._modules, "self_attn": attention}
    return result
