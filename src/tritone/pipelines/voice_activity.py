"""Voice activity: where recordings and streams have speech.

waveforms (samples,) float32 or int16  ->  probabilities (frames,)  ->  segments
steps of streams                       ->  the segments that have ended, and the one under way
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.waveform import Samples, check_level
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, TritoneError
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S, WARM_UP_S, GraphRunner, Outputs
from tritone.pipelines.graphs.samples import Index
from tritone.pipelines.isolation import prepared, values, with_options
from tritone.pipelines.streams import Step, StreamPipeline
from tritone.runtime.graph import Array
from tritone.search.activity import OF_RECORDINGS, ActivityOptions, SegmentTracker, segments_of

OUTPUTS = ("probabilities", "num_frames")  # of the graphs
BLOCK_S = 30.0  # longer recordings are computed in blocks of so much, whose memory does not grow with the recording
BLOCK_ROWS = 8  # recordings whose blocks share a call

Job = tuple[Samples, ActivityOptions]


def frame_samples(bundle: Bundle) -> int:
    """Samples from one probability of a bundle's model to the next."""
    return bundle.manifest.features.frame_shift * bundle.manifest.encoder.subsampling_rate


def in_seconds(segments: Sequence[tuple[int, int]], sample_rate: int) -> tuple[SpeechSegment, ...]:
    """Segments given in samples."""
    return tuple(SpeechSegment(start / sample_rate, end / sample_rate) for start, end in segments)


class VoiceActivityPipeline:
    """Finds speech in whole recordings. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
        options: ActivityOptions | None = None,
    ) -> None:
        """Open the graph of a bundle for whole recordings; that for blocks is opened when a long one comes.

        Args:
            placement: which graphs are run, and where.
            max_audio_s: the longest recording that callers let through, in seconds; `warm_up` goes up to it.
            limits: what one graph call may take; by default what suits the device.
            options: how segments are found where a call asks for nothing else.

        Raises:
            BundleError: the bundle has no such graph, or one that cannot be opened or does not fit its manifest.
            OperatorError: the device is not available.
        """
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = max_audio_s
        self.options = options or ActivityOptions()
        self.runner = GraphRunner(bundle, "encoder", placement, limits=limits)
        self.work = self.runner.work
        self._frame = frame_samples(bundle)
        self._block = round(min(BLOCK_S, self.runner.max_audio_s) * self.sample_rate)
        self._placement = placement
        self._lock = threading.Lock()
        self._blocks: VoiceActivityStreams | None = None

    def run(
        self, waveforms: Sequence[Samples], options: Sequence[ActivityOptions | None] | None = None
    ) -> list[SpeechActivity | TritoneError]:
        """Find the speech in recordings of any lengths; the result of each does not depend on the others.

        Args:
            waveforms: each (samples,) float32 or int16 at `sample_rate`. The last frame is filled up with silence.
            options: how to find segments in each; None takes the pipeline's own.

        Returns:
            For each recording its speech, with probabilities, or the error that it caused: `AudioError` where its
            samples are not finite or far beyond [-1, 1].
        """
        return prepared(self._checked, self._detect, with_options(waveforms, options))

    def detect(
        self, waveforms: Sequence[Samples], options: Sequence[ActivityOptions | None] | None = None
    ) -> list[SpeechActivity]:
        """All that `run` returns; raises the first error among it instead."""
        return values(self.run(waveforms, options))

    def warm_up(self, max_audio_s: float = WARM_UP_S) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        self.runner.warm_up_on_silence(min(max_audio_s, self.max_audio_s), OUTPUTS, len)

    def _checked(self, item: tuple[Samples, ActivityOptions | None]) -> Job:
        waveform, options = item
        if len(waveform) > self._block:  # shorter ones are checked when they are copied
            check_level(waveform, sample_rate=self.sample_rate)
        return waveform, options or self.options

    def _detect(self, jobs: Sequence[Job]) -> list[SpeechActivity | TritoneError]:
        found: list[Array] = [np.zeros(0, np.float32)] * len(jobs)
        long = [index for index, (waveform, _) in enumerate(jobs) if len(waveform) > self._block]
        short = [index for index, (waveform, _) in enumerate(jobs) if 0 < len(waveform) <= self._block]

        def take(indices: Sequence[int], outputs: Outputs) -> None:
            for index, row, count in zip(indices, outputs["probabilities"], outputs["num_frames"], strict=True):
                found[short[index]] = row[:count].copy()  # the rest of the batch is let go

        unfit = self.runner.run_waveforms([jobs[index][0] for index in short], lambda _: OUTPUTS, take)
        for start in range(0, len(long), BLOCK_ROWS):
            part = long[start : start + BLOCK_ROWS]
            for index, row in zip(part, self._in_blocks([jobs[index][0] for index in part]), strict=True):
                found[index] = row
        begun = time.perf_counter()
        results: list[SpeechActivity | TritoneError] = [
            self._activity(probabilities, len(waveform), options)
            for probabilities, (waveform, options) in zip(found, jobs, strict=True)
        ]
        self.work.add_search(time.perf_counter() - begun)
        for index, error in unfit.items():
            results[short[index]] = error
        return results

    def _in_blocks(self, waveforms: Sequence[Samples]) -> list[Array]:
        """The probabilities of long recordings, which are streams of large chunks."""
        with self._lock:
            if self._blocks is None:
                frames = max(1, self._block // self._frame)
                self._blocks = VoiceActivityStreams(
                    self.bundle,
                    placement=self._placement,
                    capacity=BLOCK_ROWS,
                    max_batch=BLOCK_ROWS,
                    chunk_size=frames,
                    options=ActivityOptions().for_streams(),
                )
                self._blocks.runner.work = self.work
            found = self._blocks.run_whole(waveforms, [None] * len(waveforms))
        return [each.probabilities for each in found if each.probabilities is not None]

    def _activity(self, probabilities: Array, num_samples: int, options: ActivityOptions) -> SpeechActivity:
        found = segments_of(
            probabilities.tolist(),
            options,
            frame_samples=self._frame,
            sample_rate=self.sample_rate,
            num_samples=num_samples,
        )
        return SpeechActivity(
            segments=in_seconds(found, self.sample_rate),
            audio_s=num_samples / self.sample_rate,
            frame_s=self.bundle.manifest.frame_s,
            probabilities=probabilities,
        )


class _Listener:
    """A stream: its segments, and the probabilities since its last answer."""

    def __init__(self, options: ActivityOptions, frame: int, sample_rate: int) -> None:
        self.tracker = SegmentTracker(options, frame_samples=frame, sample_rate=sample_rate)
        self.ended: list[tuple[int, int]] = []
        self.probabilities: list[Array] = []

    def new_probabilities(self) -> Array:
        """The probabilities since the last call of this method."""
        found, self.probabilities = self.probabilities, []
        return np.concatenate(found) if found else np.zeros(0, np.float32)


class VoiceActivityStreams(StreamPipeline[_Listener, ActivityOptions, SpeechActivity]):
    """Finds speech in streams. Calls from several threads are served one after the other."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        options: ActivityOptions | None = None,
        **sizes: Any,
    ) -> None:
        """Open the streaming graph of a bundle.

        Args:
            options: how segments are found in streams that ask for nothing else.
            sizes: as of `StreamPipeline`, its placement too; and errors.
        """
        super().__init__(bundle, least_samples=1, **sizes)
        self._options = options or ActivityOptions()
        self._frame = frame_samples(bundle)
        self._make_room()

    @property
    def options(self) -> ActivityOptions:
        return self._options

    def check(self, options: ActivityOptions | None) -> ActivityOptions:
        asked = options or self.options
        usual = asked.for_streams()
        if given := [name for name in OF_RECORDINGS if getattr(asked, name) != getattr(usual, name)]:
            raise InputError(
                f"{' and '.join(given)}: streams report speech before its length is known, so this is for whole "
                "recordings alone; leave it out"
            )
        return asked

    def _begun(self, options: ActivityOptions) -> _Listener:
        return _Listener(options, self._frame, self.sample_rate)

    def _outputs(self, streams: Sequence[_Listener]) -> Sequence[str]:
        return OUTPUTS

    def _take(self, slots: Index, streams: Sequence[_Listener], outputs: Outputs) -> None:
        for stream, row, count in zip(streams, outputs["probabilities"], outputs["num_frames"], strict=True):
            stream.probabilities.append(row[:count].copy())
            stream.ended += stream.tracker.take(row[:count].tolist())

    def _answers(self, streams: Sequence[_Listener], steps: Sequence[Step]) -> list[SpeechActivity]:
        """For each step the segments that it has ended; a final one ends the segment under way with the audio."""
        rate, answers = self.sample_rate, []
        for stream, step in zip(streams, steps, strict=True):
            end = int(self._num_samples[step.slot])
            ended, stream.ended = stream.ended, []
            if step.final:
                ended += stream.tracker.finish(end)
            since, probabilities = stream.tracker.start, stream.new_probabilities()
            answers.append(
                SpeechActivity(
                    segments=in_seconds(ended, rate),
                    audio_s=end / rate,
                    frame_s=self.bundle.manifest.frame_s,
                    speaking_since_s=None if since is None else since / rate,
                    is_final=step.final,
                    probabilities=probabilities if step.details else None,
                )
            )
        return answers
