"""Offline recognition, whatever the kind of the model.

waveforms (samples,) float32 in [-1, 1]  ->  transcripts
"""

from collections.abc import Sequence

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.utterances import DEFAULT_MAX_AUDIO_S, WARM_UP_S, UtterancePipeline
from tritone.pipelines.kinds import open_searching
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.readings import utterance
from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript


class OfflinePipeline(UtterancePipeline):
    """Recognises whole utterances. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
        search: SearchSettings | None = None,
        placement: Placement = ON_CPU,
    ) -> None:
        """Open the graph of a bundle; arguments and errors as of `UtterancePipeline`.

        Args:
            search: how to search where a call asks for nothing else; by default greedily.

        Raises:
            BundleError: the bundle has no decoder to search with rescoring, too.
            LanguageModelError: the language model cannot be read or does not fit the vocabulary.
        """
        super().__init__(bundle, max_audio_s=max_audio_s, limits=limits, placement=placement)
        self.searching = open_searching(bundle, self._graph, search, placement)

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

        def options_of(places: Sequence[int]) -> list[SearchOptions]:
            return [chosen[audible[place]] for place in places]

        def take(places: Sequence[int], results: dict[str, Array]) -> None:
            for place, nbest in zip(places, self.searching.search(results, options_of(places)), strict=True):
                hypotheses[audible[place]] = nbest

        self._compute(
            [waveforms[index] for index in audible], lambda places: self.searching.outputs(options_of(places)), take
        )
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

    def warm_up(self, max_audio_s: float = WARM_UP_S) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        self.searching.warm_up()
        options = [self.searching.options]
        self._run_silence(
            max_audio_s, self.searching.outputs(options), lambda results: self.searching.search(results, options)
        )
