"""Embeddings of whole utterances, such as a speaker's voice.

waveforms (samples,) float32 in [-1, 1]  ->  (utterances, dim) float32
"""

from collections.abc import Sequence

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import AudioError, BundleError, InputError
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.graphs.batching import BatchLimits
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.utterances import DEFAULT_MAX_AUDIO_S, WARM_UP_S, UtterancePipeline
from tritone.runtime.graph import Array

EMBEDDINGS = ("embeddings",)  # outputs of the graph
NOT_FINITE = (
    "what the network says of this audio is not finite (NaN or infinity), so that it has no embedding. Is it digital "
    "silence, or all of one value? Send audio with a voice in it."
)


class EmbeddingPipeline(UtterancePipeline):
    """Embeds whole utterances. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        limits: BatchLimits | None = None,
        options: EmbedOptions | None = None,
        placement: Placement = ON_CPU,
    ) -> None:
        """Open the graph of a bundle; arguments and errors as of `UtterancePipeline`.

        Args:
            options: how to embed where a call asks for nothing else; by default whole utterances.

        Raises:
            BundleError: the bundle is of another kind.
            InputError: its windows would be too short or too long for the graph.
        """
        manifest = bundle.manifest
        if manifest.kind != "embedding":
            raise BundleError(f"{bundle.path} is of kind {manifest.kind!r}: it writes text and makes no embeddings.")
        if manifest.encoder.tail_samples:
            raise BundleError(
                f"{bundle.path} wants silence after each utterance (encoder.tail_samples "
                f"{manifest.encoder.tail_samples}), which would be heard in its embedding. Export it again."
            )
        super().__init__(bundle, max_audio_s=max_audio_s, limits=limits, placement=placement)
        self.dim = manifest.encoder.output_dim
        self.min_samples = self._blocks.least_embeddable
        # Windows may be of longer audio than the graph takes at once.
        self.max_audio_s = max_audio_s
        self.options = self.check_options(options or EmbedOptions())

    def check_options(self, options: EmbedOptions) -> EmbedOptions:
        """Make sure that the graph takes windows of that length; gives the options back.

        Raises:
            InputError: it does not; says what it takes.
        """
        window_s, least_s = options.window_s, self.min_samples / self.sample_rate
        if window_s and round(window_s * self.sample_rate) < self.min_samples:
            raise InputError(f"window_s is {window_s:g}, but this model needs at least {least_s:.3f} s of audio")
        if window_s and window_s > self._blocks.max_audio_s:
            raise InputError(
                f"window_s is {window_s:g}, but the engine that serves this model takes at most "
                f"{self._blocks.max_audio_s:g} s at once"
            )
        return options

    def check(self, waveform: Waveform, options: EmbedOptions | None = None) -> None:
        """Make sure that a waveform can be embedded, with these options or the pipeline's own.

        Raises:
            AudioError: it is too short for an embedding.
            InputError: an engine was built for shorter ones.
        """
        self._blocks.check_embeddable(len(waveform))
        self._blocks.check((options or self.options).samples(len(waveform), self.sample_rate))

    def embed(self, waveforms: Sequence[Waveform], options: Sequence[EmbedOptions | None] | None = None) -> Array:
        """Embed utterances of any lengths; an embedding does not depend on the others.

        Args:
            waveforms: each (samples,) float32 at `sample_rate`, checked with `check_waveform`.
            options: how to embed each; None takes the pipeline's own.

        Returns:
            (utterances, dim) float32, in the order of the waveforms, not normalised.

        Raises:
            AudioError: a waveform is too short, or what the network says of it is not finite; the message starts with
                its position.
            InputError: a waveform or its windows are too long for the graph, or windows are too short.
        """
        rows = self.embed_each(waveforms, options)
        for index, row in enumerate(rows):
            if isinstance(row, InputError):
                raise type(row)(f"input {index}: {row}") from row
        return np.stack(rows) if rows else np.zeros((0, self.dim), np.float32)  # type: ignore[arg-type]  # no errors

    def embed_each(
        self, waveforms: Sequence[Waveform], options: Sequence[EmbedOptions | None] | None = None
    ) -> list[Array | InputError]:
        """As `embed`, but each utterance has its embedding (dim,), or the error that `embed` would raise for it."""
        if options is None:
            options = [None] * len(waveforms)
        if len(options) != len(waveforms):
            raise ValueError(f"{len(waveforms)} waveforms need as many options, got {len(options)}")
        found: list[Array | InputError] = [AudioError("not embedded")] * len(waveforms)
        windows: list[Waveform] = []
        cut: list[tuple[int, int]] = []  # utterances, and how many windows each has
        for index, (waveform, asked) in enumerate(zip(waveforms, options, strict=True)):
            try:
                chosen = self.options if asked is None else self.check_options(asked)
                self.check(waveform, chosen)
            except InputError as error:
                found[index] = error
                continue
            length, starts = (
                chosen.samples(len(waveform), self.sample_rate),
                chosen.starts(len(waveform), self.sample_rate),
            )
            windows += [waveform[start : start + length] for start in starts]
            cut.append((index, len(starts)))
        embeddings = np.empty((len(windows), self.dim), np.float32)

        def take(places: Sequence[int], results: dict[str, Array]) -> None:
            embeddings[list(places)] = results["embeddings"]

        self._compute(windows, lambda _: EMBEDDINGS, take)
        if len(windows) > len(cut):
            ends = np.cumsum([count for _, count in cut])
            counts = np.diff(ends, prepend=0)
            sums = np.add.reduceat(embeddings, ends - counts, axis=0, dtype=np.float64)
            embeddings = (sums / counts[:, None]).astype(np.float32)
        finite = np.isfinite(embeddings).all(axis=1)
        for (index, _), row, is_finite in zip(cut, embeddings, finite.tolist(), strict=True):
            found[index] = row if is_finite else AudioError(NOT_FINITE)
        return found

    def warm_up(self, max_audio_s: float = WARM_UP_S) -> None:
        """Run silence of several lengths up to `max_audio_s`, so that the first real request finds everything ready."""
        longest = min(max_audio_s, self._blocks.max_audio_s, self.options.window_s or max_audio_s)
        self._run_silence(longest, EMBEDDINGS, len)
