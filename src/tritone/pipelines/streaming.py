"""Streaming recognition with a CTC model: many streams advance together.

    steps (slot, samples, final)  ->  partial and final transcripts

Audio may arrive cut in any way: a stream's windows depend on its sample count alone. Every stream owns a slot, which
holds its state between steps where the graph runs; later streams use it again.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, ServerBusyError, StreamError
from tritone.pipelines.assembly import TranscriptBuilder
from tritone.pipelines.choice import open_chosen
from tritone.pipelines.greedy import GreedySearch
from tritone.pipelines.samples import SampleQueue
from tritone.pipelines.work import CallWork, WorkLog
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array, TensorSpec
from tritone.search.ctc import CtcGreedy
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
    num_samples: int = 0  # of its audio so far
    position: int = 0  # of the next window in it
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
        runtime: str | None = None,
        precision: str | None = None,
        capacity: int = DEFAULT_CAPACITY,
        max_batch: int = DEFAULT_MAX_BATCH,
    ) -> None:
        """Open the streaming graph of a bundle.

        Args:
            bundle: an opened bundle of kind `ctc`.
            device, threads, runtime, precision: see `open_chosen`.
            capacity: how many streams may be open at once.
            max_batch: how many streams one graph call may advance.

        Raises:
            BundleError: the bundle was exported without a streaming encoder, or with one that cannot be opened
                or does not fit its manifest.
            OperatorError: the device is not available.
            ValueError: there is no such device, runtime or precision, or a number is below 1.
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
        self.max_batch = max_batch
        self.work = WorkLog(self.sample_rate)
        self._settings = settings
        self._tail = np.zeros(bundle.manifest.encoder.tail_samples, dtype=np.float32)
        # A step is small work for each stream: whole streams spread over threads far better than layers do.
        self.artifact, graph = open_chosen(
            bundle,
            "streaming_encoder",
            runtime=runtime,
            precision=precision,
            device=device,
            threads=threads,
            split_calls=False,
        )
        self._search = GreedySearch(graph, bundle.manifest.vocabulary.blank_id)
        self._slots = graph.slots(
            {state.name: TensorSpec(np.dtype(state.dtype), state.shape) for state in settings.states}, capacity
        )
        self._crew = Crew(graph.concurrency)
        self._streams: dict[int, _Stream] = {}
        self._free = list(range(capacity - 1, -1, -1))
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
            self._slots.clear(slot)
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
        self._slots.reserve(len(slots))
        bounds = [len(slots) * call // calls for call in range(calls + 1)]
        parts = list(map(slice, bounds, bounds[1:]))
        start = time.perf_counter()
        work = self._crew.map(lambda part: self._run(slots[part], streams[part], part), parts)
        self.work.add(work, time.perf_counter() - start)

    def _run(self, slots: list[int], streams: list[_Stream], part: slice) -> CallWork:
        start = time.perf_counter()
        window, shift = self._settings.window_samples, self._settings.shift_samples
        block = np.zeros((len(streams), window), dtype=np.float32)
        num_samples = np.empty(len(streams), dtype=np.int64)
        for row, stream in enumerate(streams):
            samples = stream.pending.peek(window)
            block[row, : len(samples)] = samples
            num_samples[row] = len(samples)
        inputs: dict[str, Array] = {"waveform": block, "num_samples": num_samples}
        filled = time.perf_counter()
        results = self._slots(slots, inputs, self._search.outputs, part.start)
        computed = time.perf_counter()
        found, num_frames = self._search(results)
        audio = padding = 0
        for row, stream in enumerate(streams):
            valid = int(num_samples[row])
            stream.ended = valid < window
            stream.pending.drop(shift)
            stream.builder.add(*stream.search.join(found[row], num_frames[row]))
            # The overlap of full windows belongs to the next one, and the tail after the audio is none.
            used = valid if stream.ended else shift
            heard = max(0, min(used, stream.num_samples - stream.position))
            stream.position += used
            audio += heard
            padding += used - heard + window - valid
        end = time.perf_counter()
        return CallWork(audio, padding, computed - filled, end - computed, end - start)
