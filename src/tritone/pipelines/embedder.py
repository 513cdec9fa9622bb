"""Embeddings in process: the same pipeline that serves, without a server.

embedder = Embedder(Bundle.open("demo-speaker"))
embedder.embed(["a.wav", "b.flac"])     ->  (2, dim) float32
embedder.similarity("a.wav", "b.wav")   ->  their cosine
"""

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tritone.bundle.bundle import Bundle
from tritone.errors import AudioError, BundleError, InputError
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.embedding import EmbeddingPipeline
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.utterances import DEFAULT_MAX_AUDIO_S
from tritone.pipelines.sources import Input, Sources, is_single

Embeddings = npt.NDArray[np.float32]


class Embedder:
    """A speaker model ready to embed. Its graph is opened when it is first needed; may be used from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        options: EmbedOptions | None = None,
    ) -> None:
        """Take an opened bundle, and the options of `tritone.load_embedder`; windows are told in `options`.

        Raises:
            BundleError: the model makes no embeddings.
        """
        if bundle.manifest.kind != "embedding":
            raise BundleError(
                f"{bundle.path} is of kind {bundle.manifest.kind!r}: it writes text and makes no embeddings. Load it "
                "with tritone.load, or take a bundle of a speaker model."
            )
        self.bundle = bundle
        self.dim = bundle.manifest.encoder.output_dim
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = max_audio_s
        self._options = options or EmbedOptions()
        self._sources = Sources(self.sample_rate, max_audio_s)
        self._placement = placement
        self._lock = threading.Lock()
        self._pipeline: EmbeddingPipeline | None = None

    @property
    def pipeline(self) -> EmbeddingPipeline:
        """The pipeline behind it; see there for what opening it raises."""
        with self._lock:
            if self._pipeline is None:
                self._pipeline = EmbeddingPipeline(
                    self.bundle, max_audio_s=self.max_audio_s, options=self._options, placement=self._placement
                )
            return self._pipeline

    def embed(
        self, inputs: Sequence[Input], sample_rate: int | None = None, options: EmbedOptions | None = None
    ) -> Embeddings:
        """Embed audio files and waveforms.

        Args:
            inputs: paths, or arrays (samples,) of a floating type in [-1, 1]; both kinds may be mixed.
            sample_rate: of the arrays, in Hz; None means the model's. Other rates are resampled; files know their own.
            options: how to embed; None takes what the embedder was loaded with.

        Returns:
            (inputs, dim), in their order, not normalised.

        Raises:
            AudioError: an input cannot be used, or is too short; the message starts with its position. Nothing is
                returned then.
            InputError: the model does not take windows of that length.
            ValueError: `sample_rate` is no rate that audio has, or `inputs` is a single path or array.
        """
        if is_single(inputs):
            raise ValueError("embed takes a sequence of paths or arrays; put a single one in a list")
        rate = self._sources.rate(sample_rate)
        if options is not None:
            self.pipeline.check_options(options)  # before files are read
        rows: list[Embeddings] = []
        for pile in self._sources.piles(inputs, rate):
            for row in self.pipeline.embed_each(pile, [options] * len(pile)):
                if isinstance(row, InputError):
                    raise type(row)(f"input {len(rows)}: {row}") from row
                rows.append(row)
        return np.stack(rows) if rows else np.zeros((0, self.dim), np.float32)

    def similarity(self, first: Input, second: Input, sample_rate: int | None = None) -> float:
        """How alike two recordings are: the cosine of their embeddings, in [-1, 1]; arguments and errors as of `embed`.

        Raises:
            AudioError: the embedding of one is zero, too, and has no direction.
        """
        a, b = self.embed([first, second], sample_rate).astype(np.float64)
        norm = np.linalg.norm(a) * np.linalg.norm(b)
        if norm == 0:
            raise AudioError("an embedding is zero, and like nothing; is the audio silence?")
        return float(np.clip(a @ b / norm, -1.0, 1.0))
