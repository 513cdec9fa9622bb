"""A segmentation network on a server, in place of one in this process.

Diarizer(embed, sample_rate=16000, segmenter=client.segmenter()).diarize("meeting.wav")
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples
from tritone.client.models import ModelInfo

if TYPE_CHECKING:
    from tritone.client.client import Client


class ServedSegmenter:
    """A served network with its sizes in samples: of a window, of a frame's step, of what a frame sees."""

    def __init__(self, client: "Client", model: ModelInfo) -> None:
        """Take a model of kind "segmentation" and the client that asks it, which stays open for as long."""
        self._client, self.name, self.sample_rate = client, model.name, model.sample_rate
        self.window_samples, self.frame_samples, self.field_samples = model.windows

    def segment(self, windows: Sequence[Samples]) -> list[npt.NDArray[np.float32]]:
        """Who talks in windows, each (frames, speakers) of 0 and 1; raises the first error among them."""
        return [each.activity for each in self._client.segment(list(windows), self.name)]
