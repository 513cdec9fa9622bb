"""Offline recognition, whatever the kind of the model.

waveforms (samples,) float32 in [-1, 1]  ->  transcripts
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tritone.audio.waveform import Samples, check_level
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, TritoneError
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S, WARM_UP_S, GraphRunner, Outputs
from tritone.pipelines.isolation import prepared, values, with_options
from tritone.pipelines.kind import kind_of
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.readings import utterance
from tritone.pipelines.searching.together import together
from tritone.runtime.graph import Array, Bucket
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript


class OfflinePipeline:
    """Recognises whole utterances. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
        search: SearchSettings | None = None,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            placement: which graphs are run, and where.
            max_audio_s: the longest utterance that callers let through, in seconds; `warm_up` goes up to it. It becomes
                that of the graph, where this has a shorter one of its own, as engines do.
            limits: what one graph call may take; by default what suits the device.
            search: how to search where a call asks for nothing else; by default greedily.

        Raises:
            BundleError: the bundle has no graph for whole utterances, or one that cannot be opened or does not fit its
                manifest; or it has no decoder to search with rescoring.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
            OperatorError: the device is not available.
        """
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.runner = GraphRunner(bundle, "encoder", placement, limits=limits)
        self.work = self.runner.work
        self.max_audio_s = min(max_audio_s, self.runner.max_audio_s)
        self.searching = kind_of(bundle).open_searching(bundle, self.runner.graph, search, placement)
        if placement.compile:
            self.runner.compile_asked(self.compile, self.runner.chosen_buckets(placement.compile).buckets)

    def compile(self, buckets: Sequence[Bucket], done: Callable[[Any], None] | None = None) -> None:
        """Compile the network for calls of some sizes, with the outputs that the pipeline's own search needs.

        Graphs of the search are compiled for what the network returns then. Arguments and errors as of
        `GraphRunner.compile`.
        """
        outputs = self._outputs([self.searching.options])
        self.runner.compile(buckets, outputs, done=done)

        def compute(samples: int) -> Mapping[str, Any]:
            inputs = self.runner.filled([np.zeros(samples, np.float32)], samples).inputs
            return self.runner.compute(inputs, outputs)

        self.searching.compile(buckets, compute, done or (lambda call: None))

    def check(self, waveform: Samples) -> None:
        """Make sure that a waveform is not too long for an engine or the memory; raises `InputError` if it is."""
        self.runner.check(len(waveform))

    def run(
        self, waveforms: Sequence[Samples], options: Sequence[SearchOptions | None] | None = None
    ) -> list[Transcript | TritoneError]:
        """Recognise utterances of any lengths, each by itself: its result does not depend on the others.

        Args:
            waveforms: each (samples,) float32 or int16 at `sample_rate`. What is too short for one encoder frame gives
                an empty text.
            options: how to search in each; None takes the pipeline's own.

        Returns:
            For each utterance its transcript, or the error that it caused: `InputError` where its options ask for what
            the model does not have, or where it is longer than the graph takes; `AudioError` where its samples are not
            finite or far beyond [-1, 1].
        """
        return prepared(self._checked, self._recognize, with_options(waveforms, options))

    def recognize(
        self, waveforms: Sequence[Samples], options: Sequence[SearchOptions | None] | None = None
    ) -> list[Transcript]:
        """All transcripts that `run` returns; raises the first error among them instead."""
        return values(self.run(waveforms, options))

    def log_probs(self, waveform: Samples) -> Array:
        """Log-probabilities of the tokens of a CTC model, frame by frame.

        Args:
            waveform: as of `run`.

        Returns:
            (frames, vocab) float32, natural logarithms; no frames where the audio is too short for one. The silence
            that every utterance gets at its end has frames too.

        Raises:
            InputError: the model is no CTC model, or the waveform is longer than its graph takes.
        """
        self.check(waveform)
        if "log_probs" not in self.runner.graph.outputs:
            kind = self.bundle.manifest.kind
            raise InputError(f"a model of kind {kind} has no probabilities of single frames; CTC models have")
        found = np.zeros((0, len(self.bundle.vocabulary.tokens)), np.float32)
        if not self.runner.blocks.is_audible(len(waveform)):
            return found

        def take(indices: Sequence[int], outputs: Outputs) -> None:
            nonlocal found
            found = outputs["log_probs"][0, : outputs["num_frames"][0]]

        self.runner.run_waveforms([waveform], lambda _: ("log_probs", "num_frames"), take)
        return found

    def warm_up(self, max_audio_s: float = WARM_UP_S) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        self.searching.warm_up()
        options = [self.searching.options]
        self.runner.warm_up_on_silence(
            min(max_audio_s, self.max_audio_s),
            self._outputs(options),
            lambda outputs: self.searching.search(outputs, options),
        )

    def _outputs(self, options: Sequence[SearchOptions]) -> tuple[str, ...]:
        """Outputs of the graph for rows with these options."""
        tags = ("tags",) if self.bundle.manifest.encoder.tags else ()
        return (*self.searching.outputs(options), *tags)

    def _checked(self, item: tuple[Samples, SearchOptions | None]) -> tuple[Samples, SearchOptions]:
        waveform, options = item
        self.check(waveform)
        if not self.runner.blocks.is_audible(len(waveform)):  # nothing else reads its samples
            check_level(waveform, sample_rate=self.sample_rate)
        return waveform, self.searching.check(options)

    def _recognize(self, jobs: Sequence[tuple[Samples, SearchOptions]]) -> list[Transcript | TritoneError]:
        hypotheses: list[list[Hypothesis]] = [[Hypothesis((), 0.0)] for _ in jobs]
        tags: list[Sequence[int]] = [() for _ in jobs]
        encoder = self.bundle.manifest.encoder
        audible = [index for index, (waveform, _) in enumerate(jobs) if self.runner.blocks.is_audible(len(waveform))]

        def options_of(indices: Sequence[int]) -> list[SearchOptions]:
            return [jobs[audible[index]][1] for index in indices]

        def search(indices: Sequence[int], outputs: Mapping[str, Array]) -> None:
            for index, nbest in zip(indices, self.searching.search(outputs, options_of(indices)), strict=True):
                hypotheses[audible[index]] = nbest
            for index, row in zip(indices, outputs["tags"].tolist(), strict=True) if "tags" in outputs else ():
                tags[audible[index]] = row

        calls: list[tuple[Sequence[int], Outputs]] = []
        unfit = self.runner.run_waveforms(
            [jobs[index][0] for index in audible],
            lambda indices: self._outputs(options_of(indices)),
            (lambda *call: calls.append(call)) if self.searching.waits_for_all else search,
            [encoder.asked(jobs[index][1].language, jobs[index][1].use_itn) for index in audible],
        )
        if calls:
            start = time.perf_counter()
            order = [index for indices, _ in calls for index in indices]
            for members, joined in together([outputs for _, outputs in calls]):
                search([order[member] for member in members], joined)
            self.work.add_search(time.perf_counter() - start)
        found: list[Transcript | TritoneError] = [
            utterance(self.bundle, nbest, len(waveform), options, row)
            for nbest, row, (waveform, options) in zip(hypotheses, tags, jobs, strict=True)
        ]
        for index, error in unfit.items():
            found[audible[index]] = error
        return found
