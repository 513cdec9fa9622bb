"""What pipelines for whole utterances have in common: a graph, the calls that a pile of audio is cut into, their work.

waveforms of any lengths  ->  graph calls, side by side  ->  what the graph says of each
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.pipelines.graphs.batching import Batch, BatchLimits
from tritone.pipelines.graphs.blocks import Blocks
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array

DEFAULT_MAX_AUDIO_S = 300.0
WARM_UP_S = 30.0  # of the longest audio that a pipeline is warmed up with


class UtterancePipeline:
    """Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
        placement: Placement = ON_CPU,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            bundle: an opened bundle.
            max_audio_s: the longest utterance that callers let through, in seconds; `warm_up` goes up to it. It becomes
                that of the graph, where this has a shorter one of its own, as engines do.
            limits: what one graph call may take; by default what suits the device.
            placement: which graph is run, and where.

        Raises:
            BundleError: the bundle has no graph for whole utterances, or one that cannot be opened or does not fit its
                manifest.
            OperatorError: the device is not available.
        """
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.work = WorkLog(self.sample_rate)
        self.placement = placement
        self.artifact, self._graph = open_chosen(bundle, "encoder", placement)
        self._empty = self._graph.empty
        self._crew = Crew(self._graph.concurrency)
        self._blocks = Blocks(bundle.manifest, self._graph.inputs["waveform"])
        if limits is None:
            size, is_embedding = bundle.num_bytes(self.artifact), bundle.manifest.kind == "embedding"
            limits = BatchLimits.for_device(placement.device, size, like_even=is_embedding)
        self.limits = self._blocks.within(limits)
        self.max_audio_s = min(max_audio_s, self._blocks.max_audio_s)

    def _compute(
        self,
        waveforms: Sequence[Waveform],
        outputs_for: Callable[[Sequence[int]], Sequence[str]],
        take: Callable[[Sequence[int], dict[str, Array]], None],
    ) -> None:
        """Run the graph on waveforms, each at least as long as it takes.

        Args:
            outputs_for: which outputs of the graph are wanted of waveforms, told by their places.
            take: gets those places, and the outputs by name; called from several threads at once.
        """

        def run(batch: Batch) -> CallWork:
            heard = [waveforms[index] for index in batch.indices]
            outputs = outputs_for(batch.indices)
            return self._call(heard, batch.num_samples, outputs, lambda results: take(batch.indices, results))

        start = time.perf_counter()
        calls = self._crew.map(run, self._blocks.plan([len(each) for each in waveforms], self.limits))
        self.work.add(calls, time.perf_counter() - start)

    def _call(
        self,
        waveforms: Sequence[Waveform],
        padded: int,
        outputs: Sequence[str],
        take: Callable[[dict[str, Array]], object],
    ) -> CallWork:
        start = time.perf_counter()
        inputs = self._blocks.fill(self._empty, waveforms, padded)
        filled = time.perf_counter()
        results = dict(zip(outputs, self._graph(inputs, outputs), strict=True))
        computed = time.perf_counter()
        take(results)
        found = time.perf_counter()
        audio = sum(map(len, waveforms))
        padding = inputs["waveform"].size - audio
        return CallWork(audio, padding, computed - filled, found - computed, found - start)

    def _run_silence(
        self, longest_s: float, outputs: Sequence[str], take: Callable[[dict[str, Array]], object]
    ) -> None:
        """Run silence of several lengths up to `longest_s`, so that the first real request finds everything ready."""
        longest = int(min(longest_s, self.max_audio_s) * self.sample_rate)
        for padded in self._blocks.lengths_to_warm_up(longest, self.limits.steps_per_octave):
            silence = np.zeros(padded, dtype=np.float32)
            # As many calls at once as there will be later, so that the memory for all of them is found now.
            self._crew.map(lambda each: self._call([each], len(each), outputs, take), [silence] * self._crew.size)
