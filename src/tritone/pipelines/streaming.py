"""Streaming recognition, whatever the kind of the model: many streams advance together.

    steps (slot, samples, final)  ->  partial and final transcripts

Audio may arrive cut in any way: a stream's windows depend on its sample count alone. Every stream owns a slot, which
holds its state between steps where the graph runs; later streams use it again. What is counted of streams is in arrays
by slot, so that a step of hundreds of them costs little more than the search of those that say something.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, OperatorError, ServerBusyError, StreamError
from tritone.pipelines.graphs.buckets import STEP_ROWS
from tritone.pipelines.graphs.geometry import DEFAULT_MAX_HISTORY_S, Geometry, parts
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import Filled, GraphRunner, Outputs
from tritone.pipelines.graphs.samples import FLOAT, PCM, Index, WaitingSamples
from tritone.pipelines.kinds.speech import speech_kind
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.readings import ReadingBuilder, transcript
from tritone.pipelines.searching.search import NOTHING
from tritone.pipelines.searching.segment import Segment
from tritone.runtime.graph import Array, Bucket, TensorSpec
from tritone.search.endpoint import NEVER, EndpointRules
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript, joined

DEFAULT_CAPACITY = 512
DEFAULT_MAX_BATCH = 64
# Rescoring needs all that the encoder gave since the segment began, so there must be an end to it.
MAX_RESCORED_S = 120.0

COUNT = np.dtype(np.int64)
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Step:
    """New audio of one stream.

    `samples` (samples,): float32 at the pipeline's rate, or int16, n for n / 32768; possibly none. `final` ends the
    stream. Without `details` its transcript has text alone: no tokens, words, confidence and length of the audio, and
    it may be the same object as that of the step before.
    """

    slot: int
    samples: Samples
    final: bool = False
    details: bool = True


@dataclass(slots=True)
class _Stream:
    segment: Segment
    rules: EndpointRules
    number: int = 0  # of the segment
    ended: list[Transcript] = field(default_factory=list)  # segments that ended in the step under way
    history: str = ""  # the text of all segments that have ended
    told: Transcript | None = None  # the last one without details, as long as its text is that of the stream


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
        self._lead, self._tail = settings.lead_samples, bundle.manifest.encoder.tail_samples
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
        self._waiting = WaitingSamples(capacity, self.geometry.window_samples)
        self._num_samples: Index = np.zeros(capacity, np.int64)  # of its audio so far
        self._position: Index = np.zeros(capacity, np.int64)  # of the next window in it
        self._closing: Flags = np.zeros(capacity, np.bool_)  # its last audio, and the tail after it, are waiting
        self._heard_all: Flags = np.zeros(capacity, np.bool_)  # its last step has run
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
        with self._lock:
            if not self._free:
                raise ServerBusyError(
                    f"all {self.capacity} stream slots are taken; try again when a stream has ended, "
                    "or raise the capacity"
                )
            slot = self._free[-1]
            self._slots.clear(slot)
            self._waiting.open(slot, self._lead)
            self._num_samples[slot] = self._position[slot] = 0
            self._closing[slot] = self._heard_all[slot] = False
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
            slots = np.array([step.slot for step in steps], dtype=np.int64)
            if len({step.slot for step in steps}) != len(steps):
                raise ValueError(f"one call takes one step per slot, got slots {slots.tolist()}")
            final = np.array([step.final for step in steps], dtype=np.bool_)
            if not steps:
                return []
            try:
                self._hear(slots, [step.samples for step in steps], final)
                self._run(slots, final)
            finally:
                self._waiting.settle(slots)
            ends = [each for each in zip(streams, steps, strict=True) if each[1].final]
            finals = iter(self._finals([(step.slot, stream, step.details) for stream, step in ends]))
            transcripts = [
                self._placed(next(finals), stream) if step.final else self._partial(step.slot, stream, step.details)
                for stream, step in zip(streams, steps, strict=True)
            ]
            for step in steps:
                if step.final:
                    self._release(step.slot)
            return transcripts

    def warm_up(self) -> None:
        """Run silence through a few batch sizes, so that the first real chunk finds everything ready."""
        self.searching.warm_up()
        kinds: list[np.dtype[Any]] = [FLOAT, PCM] if self.runner.graph.widens else [FLOAT]

        def run(batch: int) -> None:
            for kind in kinds:
                window = np.zeros(self.geometry.window_samples, dtype=kind)
                self.advance([Step(self.open(), window, final=True, details=False) for _ in range(batch)])

        room = min(self.max_batch, self.capacity - self.num_open)
        # A step spreads over the threads by itself.
        self.runner.warm_up(self._slots.sizes(room), run, side_by_side=False)

    def _stream(self, slot: int) -> _Stream:
        if slot not in self._streams:
            raise StreamError(f"there is no open stream in slot {slot}; open one before sending audio")
        return self._streams[slot]

    def _release(self, slot: int) -> None:
        del self._streams[slot]
        self._slots.release(slot)
        self._waiting.close(slot)
        self._free.append(slot)

    def _new_segment(self, options: SearchOptions, first_frame: int) -> Segment:
        builder = ReadingBuilder(self.bundle.vocabulary, self.bundle.manifest.frame_s)
        return Segment(self.searching.start(options), builder, first_frame)

    def _hear(self, slots: Index, audio: Sequence[Samples], final: Flags) -> None:
        """Take new audio of some streams."""
        num_samples = self._num_samples[slots] + [len(samples) for samples in audio]
        self._num_samples[slots] = num_samples
        silence = np.zeros(len(slots), np.int64)
        if final.any():
            has_tail = num_samples >= self.bundle.manifest.features.frame_length
            silence[final & ~self._closing[slots] & has_tail] = self._tail
            self._closing[slots] |= final
        self._waiting.hear(slots, audio, silence)

    def _run(self, slots: Index, final: Flags) -> None:
        """Run all windows of some streams that are complete."""
        while len(slots):
            ready = self._is_ready(slots, final)
            slots, final = slots[ready], final[ready]
            if len(slots):
                self._advance(slots)
                self._end_segments(slots[~self._heard_all[slots]])

    def _is_ready(self, slots: Index, final: Flags) -> Flags:
        waiting = self._waiting.count[slots]
        is_full: Flags = waiting >= self.geometry.window_samples
        if not final.any():
            return is_full
        if self._flush is None:
            is_enough = waiting >= self.bundle.manifest.encoder.min_samples
        else:
            heard = self._num_samples[slots] >= self.bundle.manifest.features.frame_length
            is_enough = heard & ~self._is_flushed(slots)
        return is_full | (final & ~self._heard_all[slots] & is_enough)

    def _is_flushed(self, slots: Index) -> Flags:
        """Whether the next window begins so late after the end of the audio that nothing of it would be told."""
        assert self._flush is not None
        return self._position[slots] >= self._num_samples[slots] + self._tail + self._flush

    def _advance(self, slots: Index) -> None:
        """Run one window of each stream, in as many calls as the batch limit and the device ask for."""
        histories = [0] * len(slots)
        if self.geometry.left_frames is None:
            histories = [self.geometry.history(position) for position in self._position[slots].tolist()]
            order = np.argsort(histories, kind="stable")
            slots, histories = slots[order], sorted(histories)
        streams = [self._streams[slot] for slot in slots.tolist()]
        self._slots.reserve(len(slots))

        def start(part: slice, inputs: Mapping[str, Array]) -> Callable[[], Outputs]:
            names = self.searching.outputs(stream.segment.search.options for stream in streams[part])
            wait = self._slots.start(slots[part].tolist(), inputs, names, part.start, histories[part.start])
            return lambda: dict(zip(names, wait(), strict=True))

        self.runner.run_ahead(
            parts(histories, self.max_batch, self.runner.crew.size),
            lambda part: self._filled(slots[part]),
            start,
            lambda part, outputs: self._take(slots[part], streams[part], outputs),
        )

    def _filled(self, slots: Index) -> Filled:
        """The next window of each stream."""
        window = self.geometry.window_samples
        kind = PCM if self.runner.graph.widens and self._waiting.are_pcm(slots) else FLOAT
        inputs = self._slots.room(
            len(slots), {"waveform": TensorSpec(kind, (window,)), "num_samples": TensorSpec(COUNT, ())}
        )
        valid = inputs["num_samples"][...] = self._waiting.fill(slots, inputs["waveform"])
        _, used = self._next_moves(slots)
        heard = np.clip(self._num_samples[slots] - self._position[slots], 0, used)
        audio, padding = int(heard.sum()), int((used - heard + window - valid).sum())
        return Filled(inputs, audio, padding)

    def _take(self, slots: Index, streams: Sequence[_Stream], outputs: Outputs) -> None:
        """Search the outputs of a step, and move the streams on."""
        news = self.searching.advance([stream.segment.search for stream in streams], outputs)
        for stream, each, num_frames in zip(streams, news, outputs["num_frames"].tolist(), strict=True):
            stream.segment.take(each, num_frames)
            if each is not NOTHING:
                stream.told = None
        is_last, used = self._next_moves(slots)
        self._waiting.drop(slots, self.geometry.shift_samples)
        self._position[slots] += used
        if self._flush is not None:
            is_last = self._closing[slots] & self._is_flushed(slots)
        self._heard_all[slots] = is_last

    def _next_moves(self, slots: Index) -> tuple[Flags, Index]:
        """Of some streams, whether the next window is what is left at their end, and by how many samples it moves on.

        Those are the samples that no later window has: the overlap of full windows belongs to the next one.
        """
        waiting, shift = self._waiting.count[slots], self.geometry.shift_samples
        is_last: Flags = waiting < self.geometry.window_samples
        if self._flush is not None:
            is_last[:] = False
        return is_last, np.where(is_last, waiting, shift)

    def _end_segments(self, slots: Index) -> None:
        """End the segments of those streams whose rules say so, and start their next ones."""
        streams = [(slot, self._streams[slot], True) for slot in slots.tolist()]
        ended = [each for each in streams if each[1].rules is not NEVER and self._at_end(each[1])]
        for _, stream, _ in ended:
            stream.segment.is_followed = True
        for (_, stream, _), final in zip(ended, self._finals(ended), strict=True):
            stream.ended.append(replace(final, segment=stream.number))
            stream.history = joined(stream.history, final.text)
            stream.number += 1
            stream.told = None
            last = stream.segment
            stream.segment = self._new_segment(last.search.options, last.first_frame + last.num_frames)

    def _at_end(self, stream: _Stream) -> bool:
        frame_s, segment = self.bundle.manifest.frame_s, stream.segment
        return stream.rules.is_endpoint(
            segment_s=segment.num_frames * frame_s,
            trailing_s=segment.trailing_frames * frame_s,
            has_text=segment.has_text,
        )

    def _finals(self, streams: Sequence[tuple[int, _Stream, bool]]) -> list[Transcript]:
        """The final transcripts of the segments that some streams are in: of each its slot, itself, and its details."""
        if not streams:
            return []
        start = time.perf_counter()
        found = self.searching.finish([stream.segment.search for _, stream, _ in streams])
        finals = []
        for (slot, stream, details), hypotheses in zip(streams, found, strict=True):
            segment = stream.segment
            if details:
                final = transcript(hypotheses, segment.reading, segment.search.options, self._heard_s(slot))
            else:
                final = Transcript(segment.text(hypotheses[0]))
            finals.append(final)
        self.work.add_search(time.perf_counter() - start)
        return finals

    def _partial(self, slot: int, stream: _Stream, details: bool) -> Transcript:
        """The transcript of the segment under way."""
        segment = stream.segment
        if not details:
            stream.ended.clear()
            if stream.told is None:
                stream.told = self._placed(Transcript(segment.text(), is_final=False), stream)
            return stream.told
        reading = segment.partial()
        if not segment.search.options.timestamps:
            reading = reading.without_times()
        partial = Transcript(
            reading.text, reading.tokens, reading.words, reading.confidence, self._heard_s(slot), is_final=False
        )
        return self._placed(partial, stream)

    def _placed(self, current: Transcript, stream: _Stream) -> Transcript:
        """The transcript of a segment with those that the step has ended before it."""
        if not stream.number:
            return current
        ended, stream.ended = tuple(stream.ended), []
        return replace(current, segment=stream.number, ended=ended, history=stream.history)

    def _heard_s(self, slot: int) -> float:
        return float(self._num_samples[slot] / self.sample_rate)
