"""icefall's reworked conformer (pruned_transducer_stateless 2 to 5), for whole utterances and for streaming steps.

    fbank (batch, frames, bins), lengths (batch,)  ->  encoder frames (batch, T', width), lengths (batch,)

The four recipes train differently; what they train is one network. A row's result depends on nothing but its own valid
frames: upstream lets one padding frame into the last frame of some batched utterances, and here nothing gets in.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.export.precision import as_dtype
from tritone.families.icefall.layers import CHANNELS, ConformerLayer, Subsampling, valid_frames
from tritone.families.layers.attention import extra_distances
from tritone.families.layers.sinusoids import sinusoids

LAYER = re.compile(r"encoder\.encoder\.layers\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class ConformerConfig:
    """Sizes of a conformer.

    `causal`: its convolutions see no future frames, so it can be streamed. A checkpoint's tensors do not show it, so
    None stands for "not given"; such a model is taken for upstream's default, not causal, and refuses to be streamed.
    """

    feature_dim: int = 80
    encoder_dim: int = 512
    heads: int = 8
    feed_forward_dim: int = 2048
    layers: int = 12
    kernel: int = 31
    causal: bool | None = None
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.encoder_dim % self.heads or self.encoder_dim % 2:
            raise ExportError(f"encoder width {self.encoder_dim} must be even and a multiple of {self.heads} heads")
        if self.kernel % 2 == 0:
            raise ExportError(f"the convolution kernel is {self.kernel}; this network needs an odd one")

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], *, causal: bool | None = None) -> "ConformerConfig":
        """Read the sizes off a checkpoint's tensors, by upstream's full names.

        Raises:
            ExportError: a tensor that shows a size is missing or has the wrong number of axes.
        """

        def shape(name: str, axes: int) -> tuple[int, ...]:
            value = state.get(f"encoder.{name}")
            if value is None or value.dim() != axes:
                found = "missing" if value is None else f"of shape {tuple(value.shape)}"
                raise ExportError(f"encoder.{name}, which shows sizes, is {found}; it should have {axes} axes")
            return tuple(value.shape)

        width, flat = shape("encoder_embed.out.weight", 2)
        heads, size = shape("encoder.layers.0.self_attn.pos_bias_u", 2)
        if heads * size != width:
            raise ExportError(f"{heads} heads of size {size} do not make the encoder's width {width}")
        bins = flat // CHANNELS[-1]
        return cls(
            feature_dim=4 * bins + 4,  # three more lead to the same shapes; 80 is the one that is used
            encoder_dim=width,
            heads=heads,
            feed_forward_dim=shape("encoder.layers.0.feed_forward.0.weight", 2)[0],
            layers=1 + max(int(match[1]) for name in state if (match := LAYER.match(name))),
            kernel=shape("encoder.layers.0.conv_module.depthwise_conv.weight", 3)[2],
            causal=causal,
        )


class _Stack(nn.Module):
    """Upstream's `encoder.layers`."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ConformerLayer(
                config.heads,
                config.encoder_dim,
                config.feed_forward_dim,
                config.kernel,
                bool(config.causal),
                config.dropout,
            )
            for _ in range(config.layers)
        )


class Conformer(nn.Module):
    """Subsampling to a quarter of the frames, and layers; names are those of upstream after `encoder.`."""

    fused = False
    min_frames = 7
    subsampling = 4

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.config = config
        self.output_dim = config.encoder_dim
        self.encoder_embed = Subsampling(config.feature_dim, config.encoder_dim)
        self.encoder = _Stack(config)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def dtype(self) -> torch.dtype:
        """What the layers compute in; features are float32 always."""
        return self.encoder_embed.out.weight.dtype

    def places(self, cached: int, frames: int, device: torch.device) -> Tensor:
        """Position vectors (1, distances, width) that `RelativeAttention` asks for."""
        last = -frames - extra_distances(cached + frames) if self.fused else -frames
        distances = torch.arange(cached + frames - 1, last - 1, -1, device=device)
        return self.dropout(as_dtype(sinusoids(distances, self.config.encoder_dim), self.dtype)).unsqueeze(0)

    def forward(
        self, feats: Tensor, lengths: Tensor, *, chunk_size: int = -1, left_context: int = -1
    ) -> tuple[Tensor, Tensor]:
        """Encode whole utterances.

        Args:
            feats: (batch, frames, bins) float32, padded with anything; at least `min_frames` frames.
            lengths: (batch,) int64, valid frames; rows of fewer than `min_frames` have no result.
            chunk_size: let a frame see its own chunk of encoder frames and some of the past, as a streamed model does;
                -1 shows it everything.
            left_context: encoder frames before the chunk to see, counted in whole chunks; -1 for all of them.

        Returns:
            (batch, T', width), of which rows at or beyond the lengths (batch,) are undefined.
        """
        present = torch.arange(feats.shape[1], device=feats.device).unsqueeze(0) < lengths.unsqueeze(1)
        # Zeros are what the first convolution sees after the end of an utterance that is alone.
        feats = feats.masked_fill(~present.unsqueeze(2), 0.0)
        x = self.dropout(self.encoder_embed(feats))
        num_frames = valid_frames(lengths)
        steps = torch.arange(x.shape[1], device=x.device)
        valid = steps.unsqueeze(0) < num_frames.unsqueeze(1)
        mask = valid.unsqueeze(1)
        if chunk_size > 0:
            mask = mask & chunk_mask(steps, chunk_size, left_context)
        places = self.places(0, x.shape[1], x.device)
        frame_mask = valid.unsqueeze(2).to(x.dtype)
        for layer in self.encoder.layers:
            x, _, _ = layer(x, places, mask, frame_mask, None, None)
        return x, num_frames

    def streaming(self, chunk_size: int, left_context: int, right_context: int) -> "ConformerStep":
        """The network as steps of streams; sizes in encoder frames.

        Raises:
            ExportError: the model is not causal, it is not given whether it is, or a size is out of range.
        """
        return ConformerStep(self, chunk_size, left_context, right_context)


def chunk_mask(steps: Tensor, chunk_size: int, left_context: int) -> Tensor:
    """(frames, frames): row i may see its own chunk and `left_context // chunk_size` before it (all when negative)."""
    chunk = torch.div(steps, chunk_size, rounding_mode="floor")
    mask = chunk.unsqueeze(0) <= chunk.unsqueeze(1)
    if left_context >= 0:
        mask = mask & (chunk.unsqueeze(0) >= chunk.unsqueeze(1) - left_context // chunk_size)
    return mask


class ConformerStep(nn.Module):
    """One window of each of several streams, as upstream's `streaming_forward` takes each of them alone.

    The first and the last frame of a window's subsampling are dropped, since they see the convolution's zero padding.
    Frames of right context are computed again in the next step, when they see more of the future.

    `window_frames`, `shift_frames`: feature frames of a window, and from one to the next. `pad_frames`: frames of
    padding after the audio that upstream has steps run into. `chunk_frames`: encoder frames of a step.
    """

    def __init__(self, conformer: Conformer, chunk_size: int, left_context: int, right_context: int) -> None:
        super().__init__()
        config = conformer.config
        if config.causal is None:
            raise ExportError(
                "a conformer's checkpoint does not show whether its convolutions are causal, and a wrong guess gives "
                "wrong text. Say it: --causal if it was trained with --causal-convolution True (then it can be "
                "streamed), else --no-causal, without --streaming"
            )
        if not config.causal:
            raise ExportError(
                "this conformer cannot be streamed: its convolutions are not causal, so every frame needs future ones. "
                "Export it as an offline model."
            )
        if chunk_size < 1 or left_context < 1 or right_context < 0:
            raise ExportError(
                f"chunk size {chunk_size}, left context {left_context}, right context {right_context}: streaming needs "
                "at least 1, 1 and 0 encoder frames"
            )
        self.conformer = conformer
        self.left_context, self.right_context = left_context, right_context
        self.chunk_frames = chunk_size
        subsampling = conformer.subsampling
        self.pad_frames = (right_context + 2) * subsampling + 3
        self.shift_frames = chunk_size * subsampling
        self.window_frames = self.shift_frames + self.pad_frames

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Per-stream shape of every state, in order; `processed` counts frames in int64, the others are float32."""
        config = self.conformer.config
        size = config.encoder_dim // config.heads
        return {
            "processed": (),
            "attn_cache": (config.layers, config.heads, self.left_context, 2 * size),
            "conv_cache": (config.layers, config.kernel - 1, config.encoder_dim),
        }

    def forward(
        self, feats: Tensor, num_valid: Tensor, processed: Tensor, attn_cache: Tensor, conv_cache: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Encode one window a stream.

        Args:
            feats: (batch, window_frames, bins) float32; frames at or beyond `num_valid` are log(1e-10).
            num_valid: (batch,) int64, frames of audio; fewer than the window only at the end of a stream, 0 is allowed.
            processed: (batch,) int64, encoder frames that earlier steps gave.
            attn_cache: (batch, layers, heads, left_context, 2 · size), keys and values, the newest last.
            conv_cache: (batch, layers, kernel - 1, width).

        Returns:
            (batch, chunk_frames, width), the number of valid frames (batch,), and the next states.
        """
        network, chunk = self.conformer, self.chunk_frames
        # Upstream pads the end of a stream, and raises windows that would not give a frame to the shortest that do.
        lengths = torch.clamp(num_valid + self.pad_frames, min=self.pad_frames + 4, max=self.window_frames)
        reached = valid_frames(lengths) - 2
        num_frames = reached - self.right_context
        x = network.encoder_embed(feats)[:, 1:-1]
        frames = chunk + self.right_context
        steps = torch.arange(frames, device=x.device)
        slots = torch.arange(self.left_context, device=x.device)
        past = slots.unsqueeze(0) >= self.left_context - processed.unsqueeze(1)
        mask = torch.cat([past, steps.unsqueeze(0) < reached.unsqueeze(1)], dim=1).unsqueeze(1)
        places = network.places(self.left_context, frames, x.device)
        attn_cache, conv_cache = as_dtype(attn_cache, x.dtype), as_dtype(conv_cache, x.dtype)
        # What is kept ends with the last frame that is given, also where a window is short and one more step follows.
        kept_keys = _rows(num_frames, self.left_context, self.left_context + frames, network.config.heads)
        kept_gated = _rows(num_frames, conv_cache.shape[2], conv_cache.shape[2] + frames)
        keys, convolved = [], []
        for index, layer in enumerate(network.encoder.layers):
            x, seen, gated = layer(x, places, mask, None, attn_cache[:, index], conv_cache[:, index])
            keys.append(_taken(seen, kept_keys))
            convolved.append(_taken(gated, kept_gated))
        return (
            x[:, :chunk],
            num_frames,
            processed + num_frames,
            as_dtype(torch.stack(keys, dim=1), torch.float32),
            as_dtype(torch.stack(convolved, dim=1), torch.float32),
        )


def _rows(start: Tensor, count: int, length: int, heads: int | None = None) -> Tensor:
    """Places of `count` rows from `start` (batch,) on, in a block (batch, heads, length, …) whose first axes are one.

    Whole rows are copied then, which costs what a slice costs; only the slice would be the same for all streams.
    """
    rows = start.unsqueeze(1) + torch.arange(count, device=start.device)
    if heads is None:
        return rows + length * torch.arange(start.shape[0], device=start.device).unsqueeze(1)
    blocks = torch.arange(start.shape[0] * heads, device=start.device).reshape(start.shape[0], heads, 1)
    return rows.unsqueeze(1) + length * blocks


def _taken(block: Tensor, rows: Tensor) -> Tensor:
    return block.reshape(-1, block.shape[-1]).index_select(0, rows.flatten()).reshape(*rows.shape, block.shape[-1])
