"""What happens to crops on their way to the network, for a whole batch on the device: `training.augment`'s chain.

    clean crops (rows, samples) float32  ->  distorted crops (rows, samples) float32

Rooms, noises, filter and mu-law are those of `training.augment`; here the draws are of the device's generator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.augment import BAND_EDGE, AugmentConfig, fast_length, mu_law_table
from training.corpus import SAMPLE_RATE
from training.speaker.material import Material

FRAME = 320  # samples, 20 ms: resolution of a crop's level


class Distortion:
    """Room, noise, level and band of a batch."""

    def __init__(self, material: Material, config: AugmentConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rooms = material.rooms.to(device)
        self.noises = torch.cat(material.noises).to(device)
        self.noise_lengths = torch.tensor([len(noise) for noise in material.noises], device=device)
        self.noise_starts = torch.cumsum(self.noise_lengths, 0) - self.noise_lengths
        self.noise_shares = torch.tensor(material.noise_shares, device=device)
        self.mu_law = torch.from_numpy(mu_law_table()).to(device)

    def __call__(self, waveforms: Tensor) -> Tensor:
        """Distort each row in its own way."""
        config, rows = self.config, waveforms.shape[0]
        waveforms = torch.where(self._draw(rows, config.room), self._in_rooms(waveforms), waveforms)
        power = speech_power(waveforms)
        level = torch.sqrt(power * 10.0 ** (-self._between(rows, config.snr_range_db) / 10.0))
        waveforms = waveforms + level * self._draw(rows, config.noise) * self._noise(waveforms.shape)
        gain_db = self._between(rows, config.gain_range_db)
        gain_db = gain_db + self._draw(rows, config.quiet) * self._between(rows, config.quiet_range_db)
        waveforms = waveforms * 10.0 ** (gain_db / 20.0)
        floor = 10.0 ** (self._between(rows, config.floor_range_dbfs) / 20.0) * self._draw(rows, config.floor)
        floor = floor * torch.randn_like(waveforms)
        # The line's own noise is band-limited, the receiver's is not.
        first = self._draw(rows, 0.5)
        narrow = self._draw(rows, config.narrow_band)
        waveforms = waveforms + floor * first
        waveforms = torch.where(narrow, self._low_pass(waveforms), waveforms) + floor * ~first
        peak = waveforms.abs().amax(dim=1, keepdim=True)
        waveforms = waveforms * torch.where(peak > 1.0, 0.99 / torch.clamp(peak, min=1.0), 1.0)
        samples = torch.clamp(torch.round(waveforms * 32768.0), -32768, 32767)
        # The table is indexed by the number as it would be without a sign.
        coded = self.mu_law[samples.long() & 0xFFFF].float()
        return torch.where(narrow & self._draw(rows, config.mu_law), coded, samples) / 32768.0

    def _draw(self, rows: int, probability: float) -> Tensor:
        return torch.rand(rows, 1, device=self.device) < probability

    def _between(self, rows: int, limits: tuple[float, float]) -> Tensor:
        return limits[0] + (limits[1] - limits[0]) * torch.rand(rows, 1, device=self.device)

    def _in_rooms(self, waveforms: Tensor) -> Tensor:
        rows, length = waveforms.shape
        size = fast_length(length + self.rooms.shape[1])
        responses = self.rooms[torch.randint(len(self.rooms), (rows,), device=self.device)]
        spectrum = torch.fft.rfft(waveforms, size) * torch.fft.rfft(responses, size)
        return torch.fft.irfft(spectrum, size)[:, :length]

    def _noise(self, shape: torch.Size) -> Tensor:
        kind = torch.multinomial(self.noise_shares, shape[0], replacement=True)
        lengths = self.noise_lengths[kind].unsqueeze(1)
        begin = (torch.rand(shape[0], 1, device=self.device) * lengths).long()
        places = (begin + torch.arange(shape[1], device=self.device)) % lengths
        return self.noises[self.noise_starts[kind].unsqueeze(1) + places]

    def _low_pass(self, waveforms: Tensor) -> Tensor:
        rows, length = waveforms.shape
        size = fast_length(length + 256)
        frequency = torch.arange(size // 2 + 1, device=self.device) * (SAMPLE_RATE / size)
        slope = torch.clamp((frequency - self._between(rows, self.config.cutoff_range_hz)) / BAND_EDGE, 0.0, 1.0)
        spectrum = torch.fft.rfft(waveforms, size) * (0.5 + 0.5 * torch.cos(torch.pi * slope))
        return torch.fft.irfft(spectrum, size)[:, :length]


def speech_power(waveforms: Tensor) -> Tensor:
    """Mean square (rows, 1) of the louder half of the frames, so that pauses do not count."""
    frames = waveforms.shape[1] // FRAME
    energy = waveforms[:, : frames * FRAME].reshape(-1, frames, FRAME).square().mean(dim=2)
    return energy.topk(max(1, frames // 2), dim=1).values.mean(dim=1, keepdim=True)
