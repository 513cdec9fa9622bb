"""Embeddings of whole utterances, such as a speaker's voice.

waveforms (samples,) float32 in [-1, 1]  ->  (utterances, dim) float32
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.errors import AudioError, BundleError, InputError, TritoneError
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S, WARM_UP_S, GraphRunner, Outputs
from tritone.pipelines.isolation import prepared, values, with_options
from tritone.pipelines.kind import kind_of
from tritone.runtime.graph import Array, Bucket

EMBEDDINGS = ("embeddings",)  # outputs of the graph
NOT_FINITE = (
    "what the network says of this audio is not finite (NaN or infinity), so that it has no embedding. Is it digital "
    "silence, or all of one value? Send audio with a voice in it."
)


class EmbeddingPipeline:
    """Embeds whole utterances. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
        options: EmbedOptions | None = None,
    ) -> None:
        """Open the graph of a bundle.

        Args:
            placement: which graph is run, and where.
            max_audio_s: the longest utterance that callers let through, in seconds; `warm_up` goes up to it.
            limits: what one graph call may take; by default what suits the device.
            options: how to embed where a call asks for nothing else; by default whole utterances.

        Raises:
            BundleError: the bundle has no graph that makes embeddings, or one that cannot be opened or does not fit its
                manifest.
            InputError: its windows would be too short or too long for the graph.
            OperatorError: the device is not available.
        """
        manifest = bundle.manifest
        if manifest.find(EmbeddingPart) is None:
            kind = kind_of(bundle)
            raise BundleError(f"{bundle.path} is of kind {kind.name!r}: {kind.does} and makes no embeddings.")
        if manifest.encoder.tail_samples:
            raise BundleError(
                f"{bundle.path} wants silence after each utterance (encoder.tail_samples "
                f"{manifest.encoder.tail_samples}), which would be heard in its embedding. Export it again."
            )
        self.bundle = bundle
        self.sample_rate = manifest.sample_rate
        self.runner = GraphRunner(bundle, "encoder", placement, limits=limits, like_even=True)
        self.work = self.runner.work
        self.dim = manifest.encoder.output_dim
        self.min_samples = self.runner.blocks.least_embeddable
        self.max_audio_s = max_audio_s  # not that of the graph: windows may be of longer audio than it takes at once
        self.options = self.check_options(options or EmbedOptions())
        if placement.compile:
            self.runner.compile_asked(self.compile, self.runner.chosen_buckets(placement.compile).buckets)

    def compile(self, buckets: Sequence[Bucket], done: Callable[[Any], None] | None = None) -> None:
        """Compile the network for calls of some sizes; arguments and errors as of `GraphRunner.compile`."""
        self.runner.compile(buckets, EMBEDDINGS, done=done)

    def check_options(self, options: EmbedOptions) -> EmbedOptions:
        """The same options, after making sure that the graph takes windows of that length.

        Raises:
            InputError: it does not; says what it takes.
        """
        window_s, least_s = options.window_s, self.min_samples / self.sample_rate
        if window_s and options.samples(self.min_samples, self.sample_rate) < self.min_samples:
            raise InputError(f"window_s is {window_s:g}, but this model needs at least {least_s:.3f} s of audio")
        if window_s and window_s > self.runner.blocks.max_audio_s:
            raise InputError(
                f"window_s is {window_s:g}, but the engine that serves this model takes at most "
                f"{self.runner.blocks.max_audio_s:g} s at once"
            )
        return options

    def check(self, waveform: Samples, options: EmbedOptions | None = None) -> None:
        """Make sure that a waveform can be embedded, with these options or the pipeline's own.

        Raises:
            AudioError: it is too short for an embedding.
            InputError: it is too long for an engine or the memory.
        """
        self.runner.blocks.check_embeddable(len(waveform))
        self.runner.check((options or self.options).samples(len(waveform), self.sample_rate))

    def run(
        self, waveforms: Sequence[Samples], options: Sequence[EmbedOptions | None] | None = None
    ) -> list[Array | TritoneError]:
        """Embed utterances of any lengths, each by itself: its embedding does not depend on the others.

        Args:
            waveforms: each (samples,) float32 at `sample_rate`, checked with `check_waveform`.
            options: how to embed each; None takes the pipeline's own.

        Returns:
            For each utterance its embedding (dim,) float32, not normalised, or the error that it caused: `AudioError`
            where it is too short or the network's output is not finite, `InputError` where it or its windows are too
            long for the graph, or its windows too short.
        """
        return prepared(self._windows, self._embed, with_options(waveforms, options))

    def embed(self, waveforms: Sequence[Samples], options: Sequence[EmbedOptions | None] | None = None) -> Array:
        """All embeddings that `run` returns, (utterances, dim); raises the first error among them instead."""
        rows = values(self.run(waveforms, options))
        return np.stack(rows) if rows else np.zeros((0, self.dim), np.float32)

    def warm_up(self, max_audio_s: float = WARM_UP_S) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        longest = min(
            max_audio_s, self.max_audio_s, self.runner.blocks.max_audio_s, self.options.window_s or max_audio_s
        )
        self.runner.warm_up_on_silence(longest, EMBEDDINGS, len)

    def _windows(self, item: tuple[Samples, EmbedOptions | None]) -> list[Samples]:
        """The parts of a waveform that are embedded, after checking that they can be."""
        waveform, asked = item
        options = self.options if asked is None or asked is self.options else self.check_options(asked)
        self.check(waveform, options)
        if not options.window_s:
            return [waveform]
        length = options.samples(len(waveform), self.sample_rate)
        return [waveform[start : start + length] for start in options.starts(len(waveform), self.sample_rate)]

    def _embed(self, jobs: Sequence[list[Samples]]) -> list[Array | TritoneError]:
        """One embedding for each job, the mean over its windows."""
        windows = [window for job in jobs for window in job]
        embeddings = np.empty((len(windows), self.dim), np.float32)

        def take(indices: Sequence[int], outputs: Outputs) -> None:
            embeddings[list(indices)] = outputs["embeddings"]

        unfit = self.runner.run_waveforms(windows, lambda _: EMBEDDINGS, take)
        if len(windows) > len(jobs):
            counts = np.array([len(job) for job in jobs])
            sums = np.add.reduceat(embeddings, np.cumsum(counts) - counts, axis=0, dtype=np.float64)
            embeddings = (sums / counts[:, None]).astype(np.float32)
        finite = np.isfinite(embeddings).all(axis=1).tolist()
        found: list[Array | TritoneError] = [
            row if is_finite else AudioError(NOT_FINITE) for row, is_finite in zip(embeddings, finite, strict=True)
        ]
        if unfit:
            owners = [index for index, job in enumerate(jobs) for _ in job]
            for window, error in unfit.items():
                found[owners[window]] = error
        return found
