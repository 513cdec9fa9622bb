"""Live streams of a Whisper model: the windows of those that are due are looked at together.

    steps (slot, samples, final)  ->  partial and final transcripts

Each stream is a `LiveStream`; looks are answered by whoever answers what recordings ask, see `pipeline.py`. Memory is
that of a window's audio for each stream, and the text of what it has said.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tritone.audio.waveform import check_level
from tritone.errors import ServerBusyError, StreamError, TritoneError
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.streams import DEFAULT_CAPACITY, Step
from tritone.pipelines.whisper.hypothesis import Hypothesis, Look
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline
from tritone.pipelines.whisper.stream import LiveStream
from tritone.transcript import Transcript


class WhisperStreams:
    """Advances streams, see `pipelines.streams.Streams`. Calls from several threads are served one after the other."""

    def __init__(self, pipeline: WhisperPipeline, *, capacity: int = DEFAULT_CAPACITY) -> None:
        """Take the opened model, and how many streams may be open at once."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.bundle, self.sample_rate, self.capacity = pipeline.bundle, pipeline.sample_rate, capacity
        self._pipeline = pipeline
        self._streams: dict[int, LiveStream] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._lock = threading.Lock()

    @property
    def options(self) -> DecodingOptions:
        return self._pipeline.options

    @property
    def work(self) -> WorkLog:
        return self._pipeline.work

    @property
    def num_open(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def changed(self, parameters: Mapping[str, Any], options: DecodingOptions | None = None) -> DecodingOptions:
        """Options, None being the pipeline's own, with what a request's parameters ask for; raises `InputError`."""
        found = self.options if options is None else options
        return self._pipeline.check_options(found.changed(parameters)) if parameters else found

    def open(self, options: DecodingOptions | None = None) -> int:
        """Start a stream and return its slot; as of `StreamPipeline.open`."""
        stream = self._pipeline.live(options)
        with self._lock:
            if not self._free:
                raise ServerBusyError(
                    f"all {self.capacity} stream slots are taken; try again when a stream has ended, "
                    "or raise the capacity"
                )
            slot = self._free.pop()
            self._streams[slot] = stream
            return slot

    def close(self, slot: int) -> None:
        """Give up a stream before its end; raises `StreamError` if none is open in this slot."""
        with self._lock:
            self._stream(slot)
            self._release(slot)

    def advance(self, steps: Sequence[Step]) -> list[Transcript]:
        """Take new audio of some streams, and look at all windows that are due; as of `StreamPipeline.advance`.

        Raises:
            AudioError: samples are not finite or far beyond [-1, 1]; nothing was changed.
        """
        with self._lock:
            streams = [self._stream(step.slot) for step in steps]
            if len({step.slot for step in steps}) != len(steps):
                raise ValueError(f"one call takes one step per slot, got slots {[step.slot for step in steps]}")
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

    def _stream(self, slot: int) -> LiveStream:
        if slot not in self._streams:
            raise StreamError(f"there is no open stream in slot {slot}; open one before sending audio")
        return self._streams[slot]

    def _release(self, slot: int) -> None:
        del self._streams[slot]
        self._free.append(slot)
