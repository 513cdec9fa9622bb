"""Features of FunASR's models: Kaldi's mel bands, some frames side by side, scaled by the statistics in am.mvn.

    waveform (batch, samples) in [-1, 1], num_samples (batch,)  ->  rows (batch, frames, bins · width), num_frames

Method: funasr/frontends/wav_frontend.py. Upstream adds noise to the samples (dither), so that results differ from run
to run; here there is none, as in upstream's own runtimes.
"""

import torch
from torch import Tensor, nn

from tritone.bundle.manifest import Features
from tritone.families.funasr.config import FrontEndConfig
from tritone.families.layers.fbank import Fbank
from tritone.families.layers.framing import cut_frames


class StackedFbank(nn.Module):
    """Rows of `width` frames, `step` frames apart, the first and the last frame repeated at the ends; float32.

    `shift`, `scale`: (bins · width,) each, added to a row and then multiplied with it.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, config: FrontEndConfig, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fbank = Fbank(
            sample_rate=config.sample_rate,
            frame_length=config.frame_length,
            frame_shift=config.frame_shift,
            num_mel_bins=config.num_mel_bins,
            window_type=config.window,
            sample_scale=config.sample_scale,
        )
        self.register_buffer("shift", shift, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    @property
    def min_samples(self) -> int:
        """The shortest waveform that gives a row."""
        return self.fbank.least_samples(1)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        """Rows of waveforms of so many samples."""
        return (self.fbank.num_frames(num_samples) + self.config.step - 1) // self.config.step

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        """Compute rows; those at or beyond a row's own are as behind its last frame."""
        frames, counts = self.fbank(waveform, num_samples)
        before = (self.config.width - 1) // 2
        last = torch.clamp(counts - 1, min=0)[:, None, None].expand(-1, 1, frames.shape[2])
        last = frames.gather(1, last)
        beyond = torch.arange(frames.shape[1], device=frames.device) >= counts.unsqueeze(1)
        frames = torch.where(beyond.unsqueeze(2), last, frames)
        ends = (frames[:, :1].expand(-1, before, -1), last.expand(-1, self.config.width - 1 - before, -1))
        frames = torch.cat([ends[0], frames, ends[1]], dim=1)
        bins = self.config.num_mel_bins
        rows = cut_frames(frames.flatten(1), self.config.width * bins, self.config.step * bins)
        return (rows + self.shift) * self.scale, self.num_frames(num_samples)

    def described(self) -> Features:
        """What a manifest says of it."""
        config = self.config
        return Features(
            frame_length=config.frame_length,
            frame_shift=config.frame_shift,
            num_mel_bins=config.num_mel_bins,
            window=config.window,  # type: ignore[arg-type]  # checked when the config was read
            sample_scale=config.sample_scale,
        )
