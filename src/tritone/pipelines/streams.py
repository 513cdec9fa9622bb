"""Streams, whatever is made of them: many advance together, window by window.

    steps (slot, samples, final)  ->  graph calls on windows of many streams  ->  outputs for each stream

Audio may arrive cut in any way: a stream's windows depend on its sample count alone. Every stream owns a slot, which
holds its state between steps where the graph runs; later streams use it again. What is counted of streams is in arrays
by slot, so that a step of hundreds of them costs little more than what is done with the outputs.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, ServerBusyError, StreamError
from tritone.pipelines.graphs.geometry import DEFAULT_MAX_HISTORY_S, Geometry, parts
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import Filled, GraphRunner, Outputs
from tritone.pipelines.graphs.samples import FLOAT, PCM, Index, WaitingSamples
from tritone.runtime.graph import Array, TensorSpec

DEFAULT_CAPACITY = 512
DEFAULT_MAX_BATCH = 64

COUNT = np.dtype(np.int64)
Flags = npt.NDArray[np.bool_]


class HasChanges(Protocol):
    """Options of a stream, which parameters of a request may change."""

    def changed(self, parameters: Mapping[str, Any]) -> Any: ...


Stream = TypeVar("Stream")
Options = TypeVar("Options", bound=HasChanges)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Step:
    """New audio of one stream.

    `samples` (samples,): float32 at the pipeline's rate, or int16, n for n / 32768; possibly none. `final` ends the
    stream. Without `details` a transcript has text alone: no tokens, words, confidence and length of the audio, and it
    may be the same object as that of the step before.
    """

    slot: int
    samples: Samples
    final: bool = False
    details: bool = True


Given = TypeVar("Given", covariant=True)


class Streams(Protocol[Given]):
    """What advances streams: `StreamPipeline` says what its methods do."""

    @property
    def sample_rate(self) -> int: ...

    def open(self, options: Any = None) -> int: ...

    def close(self, slot: int) -> None: ...

    def advance(self, steps: Sequence[Step]) -> Sequence[Given]: ...


class OpenStreams(Generic[Stream]):
    """The slots of open streams, and what is kept of each."""

    def __init__(self, capacity: int) -> None:
        """Take how many streams may be open at once."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._streams: dict[int, Stream] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._lock = threading.Lock()

    @property
    def num_open(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def close(self, slot: int) -> None:
        """Give up a stream before its end.

        Raises:
            StreamError: there is no open stream in this slot.
        """
        with self._lock:
            self._stream(slot)
            self._release(slot)

    def _hold(self, stream: Stream) -> int:
        """Put a stream in a slot, which is cleared before; raises `ServerBusyError` if all are taken."""
        with self._lock:
            if not self._free:
                raise ServerBusyError(
                    f"all {self.capacity} stream slots are taken; try again when a stream has ended, "
                    "or raise the capacity"
                )
            slot = self._free[-1]
            self._clear(slot)
            self._streams[slot] = stream
            self._free.pop()
            return slot

    def _clear(self, slot: int) -> None:
        """Make a slot ready for another stream."""

    def _stream(self, slot: int) -> Stream:
        if slot not in self._streams:
            raise StreamError(f"there is no open stream in slot {slot}; open one before sending audio")
        return self._streams[slot]

    def _of(self, steps: Sequence[Step]) -> list[Stream]:
        """The streams of steps; raises `StreamError`, and `ValueError` if two are for one slot."""
        streams = [self._stream(step.slot) for step in steps]
        if len({step.slot for step in steps}) != len(steps):
            raise ValueError(f"one call takes one step per slot, got slots {[step.slot for step in steps]}")
        return streams

    def _release(self, slot: int) -> None:
        del self._streams[slot]
        self._free.append(slot)


class StreamPipeline(OpenStreams[Stream], ABC, Generic[Stream, Options, Answer]):
    """Advances streams. Calls from several threads are served one after the other.

    A subclass calls `_make_room` at the end of its `__init__`, and says what is kept of a stream (`_begun`), which
    outputs of the graph it needs (`_outputs`), what is done with them (`_take`) and what a step answers (`_answers`).
    """

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
        least_samples: int,
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
            least_samples: of the shortest stream that has a frame; of a shorter one nothing is computed.

        Raises:
            BundleError: the bundle was exported without a streaming encoder, or with one that cannot be opened
                or does not fit its manifest, or that is for other chunk sizes or numbers of left chunks alone.
            OperatorError: the device is not available.
            ValueError: a number is out of its range.
        """
        if capacity < 1 or max_batch < 1:
            raise ValueError(f"capacity and max_batch must be at least 1, got {capacity} and {max_batch}")
        super().__init__(capacity)
        bundle.artifacts("streaming_encoder")  # tells a bundle without one
        settings = bundle.manifest.streaming
        if settings is None:
            raise BundleError(f"{bundle.path} has a streaming graph, but `streaming` in its manifest is empty")
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.geometry = Geometry.choose(bundle, settings, chunk_size, left_chunks, max_history_s)
        self._lead, self._tail = settings.lead_samples, bundle.manifest.encoder.tail_samples
        self._flush = settings.flush_samples
        # A step is small work for each stream: whole streams spread over threads far better than layers do.
        self.runner = GraphRunner(bundle, "streaming_encoder", placement, split_calls=False)
        self.work = self.runner.work
        graph = self.runner.graph
        self.max_batch = self.geometry.within(graph.inputs, max_batch)
        self._least_samples = least_samples
        self._ahead = graph.widens  # a device computes while the next call is prepared
        self._waiting = WaitingSamples(capacity, self.geometry.window_samples)
        self._num_samples: Index = np.zeros(capacity, np.int64)  # of its audio so far
        self._position: Index = np.zeros(capacity, np.int64)  # of the next window in it
        self._closing: Flags = np.zeros(capacity, np.bool_)  # its last audio, and the tail after it, are waiting
        self._heard_all: Flags = np.zeros(capacity, np.bool_)  # its last step has run

    def _make_room(self) -> None:
        """Make the slots, after all that has to be compiled or derived of the graph."""
        graph = self.runner.graph
        # The graph says how it keeps numbers that are float32 in the manifest.
        states = {name: replace(spec, dtype=graph.inputs[name].dtype) for name, spec in self.geometry.states.items()}
        self._slots = graph.slots(states, self.capacity)

    @property
    @abstractmethod
    def options(self) -> Options:
        """The options of streams that ask for nothing else."""

    @abstractmethod
    def check(self, options: Options | None) -> Options:
        """The options of a stream, None being the pipeline's own, after making sure that the model has what they ask.

        Raises:
            InputError: it has not.
        """

    def changed(self, parameters: Mapping[str, Any], options: Options | None = None) -> Options:
        """Options, None being the pipeline's own, with what a request's parameters ask for; raises as `check` does."""
        found = self.options if options is None else options
        return self.check(found.changed(parameters)) if parameters else found

    @abstractmethod
    def _begun(self, options: Options) -> Stream:
        """What is kept of a stream that begins."""

    @abstractmethod
    def _outputs(self, streams: Sequence[Stream]) -> Sequence[str]:
        """The outputs of the graph that some streams need."""

    def _numbers(self, streams: Sequence[Stream]) -> Mapping[str, Sequence[int]]:
        """Inputs of a step beside audio and states: a number for each of some streams."""
        return {}

    @abstractmethod
    def _take(self, slots: Index, streams: Sequence[Stream], outputs: Outputs) -> None:
        """Use the outputs of a step of some streams."""

    def _moved(self, slots: Index) -> None:
        """Look at streams that have made a step which is not their last."""

    @abstractmethod
    def _answers(self, streams: Sequence[Stream], steps: Sequence[Step]) -> list[Answer]:
        """The answers to steps whose windows have all been computed."""

    def open(self, options: Options | None = None) -> int:
        """Start a stream and return its slot.

        Args:
            options: of this stream; None takes the pipeline's own.

        Raises:
            ServerBusyError: all slots are taken.
            InputError: the options ask for what the model does not have.
        """
        stream = self._begun(self.check(options))  # before a slot is taken, should it fail
        return self._hold(stream)

    def _clear(self, slot: int) -> None:
        self._slots.clear(slot)
        self._waiting.open(slot, self._lead)
        self._num_samples[slot] = self._position[slot] = 0
        self._closing[slot] = self._heard_all[slot] = False

    def run_whole(self, waveforms: Sequence[Samples], options: Sequence[Options | None]) -> list[Answer]:
        """The answers to whole recordings, each of which is a stream of one step; up to `capacity` at once."""
        slots: list[int] = []
        try:
            slots += [self.open(each) for each in options]
            return self.advance(
                [Step(slot, waveform, final=True) for slot, waveform in zip(slots, waveforms, strict=True)]
            )
        except BaseException:
            for slot in slots:
                self.close(slot)
            raise

    def advance(self, steps: Sequence[Step]) -> list[Answer]:
        """Take new audio of some streams and compute all windows that are complete.

        Returns:
            For each step its answer. After a final step the slot is free again.

        Raises:
            StreamError: a step is for a slot without an open stream; nothing was changed.
            ValueError: two steps are for one slot.

        Should a call of the encoder's graph fail to start, every stream stays open with the audio that it had not
        finished. Should anything fail after that, as the joiner of a transducer may, its streams are to be closed: the
        encoder has heard more than the search.
        """
        with self._lock:
            streams = self._of(steps)
            slots = np.array([step.slot for step in steps], dtype=np.int64)
            final = np.array([step.final for step in steps], dtype=np.bool_)
            if not steps:
                return []
            try:
                self._hear(slots, [step.samples for step in steps], final)
                self._run(slots, final)
            finally:
                self._waiting.settle(slots)
            answers = self._answers(streams, steps)
            for step in steps:
                if step.final:
                    self._release(step.slot)
            return answers

    def warm_up(self) -> None:
        """Run silence through a few batch sizes, so that the first real chunk finds everything ready."""
        kinds: list[np.dtype[Any]] = [FLOAT, PCM] if self.runner.graph.widens else [FLOAT]

        def run(batch: int) -> None:
            for kind in kinds:
                window = np.zeros(self.geometry.window_samples, dtype=kind)
                # a recorded size may have more rows than there are slots: fewer streams are padded to it
                streams = range(min(batch, room))
                self.advance([Step(self.open(), window, final=True, details=False) for _ in streams])

        room = min(self.max_batch, self.capacity - self.num_open)
        # A step spreads over the threads by itself.
        ahead, self._ahead = self._ahead, False  # each size in a call of its own
        try:
            self.runner.warm_up(self._slots.sizes(room), run, side_by_side=False)
        finally:
            self._ahead = ahead

    def _release(self, slot: int) -> None:
        super()._release(slot)
        self._slots.release(slot)
        self._waiting.close(slot)

    def _hear(self, slots: Index, audio: Sequence[Samples], final: Flags) -> None:
        """Take new audio of some streams."""
        num_samples = self._num_samples[slots] + [len(samples) for samples in audio]
        self._num_samples[slots] = num_samples
        silence = np.zeros(len(slots), np.int64)
        if final.any():
            has_tail = num_samples >= self._least_samples
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
                self._moved(slots[~self._heard_all[slots]])

    def _is_ready(self, slots: Index, final: Flags) -> Flags:
        waiting = self._waiting.count[slots]
        # A window may be full of what streams begin with before there is a frame.
        heard: Flags = self._num_samples[slots] >= self._least_samples
        is_full: Flags = heard & (waiting >= self.geometry.window_samples)
        if not final.any():
            return is_full
        if self._flush is None:
            is_enough = waiting >= self.bundle.manifest.encoder.min_samples
        else:
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
            names = self._outputs(streams[part])
            wait = self._slots.start(slots[part].tolist(), inputs, names, part.start, histories[part.start])
            self._move_on(slots[part])
            return lambda: dict(zip(names, wait(), strict=True))

        self.runner.run_ahead(
            parts(histories, self.max_batch, self.runner.crew.size, ahead=self._ahead),
            lambda part: self._filled(slots[part], streams[part]),
            start,
            lambda part, outputs: self._take(slots[part], streams[part], outputs),
        )

    def _filled(self, slots: Index, streams: Sequence[Stream]) -> Filled:
        """The next window of each stream."""
        window = self.geometry.window_samples
        kind = PCM if self.runner.graph.widens and self._waiting.are_pcm(slots) else FLOAT
        fed = {"waveform": TensorSpec(kind, (window,)), "num_samples": TensorSpec(COUNT, ())}
        numbers = self._numbers(streams)
        inputs = self._slots.room(len(slots), fed | {name: TensorSpec(COUNT, ()) for name in numbers})
        for name, values in numbers.items():
            inputs[name][...] = values
        valid = inputs["num_samples"][...] = self._waiting.fill(slots, inputs["waveform"])
        _, used = self._next_moves(slots)
        heard = np.clip(self._num_samples[slots] - self._position[slots], 0, used)
        audio, padding = int(heard.sum()), int((used - heard + window - valid).sum())
        return Filled(inputs, audio, padding)

    def _move_on(self, slots: Index) -> None:
        """Have some streams wait for the windows after those that have been started."""
        is_last, used = self._next_moves(slots)
        self._waiting.drop(slots, self.geometry.shift_samples)
        self._position[slots] += used
        if self._flush is not None:
            is_last = self._closing[slots] & self._is_flushed(slots)
        self._heard_all[slots] = is_last
        if self.runner.crew.size == 1:  # while the device computes
            self._waiting.settle(slots[self._waiting.count[slots] < self.geometry.window_samples])

    def _next_moves(self, slots: Index) -> tuple[Flags, Index]:
        """Of some streams, whether the next window is what is left at their end, and by how many samples it moves on.

        Those are the samples that no later window has: the overlap of full windows belongs to the next one.
        """
        waiting, shift = self._waiting.count[slots], self.geometry.shift_samples
        is_last: Flags = waiting < self.geometry.window_samples
        if self._flush is not None:
            is_last[:] = False
        return is_last, np.where(is_last, waiting, shift)

    def _heard_s(self, slot: int) -> float:
        return float(self._num_samples[slot] / self.sample_rate)
