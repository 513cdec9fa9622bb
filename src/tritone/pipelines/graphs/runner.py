"""One graph of a bundle at work: it is opened, its calls are planned and made side by side, and all of it is logged.

waveforms of any lengths  ->  graph calls  ->  outputs for each
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tritone.audio.waveform import Samples, check_level
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import AudioError
from tritone.pipelines.graphs.batching import Batch, BatchLimits
from tritone.pipelines.graphs.blocks import Blocks
from tritone.pipelines.graphs.budget import Budget
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.isolation import attempt
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array

DEFAULT_MAX_AUDIO_S = 300.0
WARM_UP_S = 30.0  # of the longest audio that a pipeline is warmed up with

Call = TypeVar("Call")
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
        self.crew = Crew(self.graph.concurrency)
        self.budget = Budget(
            self.artifact.memory if placement.device == "cpu" and role == "encoder" else None,
            bundle.manifest.sample_rate,
            self._give_back,
            megabytes=placement.memory_mb,
            calls=self.crew.size,
            usual_s=self.limits.max_padded_s,
        )

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

    def run_waveforms(
        self,
        waveforms: Sequence[Samples],
        outputs_for: Callable[[Sequence[int]], Sequence[str]],
        take: Callable[[Sequence[int], Outputs], object],
    ) -> dict[int, AudioError]:
        """Run the graph on waveforms of any lengths, each at least as long as it takes.

        Args:
            outputs_for: which outputs are wanted for waveforms, by their indices.
            take: uses the outputs for waveforms, by their indices; called from several threads at once.

        Returns:
            The errors of waveforms, by their indices, whose samples are not finite or far beyond [-1, 1]. In their
            place silence was computed.
        """
        errors: dict[int, AudioError] = {}

        def fill(batch: Batch) -> Filled:
            filled = self.filled([waveforms[index] for index in batch.indices], batch.num_samples)
            for row in filled.unfit:
                filled.inputs["waveform"][row] = 0
                fault = attempt(self._check_level, waveforms[batch.indices[row]])
                if isinstance(fault, AudioError):
                    errors[batch.indices[row]] = fault
            return filled

        def compute(batch: Batch, inputs: Mapping[str, Array]) -> Outputs:
            with self.budget.call(len(batch.indices), batch.num_samples):
                return self.compute(inputs, outputs_for(batch.indices))

        try:
            self.run(
                self.blocks.plan([len(each) for each in waveforms], self.limits, self.budget.fits),
                fill,
                compute,
                lambda batch, outputs: take(batch.indices, outputs),
            )
        finally:
            self.budget.settle()
        return errors

    def _check_level(self, waveform: Samples) -> None:
        check_level(waveform, sample_rate=self.bundle.manifest.sample_rate)

    def filled(self, waveforms: Sequence[Samples], padded: int) -> Filled:
        """The inputs of a call for some waveforms, padded to so many samples."""
        inputs, unfit = self.blocks.fill(self.graph.empty, waveforms, padded, narrow=self.graph.widens)
        audio = sum(map(len, waveforms))
        return Filled(inputs, audio, inputs["waveform"].size - audio, unfit)

    def warm_up(self, sizes: Iterable[int], run: Callable[[int], object], *, side_by_side: bool = True) -> None:
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

        types: tuple[type[np.float32 | np.int16], ...] = (np.float32, np.int16) if self.graph.widens else (np.float32,)

        def run(padded: int) -> None:
            for each in types:
                silence: Samples = np.zeros(padded, each)  # type: ignore[assignment]  # of either
                inputs = self.filled([silence], padded).inputs
                with self.budget.call(1, padded):
                    computed = self.compute(inputs, outputs)
                take(computed)

        longest = int(min(longest_s, self.max_audio_s) * self.bundle.manifest.sample_rate)
        self.warm_up(self.blocks.lengths_to_warm_up(longest, self.limits.steps_per_octave), run)

    def _give_back(self) -> None:
        self.graph.give_back(self.filled([np.zeros(0, np.float32)], self.blocks.min_samples).inputs)
