"""The two graphs that a WeNet bundle holds, as modules ready for export; contracts in docs/design.md.

OfflineGraph     waveform, num_samples                     ->  log_probs, num_frames, encoder_out
StreamingGraph   waveform, num_samples, offset, caches     ->  the same, and next_offset, next caches

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from tritone.audio import Waveform
from tritone.bundle.manifest import ALL_LEFT, LEFT_FRAMES
from tritone.errors import ExportError
from tritone.families.export.exportable import (
    EXAMPLE_BATCH,
    ExportableGraph,
    Run,
    UtteranceGraph,
    trial_signal,
)
from tritone.families.export.precision import as_dtype
from tritone.families.layers.fbank import Fbank, FrontEnd
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.model import AsrModel

TRIAL_STEPS = 4
TRIAL_CHUNKS = ((1, 5), (6, 0))  # chunk size and past frames beside the defaults: the least of either


def make_fbank(config: ModelConfig) -> Fbank:
    """The feature module that the model was trained with (dither off)."""
    per_ms = config.sample_rate / 1000
    return Fbank(
        sample_rate=config.sample_rate,
        frame_length=round(config.frame_length_ms * per_ms),
        frame_shift=round(config.frame_shift_ms * per_ms),
        num_mel_bins=config.num_mel_bins,
        window_type=config.window,
    )


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64."""

    def __init__(self, model: AsrModel, front_end: FrontEnd) -> None:
        super().__init__()
        self.front_end = front_end
        self.encoder, self.ctc = model.encoder, model.ctc
        self.sample_rate = model.config.sample_rate

    @property
    def min_samples(self) -> int:
        return self.front_end.least_samples(self.encoder.embed.right_context + 1)

    @property
    def trial_lengths(self) -> list[int]:
        # The first one has no frame at all.
        return [round(seconds * self.sample_rate) for seconds in self.trial_seconds]

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        encoded, num_frames = self.encoder(features, self.front_end.num_frames(num_samples))
        return self.ctc(encoded), num_frames, as_dtype(encoded, torch.float32)


class StreamingGraph(ExportableGraph):
    """One window of many streams: of any chunk size, and with as many past frames as it is given.

    Args:
        model: a streamable model.
        front_end: makes features from samples.
        chunk_size: encoder frames a step, unless something else is chosen when it is run.
        left_chunks: past chunks a step may attend to, with the same proviso; -1 for all.

    Raises:
        ExportError: the model looks into the future by itself, or a size is out of range.
    """

    compared = ("log_probs",)

    def __init__(self, model: AsrModel, front_end: FrontEnd, chunk_size: int, left_chunks: int) -> None:
        super().__init__()
        if not model.config.encoder.streamable:
            raise ExportError(
                "this model cannot be streamed: its convolution modules are not causal (train.yaml: "
                "encoder_conf.causal is false), so every frame needs future ones. Export it without --streaming."
            )
        if chunk_size < 1 or left_chunks < ALL_LEFT:
            raise ExportError(
                f"chunk size {chunk_size} and left chunks {left_chunks}: streaming needs at least 1 frame a chunk "
                f"and 0 or more left chunks, or {ALL_LEFT} for all of them"
            )
        self.front_end = front_end
        self.encoder, self.ctc = model.encoder, model.ctc
        self.sample_rate = model.config.sample_rate
        self.chunk_size, self.left_chunks = chunk_size, left_chunks

    def window_for(self, chunk_size: int) -> int:
        """Samples that give exactly `chunk_size` encoder frames."""
        embed = self.encoder.embed
        return self.front_end.window_samples((chunk_size - 1) * embed.rate + embed.right_context + 1)

    def shift_for(self, chunk_size: int) -> int:
        """Samples from one window to the next."""
        return chunk_size * self.encoder.embed.rate * self.front_end.frame_shift

    @property
    def state_shapes(self) -> dict[str, tuple[int | Literal["left_frames"], ...]]:
        """Per-stream shape of every state as of `manifest.State`; `offset` is int64, the others float32."""
        config = self.encoder.config
        layers, heads, columns = self.encoder.att_cache_shape
        shapes: dict[str, tuple[int | Literal["left_frames"], ...]] = {
            "offset": (),
            "att_cache": (layers, heads, LEFT_FRAMES, columns),
        }
        if config.use_cnn_module:
            shapes["cnn_cache"] = (layers, config.cnn_module_kernel - 1, config.output_size)
        return shapes

    def zero_states(self, batch: int, left_frames: int) -> dict[str, Tensor]:
        """The states of streams that start, with room for `left_frames` past frames."""
        return {
            name: torch.zeros(
                batch,
                *(left_frames if axis == LEFT_FRAMES else axis for axis in shape),
                dtype=torch.int64 if name == "offset" else torch.float32,
            )
            for name, shape in self.state_shapes.items()
        }

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", "num_frames", "encoder_out", *(f"next_{name}" for name in self.state_shapes)]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        axes = {name: {0: "batch"} for name in ("waveform", "num_samples", *self.state_shapes)}
        axes["waveform"][1] = "samples"
        axes["att_cache"][self.state_shapes["att_cache"].index(LEFT_FRAMES) + 1] = LEFT_FRAMES
        return axes

    def example(self) -> dict[str, Tensor]:
        samples = self.window_for(6)
        return {
            "waveform": torch.zeros(EXAMPLE_BATCH, samples),
            "num_samples": torch.full((EXAMPLE_BATCH,), samples),
            **self.zero_states(EXAMPLE_BATCH, 10),
        }

    def trials(self) -> Iterator[Run]:
        left_frames = self.chunk_size * (TRIAL_STEPS if self.left_chunks == ALL_LEFT else self.left_chunks)
        for chunk_size, left in {(self.chunk_size, left_frames), *TRIAL_CHUNKS}:
            window, shift = self.window_for(chunk_size), self.shift_for(chunk_size)
            signal = trial_signal(window + shift * TRIAL_STEPS, self.sample_rate)
            ends = [window] * (TRIAL_STEPS - 1) + [window // 2]
            steps = [
                {"waveform": signal[None, step * shift : step * shift + window], "num_samples": torch.tensor([end])}
                for step, end in enumerate(ends)
            ]
            yield Run(steps, self.zero_states(1, left))

    def hearing(self, waveform: Waveform) -> Run:
        """A recording as steps of the chunk size and history of the export."""
        window, shift = self.window_for(self.chunk_size), self.shift_for(self.chunk_size)
        count = max(0, len(waveform) - window) // shift + 1
        steps = []
        for step in range(count):
            piece = torch.from_numpy(waveform[step * shift : step * shift + window])
            block = torch.zeros(1, window)
            block[0, : len(piece)] = piece
            steps.append({"waveform": block, "num_samples": torch.tensor([len(piece)])})
        chunks = self.left_chunks if self.left_chunks >= 0 else count
        return Run(steps, self.zero_states(1, self.chunk_size * chunks))

    def forward(
        self, waveform: Tensor, num_samples: Tensor, offset: Tensor, att_cache: Tensor, cnn_cache: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        feats, lengths = self.front_end(waveform, num_samples)
        dtype = self.encoder.dtype
        if cnn_cache is not None:
            cnn_cache = as_dtype(cnn_cache, dtype)
        encoded, num_frames, next_att, next_cnn = self.encoder.forward_chunk(
            feats, lengths, offset, att_cache, cnn_cache
        )
        outputs = (self.ctc(encoded), num_frames, as_dtype(encoded, torch.float32), offset + num_frames, next_att)
        return outputs if next_cnn is None else (*outputs, as_dtype(next_cnn, torch.float32))
