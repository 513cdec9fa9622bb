"""Who of the speakers of a window talks in each frame, by a network that judges sets of speakers.

windows (samples,) float32 or int16, up to the network's own length  ->  activity (frames, speakers) of 0 and 1
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, TritoneError
from tritone.kinds.segmentation.part import SegmentationPart
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S, GraphRunner, Outputs
from tritone.pipelines.isolation import prepared, values, with_options
from tritone.runtime.graph import Array

OUTPUTS = ("log_probs", "num_frames")  # of the graph


def segmentation_of(bundle: Bundle) -> SegmentationPart:
    """What the manifest says of windows and speakers; that it does was checked with the kind."""
    return bundle.manifest.part(SegmentationPart)


def speaker_sets(speakers: int, at_once: int) -> npt.NDArray[np.float32]:
    """The sets of up to `at_once` speakers, (sets, speakers) of 0 and 1: nobody, each alone, each two, and so on."""
    sets = [members for size in range(at_once + 1) for members in combinations(range(speakers), size)]
    found = np.zeros((len(sets), speakers), np.float32)
    for row, members in zip(found, sets, strict=True):
        row[list(members)] = 1
    return found


class SegmentationPipeline:
    """Segments windows. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            placement: which graphs are run, and where.
            max_audio_s: the longest audio that callers let through, in seconds; a window is never longer than its own.
            limits: what one graph call may take; by default what suits the device.

        Raises:
            BundleError: the bundle has no such graph, or one that cannot be opened or does not fit its manifest.
            OperatorError: the device is not available.
        """
        part = segmentation_of(bundle)
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.window_samples = part.window_samples
        self.max_audio_s = min(max_audio_s, part.window_samples / self.sample_rate)
        self.runner = GraphRunner(bundle, "encoder", placement, limits=limits)
        self.work = self.runner.work
        self._sets = speaker_sets(part.speakers, part.at_once)

    def run(self, waveforms: Sequence[Samples], options: Sequence[None] | None = None) -> list[Array | TritoneError]:
        """Segment windows; the result of each does not depend on the others.

        Args:
            waveforms: each (samples,) float32 or int16 at `sample_rate`, not longer than a window; silence follows one
                that is shorter, and its frames are in the result.
            options: there are none.

        Returns:
            For each window (frames, speakers) float32 of 0 and 1, or the error that it caused: `InputError` if it is
            too long, `AudioError` where its samples are not finite or far beyond [-1, 1].
        """
        return prepared(self._checked, self._segment, with_options(waveforms, options))

    def segment(self, waveforms: Sequence[Samples]) -> list[Array]:
        """All that `run` returns; raises the first error among it instead."""
        return values(self.run(waveforms))

    def warm_up(self) -> None:
        """Run a window of silence, so that the first real request finds everything ready."""
        seconds = self.window_samples / self.sample_rate
        self.runner.warm_up_on_silence(seconds, OUTPUTS, len)

    def _checked(self, item: tuple[Samples, None]) -> Samples:
        waveform, _ = item
        if len(waveform) > self.window_samples:
            raise InputError(
                f"the audio has {len(waveform) / self.sample_rate:.2f} s; the network takes windows of up to "
                f"{self.window_samples / self.sample_rate:g} s, and Diarizer cuts recordings into them"
            )
        if len(waveform) == self.window_samples:
            return waveform
        # All windows are of one length: the network hears the silence behind one that is shorter.
        padded: Any = np.pad(waveform, (0, self.window_samples - len(waveform)))
        return padded

    def _segment(self, windows: Sequence[Samples]) -> list[Array | TritoneError]:
        found: list[Array | TritoneError] = [np.zeros(0, np.float32)] * len(windows)

        def take(indices: Sequence[int], outputs: Outputs) -> None:
            for index, row, count in zip(indices, outputs["log_probs"], outputs["num_frames"], strict=True):
                found[index] = self._sets[row[:count].argmax(axis=1)]

        for index, error in self.runner.run_waveforms(windows, lambda _: OUTPUTS, take).items():
            found[index] = error
        return found
