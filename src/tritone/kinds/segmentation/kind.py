"""Segmentation: who of a few speakers talks in each frame of a window."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.kinds.segmentation.part import PARTS, SegmentationPart
from tritone.kinds.segmentation.pipeline import SegmentationPipeline, segmentation_of, speaker_sets
from tritone.pipelines.kind import FLOAT32, INT64, WAVEFORMS, Kind, Mode, Served, Specs
from tritone.pipelines.wire import PROBABILITIES, Tensor, audio_inputs
from tritone.runtime.graph import Array, TensorSpec


class SegmentationKind(Kind):
    """A set of speakers for each frame. Who they are beyond the window is for their voices to tell."""

    name = "segmentation"
    noun = "a segmentation network"
    does = "it tells who talks in each frame of a window"
    usage = "Use it with `tritone diarize --segmentation`, Client.segment or tritone.load"
    in_process = "tritone.kinds.segmentation.model:Segmenter"
    answers = "segmentation"
    parts = PARTS
    encoders: ClassVar[Mapping[Mode, Role]] = {"offline": "encoder"}
    takes_pcm = True
    checks_levels = True

    def fault(self, manifest: Manifest) -> str | None:
        windows = manifest.part(SegmentationPart)
        if manifest.encoder.tail_samples:
            return f"kind is {self.name!r}, whose windows are all of one length; it has no `tail_samples`"
        if windows.window_samples < manifest.encoder.min_samples or windows.at_once > windows.speakers:
            return "windows are shorter than a frame needs, or more speakers talk at once than there are"
        if (sets := len(speaker_sets(windows.speakers, windows.at_once))) != manifest.encoder.output_dim:
            return f"`encoder.output_dim` is {manifest.encoder.output_dim}, the sets of speakers are {sets}"
        return None

    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        outputs = {
            "log_probs": TensorSpec(FLOAT32, (None, None, manifest.encoder.output_dim)),
            "num_frames": TensorSpec(INT64, (None,)),
        }
        return dict(WAVEFORMS), outputs

    def served(self, bundle: Bundle) -> Served:
        part = segmentation_of(bundle)
        return Served(windows=(part.window_samples, bundle.manifest.encoder.subsampling_rate, part.field_samples))

    def open(self, bundle: Bundle, *, defaults: Any = None, **options: Any) -> SegmentationPipeline:
        return SegmentationPipeline(bundle, **options)

    def inputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return audio_inputs(lens_optional=True)

    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        return (Tensor(name=PROBABILITIES, type="FP32", dims=(-1, segmentation_of(bundle).speakers)),)

    def answer(self, results: Sequence[Array], wanted: Collection[str]) -> dict[str, Array]:
        """Who talks, (rows, frames, speakers): every window has as many frames."""
        return {PROBABILITIES: np.stack(results)}


KIND = SegmentationKind()
