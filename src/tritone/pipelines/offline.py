"""Offline recognition, whatever the kind of the model.

waveforms (samples,) float32 in [-1, 1]  ->  transcripts
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError
from tritone.pipelines.assembly import utterance
from tritone.pipelines.batching import Batch, BatchLimits
from tritone.pipelines.blocks import Blocks
from tritone.pipelines.choice import open_chosen
from tritone.pipelines.kinds import open_searching
from tritone.pipelines.searching import SearchSettings
from tritone.pipelines.work import CallWork, WorkLog
from tritone.runtime.crew import Crew
from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

DEFAULT_MAX_AUDIO_S = 300.0


class OfflinePipeline:
    """Recognises whole utterances. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str = "cpu",
        threads: int | None = None,
        runtime: str | None = None,
        precision: str | None = None,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
        search: SearchSettings | None = None,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            bundle: an opened bundle.
            device, threads, runtime, precision: see `open_chosen`.
            max_audio_s: the longest utterance that callers let through, in seconds; `warm_up` goes up to it. It becomes
                that of the graph, where this has a shorter one of its own, as engines do.
            limits: what one graph call may take; by default what suits the device.
            search: how to search where a call asks for nothing else; by default greedily.

        Raises:
            BundleError: the bundle has no offline encoder, or one that cannot be opened or does not fit its manifest;
                or it has no decoder to search with rescoring.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
            OperatorError: the device is not available.
            ValueError: there is no such device, runtime or precision.
        """
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.work = WorkLog(self.sample_rate)
        place: dict[str, Any] = {"runtime": runtime, "precision": precision, "device": device, "threads": threads}
        self.artifact, self._graph = open_chosen(bundle, "encoder", **place)
        self._empty = self._graph.empty
        self.searching = open_searching(bundle, self._graph, search, place)
        self._crew = Crew(self._graph.concurrency)
        self._blocks = Blocks(bundle.manifest, self._graph.inputs["waveform"])
        self.limits = self._blocks.within(limits or BatchLimits.for_device(device, bundle.num_bytes(self.artifact)))
        self.max_audio_s = min(max_audio_s, self._blocks.max_audio_s)

    def check(self, waveform: Waveform) -> None:
        """Make sure that the graph takes a waveform; raises `InputError` if an engine was built for shorter ones."""
        self._blocks.check(len(waveform))

    def recognize(
        self, waveforms: Sequence[Waveform], options: Sequence[SearchOptions | None] | None = None
    ) -> list[Transcript]:
        """Recognise utterances of any lengths; the results come in their order.

        Args:
            waveforms: each (samples,) float32 at `sample_rate`, checked with `check_waveform`. What is too short for
                one encoder frame gives an empty text.
            options: how to search in each; None takes the pipeline's own.

        Raises:
            InputError: options ask for what the model does not have, or a waveform is longer than the graph takes;
                `searching.check` and `check` tell it beforehand.
        """
        for waveform in waveforms:
            self.check(waveform)
        chosen = [self.searching.check(each) for each in options or [None] * len(waveforms)]
        if len(chosen) != len(waveforms):
            raise ValueError(f"{len(waveforms)} waveforms need as many options, got {len(chosen)}")
        hypotheses: list[list[Hypothesis]] = [[Hypothesis((), 0.0)] for _ in waveforms]
        audible = [index for index, waveform in enumerate(waveforms) if self._blocks.is_audible(len(waveform))]
        plan = self._blocks.plan([len(waveforms[index]) for index in audible], self.limits)

        def run(batch: Batch) -> CallWork:
            indices = [audible[position] for position in batch.indices]
            found, work = self._run(
                [waveforms[index] for index in indices], batch.num_samples, [chosen[index] for index in indices]
            )
            for index, nbest in zip(indices, found, strict=True):
                hypotheses[index] = nbest
            return work

        start = time.perf_counter()
        calls = self._crew.map(run, plan)
        self.work.add(calls, time.perf_counter() - start)
        return [
            utterance(self.bundle, found, len(waveform), each)
            for found, waveform, each in zip(hypotheses, waveforms, chosen, strict=True)
        ]

    def log_probs(self, waveform: Waveform) -> Array:
        """What a CTC model says of each frame of one utterance.

        Args:
            waveform: as of `recognize`.

        Returns:
            (frames, vocab) float32, natural logarithms; no frames where the audio is too short for one. The silence
            that every utterance gets at its end has frames too.

        Raises:
            InputError: the model is no CTC model, or the waveform is longer than its graph takes.
        """
        self.check(waveform)
        if "log_probs" not in self._graph.outputs:
            kind = self.bundle.manifest.kind
            raise InputError(f"a model of kind {kind} has no probabilities of single frames; CTC models have")
        if not self._blocks.is_audible(len(waveform)):
            return np.zeros((0, len(self.bundle.vocabulary.tokens)), np.float32)
        (batch,) = self._blocks.plan([len(waveform)], self.limits)
        inputs = self._blocks.fill(self._empty, [waveform], batch.num_samples)
        log_probs, num_frames = self._graph(inputs, ("log_probs", "num_frames"))
        result: Array = log_probs[0, : num_frames[0]]
        return result

    def warm_up(self, max_audio_s: float = 30.0) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        self.searching.warm_up()
        longest = int(min(max_audio_s, self.max_audio_s) * self.sample_rate)
        for padded in self._blocks.lengths_to_warm_up(longest, self.limits.steps_per_octave):
            silence = [np.zeros(padded, dtype=np.float32)]
            # As many calls at once as there will be later, so that the memory for all of them is found now.
            run = partial(self._run, padded=padded, options=[self.searching.options])
            self._crew.map(run, [silence] * self._crew.size)

    def _run(
        self, waveforms: Sequence[Waveform], padded: int, options: Sequence[SearchOptions]
    ) -> tuple[list[list[Hypothesis]], CallWork]:
        start = time.perf_counter()
        inputs = self._blocks.fill(self._empty, waveforms, padded)
        filled = time.perf_counter()
        outputs = self.searching.outputs(options)
        results = dict(zip(outputs, self._graph(inputs, outputs), strict=True))
        computed = time.perf_counter()
        hypotheses = self.searching.search(results, options)
        found = time.perf_counter()
        audio = sum(map(len, waveforms))
        padding = inputs["waveform"].size - audio
        return hypotheses, CallWork(audio, padding, computed - filled, found - computed, found - start)
