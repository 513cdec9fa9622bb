"""zipformer2 one chunk at a time, for many streams at once.

    fbank window (batch, 2 · chunk + 13, bins), states  ->  (batch, chunk / 2, width), next states

Frame n is the frame n of the whole utterance under the chunk mask, until the last window: what follows the end of the
audio is log(1e-10), and is encoded like audio, as upstream does.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.export.precision import as_dtype
from tritone.families.icefall.zipformer import (
    DownsampledLayers,
    Zipformer,
    ZipformerLayer,
    join_widths,
    upsample,
    with_width,
)
from tritone.families.icefall.zipformer_config import OUTPUT_DOWNSAMPLING
from tritone.families.icefall.zipformer_embed import CHANNELS, CONVNEXT_SIDE, embedded_bins
from tritone.families.icefall.zipformer_layers import MASKED_SCORE, relative_positions

LOOKAHEAD = 7 + 2 * CONVNEXT_SIDE  # fbank frames of a window beyond two for each frame at 50 Hz
STATES_PER_LAYER = 6


def layer_step(
    layer: ZipformerLayer, x: Tensor, positions: Tensor, key_bias: Tensor, states: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """One chunk through a layer.

    Args:
        x: (batch, frames, width).
        positions: (frames + keys, position_width), where keys are those of the past and of the chunk.
        key_bias: (batch, 1, keys, 1).
        states: keys (batch, heads, past, query_size), mixed (batch, past, hidden) of the nonlinear attention, values of
            both attentions (batch, heads, past, value_size), and both convolutions' past (batch, width, kernel // 2).

    Returns:
        The output, and the next states.
    """
    frames = x.shape[1]
    key_past, mixed_past, value1_past, value2_past, conv1, conv2 = states
    before = x
    query, key, place = layer.self_attn_weights.project(x)
    key = torch.cat([key_past, key], dim=2)
    weights = layer.self_attn_weights(query, key, place, positions, key_bias, None)
    x = x + layer.feed_forward1(x)
    mixed, after = layer.nonlin_attention.project(x)
    mixed = torch.cat([mixed_past, mixed], dim=1)
    x = x + layer.nonlin_attention(weights[:, 0], mixed, after)
    value1 = torch.cat([value1_past, layer.self_attn1.value(x)], dim=2)
    x = x + layer.self_attn1(weights, value1)
    convolved, conv1 = layer.conv_module1.step(x, conv1)
    x = x + convolved
    x = x + layer.feed_forward2(x)
    x = layer.bypass_mid(before, x)
    value2 = torch.cat([value2_past, layer.self_attn2.value(x)], dim=2)
    x = x + layer.self_attn2(weights, value2)
    convolved, conv2 = layer.conv_module2.step(x, conv2)
    x = x + convolved
    x = x + layer.feed_forward3(x)
    x = layer.bypass(before, layer.norm(x))
    return x, [key[:, :, frames:], mixed[:, frames:], value1[:, :, frames:], value2[:, :, frames:], conv1, conv2]


class StreamingZipformer(nn.Module):
    """One step of many streams of a zipformer, whose weights it uses.

    Args:
        zipformer: a causal one.
        chunk_size, left_context: frames at 50 Hz, two of which are an encoder frame.
        right_context: the model looks 3 frames ahead whatever is asked for; only 0 is allowed.

    Raises:
        ExportError: the model is not causal, or the sizes do not fit it.

    Attributes:
        window_frames, shift_frames: fbank frames of a step, and by how many the next one is further on.
        pad_frames: of log(1e-10) that follow the end of a stream.
        chunk_frames: encoder frames of a step, always all of them.
        state_shapes: of one stream, zeros at its start. `processed` counts frames at 50 Hz.
    """

    def __init__(self, zipformer: Zipformer, chunk_size: int, left_context: int, right_context: int = 0) -> None:
        super().__init__()
        config = zipformer.config
        if not config.causal:
            raise ExportError(
                "this zipformer was trained without causal convolution and cannot be streamed. Export it for whole "
                "utterances, or take a model that was trained with --causal 1."
            )
        step = config.max_downsampling
        for name, value in (("chunk size", chunk_size), ("left context", left_context)):
            if value < step or value % step:
                raise ExportError(
                    f"{name} {value} ({value / OUTPUT_DOWNSAMPLING:g} encoder frames) does not fit this zipformer: it "
                    f"must be a multiple of {step} frames of 20 ms ({step // OUTPUT_DOWNSAMPLING} encoder frames)"
                )
        if right_context:
            raise ExportError(f"a zipformer has no right context to choose (asked for {right_context}); leave it at 0")
        self.model = zipformer
        self.chunk_size, self.left_context = chunk_size, left_context
        self.shift_frames = 2 * chunk_size
        self.window_frames = self.shift_frames + LOOKAHEAD
        self.pad_frames = LOOKAHEAD
        self.chunk_frames = chunk_size // OUTPUT_DOWNSAMPLING
        self.state_shapes = dict(self._state_shapes())

    def _state_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        index = 0
        for stack in self.model.config.stacks:
            past, lead = self.left_context // stack.downsampling, stack.kernel // 2
            for _ in range(stack.layers):
                yield f"key_{index}", (stack.heads, past, stack.query_size)
                yield f"mixed_{index}", (past, 3 * stack.width // 4)
                yield f"value1_{index}", (stack.heads, past, stack.value_size)
                yield f"value2_{index}", (stack.heads, past, stack.value_size)
                yield f"conv1_{index}", (stack.width, lead)
                yield f"conv2_{index}", (stack.width, lead)
                index += 1
        yield "embed", (CHANNELS[-1], CONVNEXT_SIDE, embedded_bins(self.model.config.input_dim))
        yield "processed", ()

    @property
    def output_dim(self) -> int:
        return self.model.output_dim

    def forward(self, feats: Tensor, num_valid: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Encode one window of each of several streams.

        Args:
            feats: (batch, window_frames, bins); what is beyond the audio is log(1e-10).
            num_valid: (batch,) frames of audio; all frames are encoded whatever they say.
            states: (batch, …) in the order of `state_shapes`.

        Returns:
            (batch, chunk_frames, output_dim), their number (batch,), and the next states.
        """
        model, config = self.model, self.model.config
        *layer_states, embed_state, processed = states
        x, embed_state = model.encoder_embed.step(feats, as_dtype(embed_state, model.dtype))
        # the newest frame of the past is its last; those before the start of the stream are zeros, and not to be seen
        age = torch.arange(self.left_context - 1, -1, -1, device=x.device)
        past = (age < processed.unsqueeze(1)).to(x.dtype)
        bias = (1.0 - torch.cat([past, torch.ones_like(x[:, :, 0])], dim=1)) * MASKED_SCORE
        outputs: list[Tensor] = []
        next_states: list[Tensor] = []
        for stack, module in zip(config.stacks, model.encoder.encoders, strict=True):
            rate = stack.downsampling
            x = with_width(x, stack.width)
            key_bias = bias[:, ::rate].unsqueeze(1).unsqueeze(3)
            count = self.chunk_size // rate
            positions = relative_positions(count, self.left_context // rate + count, config.position_width, x.device)
            layers, slow = module, x
            if isinstance(module, DownsampledLayers):
                layers, slow = module.encoder, module.downsample.whole(x)
            for layer in cast(list[ZipformerLayer], layers.layers):
                begin = len(next_states)
                taken = [as_dtype(state, x.dtype) for state in layer_states[begin : begin + STATES_PER_LAYER]]
                slow, changed = layer_step(layer, slow, positions, key_bias, taken)
                next_states += [as_dtype(state, torch.float32) for state in changed]
            x = module.out_combiner(x, upsample(slow, rate)) if isinstance(module, DownsampledLayers) else slow
            outputs.append(x)
        x = model.encoder.downsample_output.whole(join_widths(outputs))
        num_frames = torch.full_like(num_valid, self.chunk_frames)
        return x, num_frames, *next_states, as_dtype(embed_state, torch.float32), processed + self.chunk_size
