"""Who speaks when, by a network that judges every frame of several speakers.

waveforms (samples,) float32 or int16  ->  probabilities (frames, speakers)  ->  turns, which may overlap
steps of streams                       ->  the turns that have ended, and those under way

Whole recordings are streams of large steps, so that memory does not grow with them.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.waveform import Samples, check_level
from tritone.bundle.bundle import Bundle
from tritone.diarization.activity import ActivityTurns, TurnRules
from tritone.diarization.online import LABEL
from tritone.errors import BundleError, TritoneError
from tritone.formats.rttm import Turn
from tritone.kinds.diarization.part import DiarizationPart
from tritone.options.fields import check_bounds, described, option, parse_parameters
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S, Outputs
from tritone.pipelines.graphs.samples import Index
from tritone.pipelines.isolation import prepared, values, with_options
from tritone.pipelines.streams import Step, StreamPipeline
from tritone.runtime.graph import Array

OUTPUTS = ("probabilities", "num_frames")  # of the graphs
SIZES = ("chunk_frames", "last_frames", "fifo_length", "update_period")  # inputs, see `DiarizationStep`
TOGETHER = 8  # recordings that share calls


@dataclass(frozen=True, kw_only=True)
class TurnOptions(TurnRules):
    """How probabilities become turns; see the help of the fields. By default a frame is a speaker's from 0.5 on."""

    onset: float = option(0.5, "Probability above which a turn begins.", least=0, most=1)
    offset: float = option(0.5, "Probability below which a turn ends; at most onset.", least=0, most=1)
    pad_onset_s: float = option(0.0, "What turns begin earlier, in seconds.", least=0, most=60, unit=" seconds")
    pad_offset_s: float = option(0.0, "What turns end later, in seconds.", least=0, most=60, unit=" seconds")
    min_pause_s: float = option(
        0.0, "Shorter pauses of a speaker are part of a turn, in seconds.", least=0, most=3600, unit=" seconds"
    )
    min_turn_s: float = option(0.0, "Shorter turns are dropped, in seconds.", least=0, most=3600, unit=" seconds")

    def __post_init__(self) -> None:
        check_bounds(self)
        super().__post_init__()

    def changed(self, parameters: Mapping[str, Any]) -> "TurnOptions":
        """These options with some of them replaced, as a request's parameters ask for; numbers may be text.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        given = {name: value for name, value in parameters.items() if value is not None}
        return replace(self, **parse_parameters(described(TurnOptions), given))


PARAMETERS = tuple(described(TurnOptions))  # of a request


class _Talk:
    """A stream: its turns, and what its answers have not had yet."""

    def __init__(self, options: TurnOptions, speakers: Sequence[str], frame_s: float) -> None:
        self.turns = ActivityTurns(speakers, frame_s, rules=options)
        self.ended: list[Turn] = []
        self.probabilities: list[Array] = []

    def take(self, probabilities: Array) -> None:
        self.probabilities.append(probabilities)
        self.ended += self.turns.accept(probabilities)

    def answer(self, audio_s: float, frame_s: float, step: Step) -> SpeechActivity:
        """What is new since the last answer."""
        ended, self.ended = self.ended, []
        found, self.probabilities = self.probabilities, []
        if step.final:
            ended += self.turns.finish()
        # The last frame may be whole only with the padding after the audio.
        speaking = _segments(self.turns.under_way, audio_s)
        probabilities = np.concatenate(found) if found else np.zeros((0, self.turns.speakers), np.float32)
        return SpeechActivity(
            segments=_segments(ended, audio_s),
            audio_s=audio_s,
            frame_s=frame_s,
            speaking_since_s=min((each.start_s for each in speaking), default=None),
            is_final=step.final,
            probabilities=probabilities if step.details else None,
            speaking=speaking,
            known_s=audio_s if step.final else min(self.turns.now_s, audio_s),
        )


def _segments(turns: Sequence[Turn], end_s: float) -> tuple[SpeechSegment, ...]:
    return tuple(SpeechSegment(each.start_s, min(each.end_s, end_s), each.speaker) for each in turns)


class DiarizationStreams(StreamPipeline[_Talk, TurnOptions, SpeechActivity]):
    """Tells who speaks in streams. Calls from several threads are served one after the other."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        options: TurnOptions | None = None,
        recordings: bool = False,
        chunk_size: int | None = None,
        **sizes: Any,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            options: how turns are found in streams that ask for nothing else.
            recordings: whether the streams are whole recordings, which have steps of their own.
            chunk_size: of streams, one of those that the model has steps for; None takes the manifest's.
            sizes: as of `StreamPipeline`, its placement too; and errors.
        """
        parts = speakers_of(bundle)
        shift = bundle.manifest.features.frame_shift
        if not recordings and chunk_size == parts.recordings.chunk_size:
            raise BundleError(
                f"{bundle.path} has steps of {chunk_size} encoder frames for whole recordings alone; those of streams "
                f"have {', '.join(str(each.chunk_size) for each in parts.streams)}"
            )
        chunk = parts.recordings.chunk_size if recordings else chunk_size
        super().__init__(bundle, chunk_size=chunk, least_samples=shift, **sizes)
        if recordings:
            self._flush = 0  # upstream gives the last full step of a recording what is left as its lookahead
        self._options = options or TurnOptions()
        self._frame_s = shift / self.sample_rate
        self._speakers = [LABEL.format(number + 1) for number in range(parts.speakers)]
        step = parts.step(self.geometry.chunk_size)
        lengths = (step.chunk_size, step.last_frames, step.fifo_length, step.update_period)
        self._sizes = dict(zip(SIZES, lengths, strict=True))
        self._make_room()

    @property
    def options(self) -> TurnOptions:
        return self._options

    def check(self, options: TurnOptions | None) -> TurnOptions:
        return options or self.options

    def _new_stream(self, options: TurnOptions) -> _Talk:
        return _Talk(options, self._speakers, self._frame_s)

    def _outputs(self, streams: Sequence[_Talk]) -> Sequence[str]:
        return OUTPUTS

    def _numbers(self, streams: Sequence[_Talk]) -> Mapping[str, Sequence[int]]:
        return {name: [size] * len(streams) for name, size in self._sizes.items()}

    def _take(self, slots: Index, streams: Sequence[_Talk], outputs: Outputs) -> None:
        for stream, row, count in zip(streams, outputs["probabilities"], outputs["num_frames"], strict=True):
            stream.take(row[:count].copy())

    def _answers(self, streams: Sequence[_Talk], steps: Sequence[Step]) -> list[SpeechActivity]:
        return [
            stream.answer(self._audio_s(step.slot), self._frame_s, step)
            for stream, step in zip(streams, steps, strict=True)
        ]


class DiarizationPipeline:
    """Tells who speaks in whole recordings. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        options: TurnOptions | None = None,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            placement: which graphs are run, and where.
            max_audio_s: the longest recording that callers let through, in seconds.
            options: how turns are found where a call asks for nothing else.

        Raises:
            BundleError: the bundle has no such graph, or one that cannot be opened or does not fit its manifest.
            OperatorError: the device is not available.
        """
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = max_audio_s
        self.options = options or TurnOptions()
        self._streams = DiarizationStreams(
            bundle, recordings=True, placement=placement, capacity=TOGETHER, max_batch=TOGETHER, options=self.options
        )
        self.runner = self._streams.runner
        self.work = self._streams.work
        self._lock = threading.Lock()  # for the slots

    def run(
        self, waveforms: Sequence[Samples], options: Sequence[TurnOptions | None] | None = None
    ) -> list[SpeechActivity | TritoneError]:
        """Tell who speaks in recordings of any lengths; the result of each does not depend on the others.

        Args:
            waveforms: each (samples,) float32 or int16 at `sample_rate`.
            options: how to find turns in each; None takes the pipeline's own.

        Returns:
            For each recording its turns, with probabilities, or the error that it caused: `AudioError` where its
            samples are not finite or far beyond [-1, 1].
        """
        return prepared(self._checked, self._found, with_options(waveforms, options))

    def diarize(
        self, waveforms: Sequence[Samples], options: Sequence[TurnOptions | None] | None = None
    ) -> list[SpeechActivity]:
        """All that `run` returns; raises the first error among it instead."""
        return values(self.run(waveforms, options))

    def warm_up(self) -> None:
        """Run silence, so that the first real request finds everything ready."""
        with self._lock:
            self._streams.warm_up()

    def _checked(self, item: tuple[Samples, TurnOptions | None]) -> tuple[Samples, TurnOptions]:
        waveform, options = item
        check_level(waveform, sample_rate=self.sample_rate)
        return waveform, options or self.options

    def _found(self, jobs: Sequence[tuple[Samples, TurnOptions]]) -> list[SpeechActivity | TritoneError]:
        found: list[SpeechActivity | TritoneError] = []
        for start in range(0, len(jobs), TOGETHER):
            part = jobs[start : start + TOGETHER]
            with self._lock:
                found += self._streams.run_whole(*zip(*part, strict=True))
        return found


def speakers_of(bundle: Bundle) -> DiarizationPart:
    """What the manifest says of a model's speakers; that it says something was checked with its kind."""
    return bundle.manifest.part(DiarizationPart)
