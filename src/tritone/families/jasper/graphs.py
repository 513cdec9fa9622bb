"""The graph of a Jasper bundle, as a module ready for export; contract in docs/design.md.

OfflineGraph     waveform, num_samples  ->  log_probs, num_frames, encoder_out

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tritone.audio import Waveform
from tritone.errors import ExportError
from tritone.families.export.exportable import ExportableGraph, Run, trial_signal, utterances
from tritone.families.export.precision import as_dtype
from tritone.families.jasper.model import Network, Rows
from tritone.families.layers.log_mel import LogMel

EXAMPLE_BATCH = 3
TRIAL_SECONDS = (0.05, 1.3, 2.9)


class OfflineGraph(ExportableGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64.

    Raises:
        ExportError: upstream pads utterances to a length that this cannot give them.
    """

    compared = ("log_probs",)

    def __init__(self, network: Network, front_end: LogMel) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = network.config.features.sample_rate
        if network.needs_blocks and network.config.features.max_frames:
            raise ExportError(
                "input_val pads every utterance to max_duration (pad_to_max_duration), and this network hears what is "
                "behind an utterance's end: it would need as much time for a word as for the longest audio. Export "
                "with masks, or with pad_to_max_duration: false."
            )

    @property
    def min_samples(self) -> int:
        """The shortest waveform with one encoder frame."""
        return self.front_end.min_samples

    @property
    def outputs(self) -> list[str]:
        return ["log_probs", "num_frames", "encoder_out"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        samples = self.min_samples + 30011
        return {
            "waveform": torch.zeros(EXAMPLE_BATCH, samples),
            "num_samples": torch.tensor([samples, 20000, 5000]),
        }

    def trials(self) -> Iterator[Run]:
        lengths = [max(self.min_samples, round(seconds * self.sample_rate)) for seconds in TRIAL_SECONDS]
        signal = trial_signal(max(lengths), self.sample_rate)
        # What follows the shorter ones must not matter.
        yield Run([{"waveform": signal.repeat(len(lengths), 1), "num_samples": torch.tensor(lengths)}])
        # A trace may have taken the number of rows for a constant.
        yield Run([{"waveform": signal[None, : lengths[1]], "num_samples": torch.tensor(lengths[1:2])}])

    def hearing(self, waveform: Waveform) -> Run | None:
        """A recording as input; None if it is too short."""
        return utterances([waveform]) if len(waveform) >= self.min_samples else None

    def rows(self, x: Tensor, num_samples: Tensor) -> tuple[Tensor, Rows]:
        """Features (batch, bins, 1, frames) with as many frames as the rows need, and how long each row is."""
        own = self.front_end.num_frames(num_samples)
        if not self.network.needs_blocks:
            return x, Rows.starting(x, own, own, own)
        shift, align = self.front_end.frame_shift, self.network.config.features.pad_align
        block = num_samples // shift + 1
        if align:
            block = (block + align - 1) // align * align
        x = F.pad(x, (0, align + 1))
        return x, Rows.starting(x, own if self.network.config.masked else block, own, block)

    def acoustic(self, features: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `forward` gives, of features (batch, frames, bins) that are ready.

        Frames at or beyond a row's own may be anything.
        """
        num_frames = self.front_end.num_frames(num_samples)
        places = torch.arange(features.shape[1], device=features.device)
        features = features.masked_fill((places >= num_frames.unsqueeze(1)).unsqueeze(2), 0.0)
        x, rows = self.rows(as_dtype(features.transpose(1, 2).unsqueeze(2), self.network.dtype), num_samples)
        log_probs, num_frames, encoded = self.network(x, rows)
        return log_probs, num_frames, as_dtype(encoded.squeeze(2).transpose(1, 2), torch.float32)

    def forward(self, waveform: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, _ = self.front_end(waveform, num_samples)
        return self.acoustic(features, num_samples)
