"""The two graphs that a WeNet bundle holds, as modules ready for export; contracts in docs/design.md.

OfflineGraph     waveform, num_samples                     ->  log_probs, num_frames, encoder_out
StreamingGraph   waveform, num_samples, offset, caches     ->  the same, and next_offset, next caches

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from tritone.bundle.manifest import ALL_LEFT, LEFT_FRAMES
from tritone.errors import ExportError
from tritone.families.fbank import Fbank
from tritone.families.precision import as_dtype
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.model import AsrModel


class FrontEnd(Protocol):
    """What turns samples into features: `Fbank`, or a stand-in with the same frame arithmetic."""

    frame_length: int
    frame_shift: int

    def __call__(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]: ...


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


def samples_for(fbank: FrontEnd, frames: int) -> int:
    """Samples that give exactly `frames` fbank frames."""
    return (frames - 1) * fbank.frame_shift + fbank.frame_length


class OfflineGraph(nn.Module):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64."""

    def __init__(self, model: AsrModel, front_end: FrontEnd) -> None:
        super().__init__()
        self.fbank = front_end
        self.encoder, self.ctc = model.encoder, model.ctc
        self.sample_rate = model.config.sample_rate

    @property
    def min_samples(self) -> int:
        """The shortest waveform with one encoder frame."""
        return samples_for(self.fbank, self.encoder.embed.right_context + 1)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        feats, lengths = self.fbank(waveform, num_samples)
        encoded, num_frames = self.encoder(feats, lengths)
        return self.ctc(encoded), num_frames, as_dtype(encoded, torch.float32)


class StreamingGraph(nn.Module):
    """One window of many streams: of any chunk size, and with as many past frames as it is given.

    Args:
        model: a streamable model.
        front_end: makes features from samples.
        chunk_size: encoder frames a step, unless something else is chosen when it is run.
        left_chunks: past chunks a step may attend to, with the same proviso; -1 for all.

    Raises:
        ExportError: the model looks into the future by itself, or a size is out of range.
    """

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
        self.fbank = front_end
        self.encoder, self.ctc = model.encoder, model.ctc
        self.sample_rate = model.config.sample_rate
        self.chunk_size, self.left_chunks = chunk_size, left_chunks

    def window_for(self, chunk_size: int) -> int:
        """Samples that give exactly `chunk_size` encoder frames."""
        embed = self.encoder.embed
        return samples_for(self.fbank, (chunk_size - 1) * embed.rate + embed.right_context + 1)

    def shift_for(self, chunk_size: int) -> int:
        """Samples from one window to the next."""
        return chunk_size * self.encoder.embed.rate * self.fbank.frame_shift

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

    def forward(
        self, waveform: Tensor, num_samples: Tensor, offset: Tensor, att_cache: Tensor, cnn_cache: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        feats, lengths = self.fbank(waveform, num_samples)
        dtype = self.encoder.dtype
        if cnn_cache is not None:
            cnn_cache = as_dtype(cnn_cache, dtype)
        encoded, num_frames, next_att, next_cnn = self.encoder.forward_chunk(
            feats, lengths, offset, as_dtype(att_cache, dtype), cnn_cache
        )
        log_probs, next_att = self.ctc(encoded), as_dtype(next_att, torch.float32)
        outputs = (log_probs, num_frames, as_dtype(encoded, torch.float32), offset + num_frames, next_att)
        return outputs if next_cnn is None else (*outputs, as_dtype(next_cnn, torch.float32))
