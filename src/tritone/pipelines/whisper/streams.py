"""Live streams of a Whisper model: the windows of those that are due are looked at together.

    steps (slot, samples, final)  ->  partial and final transcripts

Each stream is a `LiveStream`; looks are answered by whoever answers what recordings ask, see `pipeline.py`. Memory is
that of a window's audio for each stream, and the text of what it has said.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tritone.audio.waveform import check_level
from tritone.errors import TritoneError
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.streams import DEFAULT_CAPACITY, OpenStreams, Step
from tritone.pipelines.whisper.hypothesis import Hypothesis, Look
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline
from tritone.pipelines.whisper.stream import LiveStream
from tritone.transcript import Transcript


class WhisperStreams(OpenStreams[LiveStream]):
    """Advances streams, see `pipelines.streams.Streams`. Calls from several threads are served one after the other."""

    def __init__(self, pipeline: WhisperPipeline, *, capacity: int = DEFAULT_CAPACITY) -> None:
        """Take the opened model, and how many streams may be open at once."""
        super().__init__(capacity)
        self.bundle, self.sample_rate = pipeline.bundle, pipeline.sample_rate
        self._pipeline = pipeline

    @property
    def options(self) -> DecodingOptions:
        return self._pipeline.options

    @property
    def work(self) -> WorkLog:
        return self._pipeline.work

    def changed(self, parameters: Mapping[str, Any], options: DecodingOptions | None = None) -> DecodingOptions:
        """Options, None being the pipeline's own, with what a request's parameters ask for; raises `InputError`."""
        found = self.options if options is None else options
        return self._pipeline.check_options(found.changed(parameters)) if parameters else found

    def open(self, options: DecodingOptions | None = None) -> int:
        """Start a stream and return its slot; as of `StreamPipeline.open`."""
        return self._hold(self._pipeline.live(options))

    def advance(self, steps: Sequence[Step]) -> list[Transcript]:
        """Take new audio of some streams, and look at all windows that are due; as of `StreamPipeline.advance`.

        Raises:
            AudioError: samples are not finite or far beyond [-1, 1]; nothing was changed.
        """
        with self._lock:
            streams = self._of(steps)
            for step in steps:
                check_level(step.samples, sample_rate=self.sample_rate)
            for stream, step in zip(streams, steps, strict=True):
                stream.push(step.samples, final=step.final)
            self._look(streams)
            answers = [stream.answer(details=step.details) for stream, step in zip(streams, steps, strict=True)]
            for step in steps:
                if step.final:
                    self._release(step.slot)
            return answers

    def warm_up(self) -> None:
        """Look at a second of silence, so that the first real window finds everything ready."""
        self._pipeline.warm_up()

    def _look(self, streams: Sequence[LiveStream]) -> None:
        left = list(streams)
        while left:
            due = [(stream, look) for stream in left if (look := stream.look()) is not None]
            for (stream, _), found in zip(due, self._found([look for _, look in due]), strict=True):
                if isinstance(found, TritoneError):
                    raise found
                stream.take(found)
            left = [stream for stream, _ in due]

    def _found(self, looks: Sequence[Look]) -> Sequence[Hypothesis | TritoneError]:
        return self._pipeline.answer(look.course() for look in looks) if looks else []
