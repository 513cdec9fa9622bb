"""One graph of a bundle at work: it is opened, its calls are planned and made side by side, and all of it is logged.

waveforms of any lengths  ->  graph calls  ->  outputs for each
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tritone.audio.waveform import Samples, check_level
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import AudioError, OperatorError
from tritone.pipelines.graphs.batching import Batch, BatchLimits, Sizes
from tritone.pipelines.graphs.blocks import Blocks
from tritone.pipelines.graphs.buckets import LENGTHS, Choice, choose_buckets, read_sizes, usual_lengths
from tritone.pipelines.graphs.budget import Budget
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.filling import prepare
from tritone.pipelines.graphs.placement import AUTO, ON_CPU, Placement
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.isolation import attempt
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array, Bucket, CompilableGraph, largest

if TYPE_CHECKING:
    from tritone.preparing import Part

DEFAULT_MAX_AUDIO_S = 300.0
WARM_UP_S = 30.0  # of the longest audio that a pipeline is warmed up with

LOGGER = logging.getLogger(__name__)

Call = TypeVar("Call")
Size = TypeVar("Size")
Outputs = dict[str, Array]


@dataclass(frozen=True)
class Filled:
    """The inputs of a graph call, and how many of their samples are audio and how many are not.

    `unfit`: the rows whose samples are not finite or far beyond [-1, 1], where nobody has checked that before.
    """

    inputs: Mapping[str, Array]
    audio: int
    padding: int
    unfit: Sequence[int] = ()


class GraphRunner:
    """An opened graph with what its calls need. May be used from several threads.

    `graph`, `artifact`: it and its description. `blocks`: what it takes of waveforms. `limits`: of one call. `work`:
    what has been computed.
    """

    def __init__(
        self,
        bundle: Bundle,
        role: Role,
        placement: Placement = ON_CPU,
        *,
        limits: BatchLimits | None = None,
        like_even: bool = False,
        split_calls: bool = True,
    ) -> None:
        """Open the graph of a bundle for a role.

        Args:
            limits: what one call may take; by default what suits the device.
            like_even: see `BatchLimits.for_device`.
            split_calls: see `open_chosen`, errors too.
        """
        self.bundle = bundle
        self.artifact, self.graph = open_chosen(bundle, role, placement, split_calls=split_calls)
        self.blocks = Blocks(bundle.manifest, self.graph.inputs.get("waveform"))
        if limits is None:
            limits = BatchLimits.for_device(placement.device, bundle.num_bytes(self.artifact), like_even=like_even)
        self.limits = self.blocks.within(limits)
        self.work = WorkLog(bundle.manifest.sample_rate)
        self._preparing = placement.preparing
        self.crew = Crew(self.graph.concurrency)
        self._shares_cpu = placement.device == "cpu" and self.crew.size > 1 and not like_even
        self.budget = Budget(
            self.artifact.memory if placement.device == "cpu" and role == "encoder" else None,
            bundle.manifest.sample_rate,
            self._give_back,
            megabytes=placement.memory_mb,
            calls=self.crew.size,
            usual_s=self.limits.max_padded_s,
        )
        self._sizes_for: dict[tuple[str, ...], Sizes] = {}

    @property
    def max_audio_s(self) -> float:
        """The longest audio in seconds that the graph takes and that its budget of memory is enough for."""
        tail_s = self.blocks.tail / self.blocks.sample_rate
        return min(self.blocks.max_audio_s, self.budget.longest_s - tail_s)

    def check(self, num_samples: int) -> None:
        """Make sure that audio of so many samples can be computed.

        Raises:
            InputError: the graph does not take it, or there is not enough memory; says how long it may be.
        """
        self.blocks.check(num_samples)
        self.budget.check(num_samples + self.blocks.tail)

    def compute(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Outputs:
        """Call the graph for some of its outputs."""
        return dict(zip(outputs, self.graph(inputs, outputs), strict=True))

    def run(
        self,
        calls: Sequence[Call],
        fill: Callable[[Call], Filled],
        compute: Callable[[Call, Mapping[str, Array]], Outputs],
        take: Callable[[Call, Outputs], object],
    ) -> None:
        """Make calls, as many at once as make full use of the device, and log their work.

        Args:
            calls: whatever stands for each.
            fill: makes its inputs.
            compute: calls the graph.
            take: uses the outputs, which counts as search. All three are called from several threads at once.
        """

        def make(call: Call) -> CallWork:
            start = time.perf_counter()
            filled = fill(call)
            ready = time.perf_counter()
            outputs = compute(call, filled.inputs)
            computed = time.perf_counter()
            take(call, outputs)
            end = time.perf_counter()
            return CallWork(filled.audio, filled.padding, computed - ready, end - computed, end - start)

        start = time.perf_counter()
        made = self.crew.map(make, calls)
        self.work.add(made, time.perf_counter() - start)

    def run_ahead(
        self,
        calls: Sequence[Call],
        fill: Callable[[Call], Filled],
        start: Callable[[Call, Mapping[str, Array]], Callable[[], Outputs]],
        take: Callable[[Call, Outputs], object],
    ) -> None:
        """Make calls as `run` does; where one thread makes them, each is started before the one before it is used.

        Args:
            start: begins a call of the graph, and returns what waits for its outputs.
        """
        if self.crew.size > 1 or len(calls) < 2:
            self.run(calls, fill, lambda call, inputs: start(call, inputs)(), take)
            return
        began = time.perf_counter()
        made: list[CallWork] = []
        under_way: list[Callable[[], CallWork]] = []

        def started(call: Call) -> Callable[[], CallWork]:
            start_s = time.perf_counter()
            filled = fill(call)
            wait = start(call, filled.inputs)
            spent = time.perf_counter() - start_s

            def finish() -> CallWork:
                begin = time.perf_counter()
                outputs = wait()
                computed = time.perf_counter()
                take(call, outputs)
                end = time.perf_counter()
                return CallWork(filled.audio, filled.padding, computed - begin, end - computed, end - begin + spent)

            return finish

        try:
            for call in calls:
                under_way.append(started(call))
                if len(under_way) > 1:
                    made.append(under_way.pop(0)())
        finally:  # also of a call that comes after one that failed, since the graph has computed it
            made += [finish() for finish in under_way]
        self.work.add(made, time.perf_counter() - began)

    def run_waveforms(
        self,
        waveforms: Sequence[Samples],
        outputs_for: Callable[[Sequence[int]], Sequence[str]],
        take: Callable[[Sequence[int], Outputs], object],
        asked: Sequence[Mapping[str, int]] = (),
    ) -> dict[int, AudioError]:
        """Run the graph on waveforms of any lengths, each at least as long as it takes.

        Args:
            outputs_for: which outputs are wanted for waveforms, by their indices.
            take: uses the outputs for waveforms, by their indices; called from several threads at once.
            asked: of each waveform what the graph takes beside it, see `Encoder.asked`; by default what is usual.

        Returns:
            The errors of waveforms, by their indices, whose samples are not finite or far beyond [-1, 1]. In their
            place silence was computed.
        """
        errors: dict[int, AudioError] = {}

        def fill(batch: Batch) -> Filled:
            given = [asked[index] for index in batch.indices] if asked else ()
            filled = self.filled([waveforms[index] for index in batch.indices], batch.num_samples, batch.rows, given)
            if not filled.unfit:
                return filled
            for row in filled.unfit:
                filled.inputs["waveform"][row] = 0
                fault = attempt(self._check_level, waveforms[batch.indices[row]])
                if isinstance(fault, AudioError):
                    errors[batch.indices[row]] = fault
            silent = sum(len(waveforms[batch.indices[row]]) for row in filled.unfit)
            return replace(filled, audio=filled.audio - silent, padding=filled.padding + silent)

        def compute(batch: Batch, inputs: Mapping[str, Array]) -> Outputs:
            with self.budget.call(batch.num_rows, batch.num_samples):
                outputs = self.compute(inputs, outputs_for(batch.indices))
            return first_rows(outputs, len(batch.indices)) if batch.rows else outputs

        try:
            self.run(
                self._planned([len(each) for each in waveforms], outputs_for),
                fill,
                compute,
                lambda batch, outputs: take(batch.indices, outputs),
            )
        finally:
            self.budget.settle()
        return errors

    def _planned(self, lengths: Sequence[int], outputs_for: Callable[[Sequence[int]], Sequence[str]]) -> list[Batch]:
        """The calls for waveforms of so many samples.

        Those that want what nothing is compiled for are apart, so that the others have calls that are.
        """
        everything, buckets_for = range(len(lengths)), self.graph.buckets_for
        groups: dict[tuple[str, ...], list[int]] = {}
        if buckets_for(wanted := tuple(outputs_for(everything))) or not buckets_for(()):
            groups[wanted] = [*everything]
        else:
            for index in everything:
                own = tuple(outputs_for([index]))
                groups.setdefault(own if buckets_for(own) else wanted, []).append(index)
        batches = []
        for outputs, members in groups.items():
            found = [lengths[index] for index in members]
            limits = self.limits
            if self._shares_cpu:
                seconds = sum(each + self.blocks.tail for each in found) / self.blocks.sample_rate
                limits = limits.shared(seconds, self.crew.size)
            plan = self.blocks.plan(found, limits, self.budget.fits, self._sizes(outputs))
            if len(groups) == 1:
                return plan
            batches += [replace(each, indices=tuple(members[index] for index in each.indices)) for each in plan]
        return batches

    def _sizes(self, outputs: tuple[str, ...]) -> Sizes | None:
        """The sizes that the graph is compiled for with these outputs; None where there are none."""
        if not (buckets := self.graph.buckets_for(outputs)):
            return None
        known = self._sizes_for.get(outputs)
        if known is None or known.buckets is not buckets:  # which are others once more has been compiled
            known = self._sizes_for[outputs] = self.blocks.sizes(buckets, self.budget.fits)
        return known

    def _check_level(self, waveform: Samples) -> None:
        check_level(waveform, sample_rate=self.bundle.manifest.sample_rate)

    def filled(
        self, waveforms: Sequence[Samples], padded: int, rows: int = 0, asked: Sequence[Mapping[str, int]] = ()
    ) -> Filled:
        """The inputs of a call for some waveforms, padded to so many samples, and to `rows` if that is not 0.

        `asked`: as of `run_waveforms`.
        """
        inputs, unfit = self.blocks.fill(self.graph.empty, waveforms, padded, narrow=self.graph.widens, rows=rows)
        for name, usual in self.bundle.manifest.encoder.asked().items():
            numbers = np.full(len(inputs["waveform"]), usual, np.int64)
            numbers[: len(asked)] = [each[name] for each in asked]
            inputs[name] = numbers
        audio = sum(map(len, waveforms))
        return Filled(inputs, audio, inputs["waveform"].size - audio, unfit)

    def compile(
        self,
        buckets: Sequence[Bucket],
        outputs: Sequence[str],
        *,
        history: int = 0,
        done: Callable[[Any], None] | None = None,
    ) -> None:
        """Compile the graph for calls of some sizes, as far as this machine has not done so before.

        Args:
            outputs: what calls of these sizes ask for.
            history, done: as of `CompilableGraph.compile`.

        Raises:
            OperatorError: this graph cannot be compiled; says why.
        """
        if not isinstance(self.graph, CompilableGraph):
            raise OperatorError(
                f"graphs of runtime {self.artifact.runtime} are not compiled; those of runtime torch are. Export the "
                "bundle for it (--runtimes torch), and name it (--runtime torch) where it is not the first"
            )

        def log(call: Any) -> None:
            LOGGER.info("compiled %s of %s in %.1f s", call.bucket, self.artifact.files[0], call.compile_s)

        self.graph.compile(buckets, outputs, history=history, done=done or log)

    def compile_asked(
        self, compile: Callable[[Sequence[Bucket], Callable[[Any], None] | None], None], buckets: Sequence[Bucket]
    ) -> None:
        """Have a pipeline compile what its placement asks for; if that fails, it runs as it is, and the log says so.

        Where its placement prepares beside requests, these run as they are until their size is compiled.
        """
        name, preparing = self.artifact.files[0], self._preparing

        def compile_beside(part: "Part") -> None:
            left = set(largest(buckets))

            def done(call: Any) -> None:
                if call.bucket in left:  # and not of the search's own graphs
                    left.discard(call.bucket)
                    part.step(f"{call.bucket.rows} x {call.bucket.samples} samples of {name} in {call.compile_s:.0f} s")

            compile(buckets, done)
            for _ in left:  # which this machine had
                part.step()

        if preparing is not None:
            preparing.begin("compiling", len(largest(buckets)), compile_beside)
            return
        try:
            compile(buckets, None)
        except OperatorError as error:
            LOGGER.warning("%s runs as it is, not compiled as was asked for: %s", name, error)

    def chosen_buckets(
        self, sizes: str, *, longest_s: float = WARM_UP_S, lengths_s: Sequence[float] = (), count: int = LENGTHS
    ) -> Choice:
        """The sizes to compile for whole utterances.

        Args:
            sizes: as of `Placement.compile`.
            longest_s: longer audio gets none.
            lengths_s, count: as of `choose_buckets`; lengths as they usually are if there are none.

        Raises:
            ValueError: `sizes` is nothing like that.
        """
        rate, tail, least = self.blocks.sample_rate, self.blocks.tail, self.blocks.min_samples
        if sizes != AUTO:
            return Choice(read_sizes(sizes, rate, tail=tail, min_samples=least))
        longest_s = min(longest_s, self.max_audio_s)
        usable_s = [each for each in lengths_s if each <= longest_s] or usual_lengths(longest_s)
        return choose_buckets(usable_s, rate, count=count, tail=tail, min_samples=least)

    def warm_up(self, sizes: Iterable[Size], run: Callable[[Size], object], *, side_by_side: bool = True) -> None:
        """Run something of several sizes, so that the first real request finds everything ready; it is not logged.

        Args:
            side_by_side: make as many calls at once as there will be later, so that the memory for all of them is found
                now. Not for what spreads its work over threads by itself.
        """
        for size in sizes:
            self.crew.map(run, [size] * (self.crew.size if side_by_side else 1))
        self.work.take()

    def warm_up_on_silence(self, longest_s: float, outputs: Sequence[str], take: Callable[[Outputs], object]) -> None:
        """Warm up on silence of several lengths up to `longest_s`, whose outputs `take` uses."""
        if self.graph.widens:  # large calls
            prepare()
        compiled = self.graph.buckets_for(outputs)

        def run(bucket: Bucket) -> None:
            # What is compiled is recorded, once for both types.
            for each in (np.float32, np.int16) if self.graph.widens and bucket not in compiled else (np.float32,):
                silence: Samples = np.zeros(bucket.samples, each)  # type: ignore[assignment]  # of either
                inputs = self.filled([silence], bucket.samples, bucket.rows).inputs
                with self.budget.call(bucket.rows, bucket.samples):
                    computed = self.compute(inputs, outputs)
                take(first_rows(computed, 1))

        longest = int(min(longest_s, self.max_audio_s) * self.bundle.manifest.sample_rate)
        beyond = max((each.samples for each in compiled), default=0)  # what is no longer is padded to it
        lengths = self.blocks.lengths_to_warm_up(longest, self.limits.steps_per_octave)
        # The largest first, so that recordings of smaller ones fit into the memory that theirs leave on a GPU.
        large_first = sorted(compiled, key=lambda each: -each.rows * each.samples)
        self.warm_up([*large_first, *(Bucket(1, length) for length in lengths if length > beyond)], run)

    def _give_back(self) -> None:
        self.graph.give_back(self.filled([np.zeros(0, np.float32)], self.blocks.min_samples).inputs)


def first_rows(outputs: Outputs, count: int) -> Outputs:
    """The outputs of the first rows of a call; what is held on a device keeps all, since searches name their rows."""
    return {name: rows[:count] if isinstance(rows, np.ndarray) else rows for name, rows in outputs.items()}
