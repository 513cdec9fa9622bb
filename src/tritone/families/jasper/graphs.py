"""The graph of a Jasper bundle, as a module ready for export; contract in docs/design.md.

OfflineGraph     waveform, num_samples  ->  log_probs, num_frames, encoder_out

What goes in and comes out is float32 and int64, whatever precision the model computes in.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tritone.errors import ExportError
from tritone.families.export.exportable import UtteranceGraph
from tritone.families.export.precision import as_dtype
from tritone.families.jasper.model import Network, Rows
from tritone.families.layers.log_mel import LogMel


class OfflineGraph(UtteranceGraph):
    """Whole utterances: waveform (batch, samples), num_samples (batch,) int64.

    Raises:
        ExportError: upstream pads utterances to a length that this cannot give them.
    """

    def __init__(self, network: Network, front_end: LogMel) -> None:
        super().__init__()
        self.front_end, self.network = front_end, network
        self.sample_rate = network.config.features.sample_rate
        if network.needs_blocks and network.config.features.max_frames:
            raise ExportError(
                "input_val pads every utterance to max_duration (pad_to_max_duration), and this network uses what is "
                "behind an utterance's end: it would need as much time for a word as for the longest audio. Export "
                "with masks, or with pad_to_max_duration: false."
            )

    @property
    def min_samples(self) -> int:
        return self.front_end.min_samples

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
        num_frames = self.front_end.num_frames(num_samples)
        places = torch.arange(features.shape[1], device=features.device)
        features = features.masked_fill((places >= num_frames.unsqueeze(1)).unsqueeze(2), 0.0)
        x, rows = self.rows(as_dtype(features.transpose(1, 2).unsqueeze(2), self.network.dtype), num_samples)
        log_probs, num_frames, encoded = self.network(x, rows)
        return log_probs, num_frames, as_dtype(encoded.squeeze(2).transpose(1, 2), torch.float32)
