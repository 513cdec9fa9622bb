"""Streaming recognition, whatever the kind of the model: many streams advance together.

    steps (slot, samples, final)  ->  partial and final transcripts

Audio may arrive cut in any way: a stream's windows depend on its sample count alone. Every stream owns a slot, which
holds its state between steps where the graph runs; later streams use it again.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, OperatorError, ServerBusyError, StreamError
from tritone.pipelines.graphs.buckets import STEP_ROWS
from tritone.pipelines.graphs.geometry import DEFAULT_MAX_HISTORY_S, Geometry, parts
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import Filled, GraphRunner, Outputs
from tritone.pipelines.graphs.samples import SampleQueue
from tritone.pipelines.kinds.speech import speech_kind
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.readings import ReadingBuilder, transcript
from tritone.pipelines.searching.segment import Segment
from tritone.runtime.graph import Array, Bucket
from tritone.search.endpoint import NEVER, EndpointRules
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript, joined

DEFAULT_CAPACITY = 512
DEFAULT_MAX_BATCH = 64
# Rescoring needs all that the encoder gave since the segment began, so there must be an end to it.
MAX_RESCORED_S = 120.0


@dataclass(frozen=True)
class Step:
    """New audio of one stream: (samples,) float32 at the pipeline's rate, possibly none; `final` ends the stream."""

    slot: int
    samples: Samples
    final: bool = False


@dataclass
class _Stream:
    segment: Segment
    rules: EndpointRules
    number: int = 0  # of the segment
    ended: list[Transcript] = field(default_factory=list)  # segments that ended in the step under way
    history: str = ""  # the text of all segments that have ended
    pending: SampleQueue = field(default_factory=SampleQueue)
    num_samples: int = 0  # of its audio so far
    position: int = 0  # of the next window in it
    closing: bool = False  # its last audio, and the tail after it, are pending
    heard_all: bool = False  # its last step has run


class StreamingPipeline:
    """Recognises streams. Calls from several threads are served one after the other."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        capacity: int = DEFAULT_CAPACITY,
        max_batch: int = DEFAULT_MAX_BATCH,
        chunk_size: int | None = None,
        left_chunks: int | None = None,
        max_history_s: float = DEFAULT_MAX_HISTORY_S,
        search: SearchSettings | None = None,
        endpoints: EndpointRules | None = None,
    ) -> None:
        """Open the streaming graph of a bundle.

        Args:
            bundle: an opened bundle.
            placement: which graphs are run, and where.
            capacity: how many streams may be open at once.
            max_batch: how many streams one graph call may advance.
            chunk_size: encoder frames of a step; None takes the manifest's. Small ones answer sooner, large ones hear
                more of what follows.
            left_chunks: past chunks that a step sees, 0 for none, -1 for all; None takes the manifest's.
            max_history_s: the most that -1 stands for, in seconds; of a longer stream the oldest is forgotten.
            search: how to search in streams that ask for nothing else; by default greedily.
            endpoints: when an utterance in a stream ends and the next segment begins; None lets a stream be one
                segment. Segments that will be rescored end after `MAX_RESCORED_S` seconds in any case.

        Raises:
            BundleError: the bundle was exported without a streaming encoder, or with one that cannot be opened
                or does not fit its manifest, or that is for other chunk sizes or numbers of left chunks alone; or it
                has no decoder to search with rescoring.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
            OperatorError: the device is not available.
            ValueError: a number is out of its range.
        """
        if capacity < 1 or max_batch < 1:
            raise ValueError(f"capacity and max_batch must be at least 1, got {capacity} and {max_batch}")
        bundle.artifacts("streaming_encoder")  # tells a bundle without one
        settings = bundle.manifest.streaming
        if settings is None:
            raise BundleError(f"{bundle.path} has a streaming graph, but `streaming` in its manifest is empty")
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.capacity = capacity
        self.geometry = Geometry.choose(bundle, settings, chunk_size, left_chunks, max_history_s)
        self._lead = np.zeros(settings.lead_samples, dtype=np.float32)
        self._tail = np.zeros(bundle.manifest.encoder.tail_samples, dtype=np.float32)
        self._flush = settings.flush_samples
        # A step is small work for each stream: whole streams spread over threads far better than layers do.
        self.runner = GraphRunner(bundle, "streaming_encoder", placement, split_calls=False)
        self.work = self.runner.work
        graph = self.runner.graph
        self.max_batch = self.geometry.within(graph.inputs, max_batch)
        self.searching = speech_kind(bundle).open_searching(bundle, graph, search, placement)
        if placement.compile:
            self.runner.compile_asked(lambda: self.compile(self.buckets(STEP_ROWS)))
        self._rules = endpoints or NEVER
        self._slots = graph.slots(self.geometry.states, capacity)
        self._streams: dict[int, _Stream] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._lock = threading.Lock()

    def buckets(self, rows: Sequence[int]) -> list[Bucket]:
        """The sizes of steps of so many streams, as far as a call advances as many."""
        return [Bucket(each, self.geometry.window_samples) for each in rows if each <= self.max_batch]

    def compile(self, buckets: Sequence[Bucket], done: Callable[[Any], None] | None = None) -> None:
        """Compile the steps of the pipeline's own search for some sizes; as of `GraphRunner.compile`.

        Raises:
            OperatorError: the graph cannot be compiled: its histories grow, or the runtime compiles nothing.
        """
        if self.geometry.left_frames is None:
            raise OperatorError(
                "steps that see all of the past (left_chunks -1) have ever new sizes and cannot be compiled; choose a "
                "number of left chunks"
            )
        states = (f"next_{name}" for name in self.geometry.states)
        outputs = [*self.searching.outputs([self.searching.options]), *states]
        self.runner.compile(buckets, outputs, history=self.geometry.left_frames, done=done)

    @property
    def num_open(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def open(self, options: SearchOptions | None = None) -> int:
        """Start a stream and return its slot.

        Args:
            options: how to search in it; None takes the pipeline's own.

        Raises:
            ServerBusyError: all slots are taken.
            InputError: the options ask for what the model does not have, or a hotword cannot be made of its tokens.
        """
        options = self.searching.check(options)
        rules = self._rules
        if options.mode == "rescoring":
            # A segment may get twice as long as it should, and the step that ends it is in it.
            frame_s = self.bundle.manifest.frame_s
            room = (self.searching.max_rescored_s - self.geometry.chunk_size * frame_s) / 2
            rules = replace(rules, max_segment_s=min(rules.max_segment_s, MAX_RESCORED_S, max(room, frame_s)))
        stream = _Stream(self._new_segment(options, 0), rules)  # before a slot is taken, should it fail
        stream.pending.push(self._lead)
        with self._lock:
            if not self._free:
                raise ServerBusyError(
                    f"all {self.capacity} stream slots are taken; try again when a stream has ended, "
                    "or raise the capacity"
                )
            slot = self._free[-1]
            self._slots.clear(slot)
            self._streams[slot] = stream
            self._free.pop()
            return slot

    def close(self, slot: int) -> None:
        """Give up a stream before its end.

        Raises:
            StreamError: there is no open stream in this slot.
        """
        with self._lock:
            self._stream(slot)
            self._release(slot)

    def advance(self, steps: Sequence[Step]) -> list[Transcript]:
        """Take new audio of some streams and recognise what is complete.

        Returns:
            For each step the transcript of its stream's segment under way, with those that the step has ended. After a
            final step the slot is free again.

        Raises:
            StreamError: a step is for a slot without an open stream; nothing was changed.
            ValueError: two steps are for one slot.

        Should the graph of the encoder fail, every stream stays open with the audio that it had not finished. Should
        what searches fail after it, as the joiner of a transducer may, its streams are to be closed: the encoder has
        heard more than the search.
        """
        with self._lock:
            streams = [self._stream(step.slot) for step in steps]
            if len({step.slot for step in steps}) != len(steps):
                raise ValueError(f"one call takes one step per slot, got slots {[step.slot for step in steps]}")
            for stream, step in zip(streams, steps, strict=True):
                stream.pending.push(step.samples)
                stream.num_samples += len(step.samples)
                if step.final and not stream.closing:
                    stream.closing = True
                    if stream.num_samples >= self.bundle.manifest.features.frame_length:
                        stream.pending.push(self._tail)
            active = list(zip(steps, streams, strict=True))
            while active := [(step, stream) for step, stream in active if self._is_ready(step, stream)]:
                self._advance([step.slot for step, _ in active], [stream for _, stream in active])
                self._end_segments([stream for _, stream in active if not stream.heard_all and self._at_end(stream)])
            finished = [stream for stream, step in zip(streams, steps, strict=True) if step.final]
            finals = iter(self._finish(finished))
            transcripts = []
            for stream, step in zip(streams, steps, strict=True):
                current = next(finals) if step.final else self._partial(stream)
                transcripts.append(
                    replace(current, segment=stream.number, ended=tuple(stream.ended), history=stream.history)
                )
                stream.ended.clear()
            for step in steps:
                if step.final:
                    self._release(step.slot)
            return transcripts

    def warm_up(self) -> None:
        """Run silence through a few batch sizes, so that the first real chunk finds everything ready."""
        self.searching.warm_up()
        window = np.zeros(self.geometry.window_samples, dtype=np.float32)

        def run(batch: int) -> None:
            self.advance([Step(self.open(), window, final=True) for _ in range(batch)])

        room = min(self.max_batch, self.capacity - self.num_open)
        # A step spreads over the threads by itself.
        self.runner.warm_up([2**n for n in range(room.bit_length())], run, side_by_side=False)

    def _stream(self, slot: int) -> _Stream:
        if slot not in self._streams:
            raise StreamError(f"there is no open stream in slot {slot}; open one before sending audio")
        return self._streams[slot]

    def _release(self, slot: int) -> None:
        del self._streams[slot]
        self._slots.release(slot)
        self._free.append(slot)

    def _new_segment(self, options: SearchOptions, first_frame: int) -> Segment:
        builder = ReadingBuilder(self.bundle.vocabulary, self.bundle.manifest.frame_s)
        return Segment(self.searching.start(options), builder, first_frame)

    def _at_end(self, stream: _Stream) -> bool:
        frame_s, segment = self.bundle.manifest.frame_s, stream.segment
        return stream.rules.is_endpoint(
            segment_s=segment.num_frames * frame_s,
            trailing_s=segment.trailing_frames * frame_s,
            has_text=segment.has_text,
        )

    def _end_segments(self, streams: Sequence[_Stream]) -> None:
        """End the segments of some streams and start their next ones."""
        for stream in streams:
            stream.segment.is_followed = True
        for stream, final in zip(streams, self._finish(streams), strict=True):
            stream.ended.append(replace(final, segment=stream.number))
            stream.history = joined(stream.history, final.text)
            stream.number += 1
            last = stream.segment
            stream.segment = self._new_segment(last.search.options, last.first_frame + last.num_frames)

    def _finish(self, streams: Sequence[_Stream]) -> list[Transcript]:
        """The final transcripts of the segments that some streams are in."""
        if not streams:
            return []
        start = time.perf_counter()
        found = self.searching.finish([stream.segment.search for stream in streams])
        finals = [
            transcript(hypotheses, stream.segment.reading, stream.segment.search.options, self._heard_s(stream))
            for stream, hypotheses in zip(streams, found, strict=True)
        ]
        self.work.add_search(time.perf_counter() - start)
        return finals

    def _partial(self, stream: _Stream) -> Transcript:
        reading = stream.segment.partial()
        if not stream.segment.search.options.timestamps:
            reading = reading.without_times()
        return Transcript(
            reading.text, reading.tokens, reading.words, reading.confidence, self._heard_s(stream), is_final=False
        )

    def _heard_s(self, stream: _Stream) -> float:
        return stream.num_samples / self.sample_rate

    def _is_ready(self, step: Step, stream: _Stream) -> bool:
        waiting = len(stream.pending)
        if waiting >= self.geometry.window_samples:
            return True
        if not step.final or stream.heard_all:
            return False
        if self._flush is None:
            return waiting >= self.bundle.manifest.encoder.min_samples
        return stream.num_samples >= self.bundle.manifest.features.frame_length and not self._is_flushed(stream)

    def _is_flushed(self, stream: _Stream) -> bool:
        """Whether the next window begins so late after the end of the audio that nothing of it would be told."""
        assert self._flush is not None
        return stream.position >= stream.num_samples + len(self._tail) + self._flush

    def _advance(self, slots: list[int], streams: list[_Stream]) -> None:
        """Run one window of each stream, in as many calls as the batch limit and the device ask for."""
        histories = [self.geometry.history(stream.position) for stream in streams]
        order = sorted(range(len(slots)), key=histories.__getitem__)
        slots, streams = [slots[each] for each in order], [streams[each] for each in order]
        self._slots.reserve(len(slots))

        def compute(part: slice, inputs: Mapping[str, Array]) -> Outputs:
            names = self.searching.outputs(stream.segment.search.options for stream in streams[part])
            history = self.geometry.history(streams[part.start].position)
            return dict(zip(names, self._slots(slots[part], inputs, names, part.start, history), strict=True))

        self.runner.run(
            parts(sorted(histories), self.max_batch, self.runner.crew.size),
            lambda part: self._filled(streams[part]),
            compute,
            lambda part, outputs: self._take(streams[part], outputs),
        )

    def _filled(self, streams: Sequence[_Stream]) -> Filled:
        """The next window of each stream."""
        window = self.geometry.window_samples
        block = np.zeros((len(streams), window), dtype=np.float32)
        num_samples = np.empty(len(streams), dtype=np.int64)
        audio = padding = 0
        for row, stream in enumerate(streams):
            samples = stream.pending.peek(window)
            block[row, : len(samples)] = samples
            num_samples[row] = len(samples)
            used = self._used(stream)
            heard = max(0, min(used, stream.num_samples - stream.position))
            audio += heard
            padding += used - heard + window - len(samples)
        return Filled({"waveform": block, "num_samples": num_samples}, audio, padding)

    def _take(self, streams: Sequence[_Stream], outputs: Outputs) -> None:
        """Search the outputs of a step, and move the streams on."""
        segments = [stream.segment for stream in streams]
        news = self.searching.advance([segment.search for segment in segments], outputs)
        for segment, each, num_frames in zip(segments, news, outputs["num_frames"].tolist(), strict=True):
            segment.take(each, num_frames)
        for stream in streams:
            is_last, used = self._is_last(stream), self._used(stream)
            stream.pending.drop(self.geometry.shift_samples)
            stream.position += used
            stream.heard_all = is_last or (stream.closing and self._flush is not None and self._is_flushed(stream))

    def _is_last(self, stream: _Stream) -> bool:
        """Whether the next window is what is left at the end of a stream."""
        return self._flush is None and len(stream.pending) < self.geometry.window_samples

    def _used(self, stream: _Stream) -> int:
        """Samples of the next window that no later one has: the overlap of full windows belongs to the next one."""
        return len(stream.pending) if self._is_last(stream) else self.geometry.shift_samples
