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
from tritone.pipelines.assembly import ReadingBuilder, transcript
from tritone.pipelines.batching import Batch, BatchLimits, bucket_length, plan_batches
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
            max_audio_s: the longest utterance that callers let through, in seconds; `warm_up` goes up to it.
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
        self.max_audio_s = max_audio_s
        self.limits = limits or BatchLimits.for_device(device)
        self.work = WorkLog(self.sample_rate)
        place: dict[str, Any] = {"runtime": runtime, "precision": precision, "device": device, "threads": threads}
        self.artifact, self._graph = open_chosen(bundle, "encoder", **place)
        self._empty = self._graph.empty
        self.searching = open_searching(bundle, self._graph, search, place)
        self._crew = Crew(self._graph.concurrency)
        self._min_samples = bundle.manifest.encoder.min_samples
        self._tail = bundle.manifest.encoder.tail_samples

    def recognize(
        self, waveforms: Sequence[Waveform], options: Sequence[SearchOptions | None] | None = None
    ) -> list[Transcript]:
        """Recognise utterances of any lengths; the results come in their order.

        Args:
            waveforms: each (samples,) float32 at `sample_rate`, checked with `check_waveform`. What is too short for
                one encoder frame gives an empty text.
            options: how to search in each; None takes the pipeline's own.

        Raises:
            InputError: options ask for what the model does not have; `searching.check` tells it beforehand.
        """
        chosen = [self.searching.check(each) for each in options or [None] * len(waveforms)]
        if len(chosen) != len(waveforms):
            raise ValueError(f"{len(waveforms)} waveforms need as many options, got {len(chosen)}")
        hypotheses: list[list[Hypothesis]] = [[Hypothesis((), 0.0)] for _ in waveforms]
        audible = [index for index, waveform in enumerate(waveforms) if self._is_audible(len(waveform))]
        lengths = [len(waveforms[index]) + self._tail for index in audible]
        plan = plan_batches(
            lengths,
            self.limits,
            sample_rate=self.sample_rate,
            min_samples=self._min_samples,
            equal=self.bundle.manifest.encoder.equal_lengths,
        )

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
            self._transcript(found, len(waveform), each)
            for found, waveform, each in zip(hypotheses, waveforms, chosen, strict=True)
        ]

    def warm_up(self, max_audio_s: float = 30.0) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        self.searching.warm_up()
        longest = int(min(max_audio_s, self.max_audio_s) * self.sample_rate)
        lengths = [longest]
        while lengths[-1] >= 2 * self._min_samples:
            lengths.append(lengths[-1] // 2)
        for length in reversed(lengths):
            padded = bucket_length(max(length, self._min_samples), self.limits.steps_per_octave)
            silence = [np.zeros(padded, dtype=np.float32)]
            # As many calls at once as there will be later, so that the memory for all of them is found now.
            run = partial(self._run, padded=padded, options=[self.searching.options])
            self._crew.map(run, [silence] * self._crew.size)

    def _is_audible(self, num_samples: int) -> bool:
        """Is there a whole feature frame of audio, and with the tail a frame of the encoder?"""
        manifest = self.bundle.manifest
        return num_samples >= manifest.features.frame_length and num_samples + self._tail >= self._min_samples

    def _run(
        self, waveforms: Sequence[Waveform], padded: int, options: Sequence[SearchOptions]
    ) -> tuple[list[list[Hypothesis]], CallWork]:
        start = time.perf_counter()
        block = self._empty((len(waveforms), padded), np.float32)
        for row, waveform in zip(block, waveforms, strict=True):
            row[: len(waveform)] = waveform
            row[len(waveform) :] = 0
        num_samples = np.array([min(len(waveform) + self._tail, padded) for waveform in waveforms], dtype=np.int64)
        inputs: dict[str, Array] = {"waveform": block, "num_samples": num_samples}
        filled = time.perf_counter()
        outputs = self.searching.outputs(options)
        results = dict(zip(outputs, self._graph(inputs, outputs), strict=True))
        computed = time.perf_counter()
        hypotheses = self.searching.search(results, options)
        found = time.perf_counter()
        audio = sum(map(len, waveforms))
        return hypotheses, CallWork(audio, block.size - audio, computed - filled, found - computed, found - start)

    def _transcript(self, hypotheses: Sequence[Hypothesis], num_samples: int, options: SearchOptions) -> Transcript:
        builder = ReadingBuilder(self.bundle.vocabulary, self.bundle.manifest.frame_s)
        seconds = num_samples / self.sample_rate
        return transcript(hypotheses, lambda each: builder.reading(each.tokens), options, seconds)
