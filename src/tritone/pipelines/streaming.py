"""Streaming recognition with a CTC model: many streams advance together.

    steps (slot, samples, final)  ->  partial and final transcripts

Audio may arrive cut in any way: a stream's windows depend on its sample count alone. Every stream owns a slot, a row of
the state arrays, that later streams use again. A step gathers rows of the arrays, runs the graph and writes them back.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import State
from tritone.errors import BundleError, ServerBusyError, StreamError
from tritone.pipelines.assembly import TranscriptBuilder
from tritone.pipelines.contract import check_graph
from tritone.pipelines.samples import SampleQueue
from tritone.runtime import open_graph
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array
from tritone.search.ctc import CtcGreedy, ctc_greedy
from tritone.transcript import Transcript

DEFAULT_CAPACITY = 512
DEFAULT_MAX_BATCH = 64
MIN_PART = 2  # streams of a graph call that is worth making beside another one


@dataclass(frozen=True)
class Step:
    """New audio of one stream: (samples,) float32 at the pipeline's rate, possibly none; `final` ends the stream."""

    slot: int
    samples: Waveform
    final: bool = False


@dataclass
class _Stream:
    builder: TranscriptBuilder
    pending: SampleQueue = field(default_factory=SampleQueue)
    search: CtcGreedy = field(default_factory=CtcGreedy)
    num_samples: int = 0
    closing: bool = False  # its last audio, and the tail after it, are pending
    ended: bool = False  # its last step has run


class StreamingCtcPipeline:
    """Recognises streams. Calls from several threads are served one after the other."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "cpu",
        threads: int | None = None,
        capacity: int = DEFAULT_CAPACITY,
        max_batch: int = DEFAULT_MAX_BATCH,
    ) -> None:
        """Open the streaming graph of a bundle.

        Args:
            bundle: an opened bundle of kind `ctc`.
            device, threads: see `tritone.runtime.open_graph`.
            capacity: how many streams may be open at once.
            max_batch: how many streams one graph call may advance.

        Raises:
            BundleError: the bundle was exported without a streaming encoder, or with one that cannot be opened
                or does not fit its manifest.
            OperatorError: the device is not available.
        """
        if capacity < 1 or max_batch < 1:
            raise ValueError(f"capacity and max_batch must be at least 1, got {capacity} and {max_batch}")
        path = bundle.artifact("streaming_encoder")
        settings = bundle.manifest.streaming
        if settings is None:
            raise BundleError(f"{bundle.path} has a streaming graph, but `streaming` in its manifest is empty")
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.capacity = capacity
        self.max_batch = max_batch
        self._settings = settings
        self._tail = np.zeros(bundle.manifest.encoder.tail_samples, dtype=np.float32)
        # A step is small work for each stream: whole streams spread over threads far better than layers do.
        self._graph = open_graph(path, device, threads, split_calls=False)
        check_graph(self._graph, bundle, "streaming_encoder")
        self._crew = Crew(self._graph.concurrency)
        self._streams: dict[int, _Stream] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._states = [_SlotArray(state, capacity) for state in settings.states]
        self._outputs = ["log_probs", "num_frames", *(f"next_{state.name}" for state in settings.states)]
        self._lock = threading.Lock()

    @property
    def num_open(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def open(self) -> int:
        """Start a stream and return its slot.

        Raises:
            ServerBusyError: all slots are taken.
        """
        with self._lock:
            if not self._free:
                raise ServerBusyError(
                    f"all {self.capacity} stream slots are taken; try again when a stream has ended, "
                    "or raise the capacity"
                )
            slot = self._free.pop()
            self._streams[slot] = _Stream(TranscriptBuilder(self.bundle.vocabulary, self.bundle.manifest.frame_s))
            for state in self._states:
                state.clear(slot)
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
            For each step the transcript of its stream so far. After a final step the slot is free again.

        Raises:
            StreamError: a step is for a slot without an open stream; nothing was changed.
            ValueError: two steps are for one slot.

        Should the graph itself fail, every stream stays open with the audio that it had not finished.
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
            transcripts = [
                stream.builder.transcript(stream.num_samples / self.sample_rate, step.final)
                for stream, step in zip(streams, steps, strict=True)
            ]
            for step in steps:
                if step.final:
                    self._release(step.slot)
            return transcripts

    def warm_up(self) -> None:
        """Run silence through a few batch sizes, so that the first real chunk finds everything ready."""
        window = np.zeros(self._settings.window_samples, dtype=np.float32)
        batch = 1
        while batch <= min(self.max_batch, self.capacity - self.num_open):
            slots = [self.open() for _ in range(batch)]
            self.advance([Step(slot, window, final=True) for slot in slots])
            batch *= 2

    def _stream(self, slot: int) -> _Stream:
        if slot not in self._streams:
            raise StreamError(f"there is no open stream in slot {slot}; open one before sending audio")
        return self._streams[slot]

    def _release(self, slot: int) -> None:
        del self._streams[slot]
        self._free.append(slot)

    def _is_ready(self, step: Step, stream: _Stream) -> bool:
        waiting = len(stream.pending)
        if waiting >= self._settings.window_samples:
            return True
        return step.final and not stream.ended and waiting >= self.bundle.manifest.encoder.min_samples

    def _advance(self, slots: list[int], streams: list[_Stream]) -> None:
        """Run one window of each stream, in as many calls as the batch limit and the device ask for."""
        needed = -(-len(slots) // self.max_batch)
        calls = max(needed, min(self._crew.size, len(slots) // MIN_PART))
        for state in self._states:
            state.reserve(len(slots))
        bounds = [len(slots) * call // calls for call in range(calls + 1)]
        self._crew.map(lambda part: self._run(slots[part], streams[part], part), list(map(slice, bounds, bounds[1:])))

    def _run(self, slots: list[int], streams: list[_Stream], part: slice) -> None:
        window, shift = self._settings.window_samples, self._settings.shift_samples
        block = np.zeros((len(streams), window), dtype=np.float32)
        num_samples = np.empty(len(streams), dtype=np.int64)
        for row, stream in enumerate(streams):
            samples = stream.pending.peek(window)
            block[row, : len(samples)] = samples
            num_samples[row] = len(samples)
        inputs: dict[str, Array] = {"waveform": block, "num_samples": num_samples}
        inputs |= {state.name: state.gather(slots, part) for state in self._states}
        log_probs, num_frames, *next_states = self._graph(inputs, self._outputs)
        for state, values in zip(self._states, next_states, strict=True):
            state.scatter(slots, values)
        found = ctc_greedy(log_probs, num_frames, self.bundle.manifest.vocabulary.blank_id)
        for row, stream in enumerate(streams):
            stream.ended = num_samples[row] < window
            stream.pending.drop(shift)
            stream.builder.add(*stream.search.join(found[row], int(num_frames[row])))


class _SlotArray:
    """One state tensor of all streams: a row per slot. Grows with the highest slot used, up to the capacity."""

    def __init__(self, state: State, capacity: int) -> None:
        self.name = state.name
        self._capacity = capacity
        self._rows: Array = np.zeros((0, *state.shape), dtype=state.dtype)
        self._gathered: Array = self._rows

    def clear(self, slot: int) -> None:
        if slot >= len(self._rows):
            grown = np.zeros(
                (min(self._capacity, max(2 * len(self._rows), slot + 1)), *self._rows.shape[1:]), self._rows.dtype
            )
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[slot] = 0

    def reserve(self, count: int) -> None:
        """Make room for `gather` to put `count` rows."""
        if count > len(self._gathered):
            self._gathered = np.empty((count, *self._rows.shape[1:]), self._rows.dtype)

    def gather(self, slots: list[int], place: slice) -> Array:
        """The rows of `slots`, copied to their `place` in an array that is used again by the next step."""
        # Any mode but "raise" lets numpy write to `out` directly; slots are always in range.
        return np.take(self._rows, slots, axis=0, out=self._gathered[place], mode="clip")

    def scatter(self, slots: list[int], values: Array) -> None:
        self._rows[slots] = values
