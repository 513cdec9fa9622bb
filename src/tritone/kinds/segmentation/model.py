"""Segmentation in process: the same pipeline that serves, without a server.

segmenter = tritone.load("segmentation")
segmenter.segment(windows)                                   ->  [(frames, speakers) of 0 and 1, ...]
Diarizer(embedder.embed, sample_rate=16000, segmenter=segmenter)
"""

from collections.abc import Sequence
from typing import Any

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.kinds.segmentation.pipeline import segmentation_of
from tritone.pipelines.model import AudioModel
from tritone.result import Result
from tritone.runtime.graph import Array


class Segmenter(AudioModel[Result[Array]]):
    """A segmentation network. Its sizes are in samples: of a window, of a frame's step, of what a frame sees."""

    lacks = "tells no speakers of a window apart"
    instead = "a bundle of `tritone export pyannote`"

    def __init__(self, bundle: Bundle, **options: Any) -> None:
        """Take an opened bundle; as of `AudioModel`."""
        super().__init__(bundle, **options)
        part = segmentation_of(bundle)
        self.window_samples, self.field_samples = part.window_samples, part.field_samples
        self.frame_samples = bundle.manifest.encoder.subsampling_rate

    def segment(self, windows: Sequence[Samples]) -> list[Array]:
        """Who talks in windows, each (frames, speakers) float32 of 0 and 1; speakers are those of the window alone.

        Args:
            windows: (samples,) each, at the model's rate and up to `window_samples`; silence follows shorter ones.

        Raises:
            InputError, AudioError: as of `SegmentationPipeline.run`; the message has the window's number.
        """
        found: list[Array] = self.offline.segment(windows)
        return found
