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
        frames, last, _ = self._frames(waveform, num_samples)
        before = (self.config.width - 1) // 2
        ends = (frames[:, :1].expand(-1, before, -1), last.expand(-1, self.config.width - 1 - before, -1))
        return self._rows(torch.cat([ends[0], frames, ends[1]], dim=1)), self.num_frames(num_samples)

    def of_window(self, waveform: Tensor, num_samples: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of a window of a stream, which begins `lead_samples` before its own audio.

        Args:
            waveform: (batch, samples), of which each row has `num_samples` (batch,) int64.
            first: (batch,) bool, whether the stream begins in this window; what is before its audio may be anything.

        Returns:
            Rows (batch, rows, size), and how many each has (batch,) int64: none where its audio is shorter than the
            distance of two rows.
        """
        config, before = self.config, (self.config.width - 1) // 2
        frames, _, counts = self._frames(waveform, num_samples)
        start = frames[:, before : before + 1].expand(-1, before, -1)
        start = torch.where(first[:, None, None], start, frames[:, :before])
        rows = self._rows(torch.cat([start, frames[:, before:]], dim=1))
        own = (torch.clamp(counts - before, min=0) + config.step - 1) // config.step
        return rows, torch.where(num_samples - self.lead_samples < config.step * config.frame_shift, 0, own)

    @property
    def lead_samples(self) -> int:
        """Samples of the frames before the first one's own in a window of a stream."""
        return (self.config.width - 1) // 2 * self.config.frame_shift

    def _frames(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Frames, those beyond a row's own as its last one, this one, and how many they are."""
        frames, counts = self.fbank(waveform, num_samples)
        last = torch.clamp(counts - 1, min=0)[:, None, None].expand(-1, 1, frames.shape[2])
        last = frames.gather(1, last)
        beyond = torch.arange(frames.shape[1], device=frames.device) >= counts.unsqueeze(1)
        return torch.where(beyond.unsqueeze(2), last, frames), last, counts

    def _rows(self, frames: Tensor) -> Tensor:
        bins = self.config.num_mel_bins
        rows = cut_frames(frames.flatten(1), self.config.width * bins, self.config.step * bins)
        return (rows + self.shift) * self.scale

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
