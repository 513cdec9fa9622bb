"""Embeddings in process: the same pipeline that serves, without a server.

embedder = tritone.load("demo-speaker")
embedder.embed(["a.wav", "b.flac"])     ->  (2, dim) float32
embedder.similarity("a.wav", "b.wav")   ->  their cosine
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.inputs import AudioInput, all_or_one
from tritone.bundle.bundle import Bundle
from tritone.errors import AudioError
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.model import AudioModel, Model
from tritone.result import EmbeddingResult

Options = EmbedOptions | Mapping[str, Any] | None
Embeddings = npt.NDArray[np.float32]

DECISIVE = ("runtime", "precision", "window_s", "shift_s")  # options that decide an embedding


class Embedder(AudioModel[EmbeddingResult]):
    """A speaker model ready to embed."""

    placed = (*Model.placed, "compile")
    lacks = "makes no embeddings"
    instead = "a bundle of a speaker model"
    result = EmbeddingResult
    # Inputs that are given to the model at once are cut into calls of similar length. The more there are to choose
    # from, the less padding; what is in a batch is lost when the process is killed.
    batch_inputs = 512
    batch_s = 240.0

    def __init__(self, bundle: Bundle, **options: Any) -> None:
        """Take an opened bundle; as of `AudioModel`."""
        super().__init__(bundle, **options)
        self.dim = bundle.manifest.encoder.output_dim

    def embed(
        self,
        inputs: Sequence[AudioInput] | AudioInput,
        sample_rate: int | None = None,
        options: Options = None,
        *,
        window_s: float | None = None,
        shift_s: float | None = None,
        concurrency: int | None = None,
    ) -> Embeddings:
        """Embed audio files and waveforms, all of them or none; `embed_iter` has a result for each.

        Args:
            inputs, sample_rate, concurrency: as of `AudioModel.run`.
            options: how to embed, `{"window_s": 10}` or `EmbedOptions`; None takes what the embedder was loaded with.
            window_s, shift_s: the same one by one.

        Returns:
            (inputs, dim), in their order, not normalised; of a single input (dim,).

        Raises:
            AudioError: an input cannot be used, or is too short; the message names it. Nothing is returned then.
            InputError: the model does not take windows of that length.
            ValueError: `sample_rate` is no rate that audio has, or `concurrency` is below 1.
        """
        asked = self._windows(options, window_s, shift_s)

        def each(given: Iterable[AudioInput]) -> Iterator[EmbeddingResult]:
            return self._each(given, sample_rate, asked, concurrency, None)

        found = all_or_one(inputs, each)
        if isinstance(found, EmbeddingResult):
            return found.vector
        return np.stack([each.vector for each in found]) if found else np.zeros((0, self.dim), np.float32)

    def embed_iter(
        self,
        inputs: Iterable[AudioInput],
        *,
        sample_rate: int | None = None,
        options: Options = None,
        window_s: float | None = None,
        shift_s: float | None = None,
        concurrency: int | None = None,
    ) -> Generator[EmbeddingResult, None, None]:
        """Yield a result for each input, as of `AudioModel.run_iter`; arguments and errors as of `embed`.

        An input that fails keeps its error in its own result and does not disturb the others.
        """
        asked = self._windows(options, window_s, shift_s)
        return super().run_iter(inputs, sample_rate=sample_rate, options=asked, concurrency=concurrency)

    run, run_iter = embed, embed_iter  # type: ignore[assignment]

    def _windows(self, options: Options, window_s: float | None, shift_s: float | None) -> Options:
        given = {"window_s": window_s, "shift_s": shift_s}
        given = {name: value for name, value in given.items() if value is not None}
        if isinstance(options, Mapping):
            return {**options, **given}
        return (options or self._usual).changed(given) if given else options

    def _checked(self, options: EmbedOptions) -> EmbedOptions:
        checked: EmbedOptions = self.offline.check_options(options)
        return checked

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the vectors besides the model; where the bundle lies, threads and device do not."""
        part = self.bundle.manifest.find(EmbeddingPart)
        return {
            **({"mean_subtracted": "true"} if part is not None and part.mean_subtracted else {}),
            **{key: options[key] for key in DECISIVE if options.get(key) not in (None, "", "0")},
        }

    def similarity(self, first: AudioInput, second: AudioInput, sample_rate: int | None = None) -> float:
        """How alike two recordings are: the cosine of their embeddings, in [-1, 1]; arguments and errors as of `embed`.

        Raises:
            AudioError: the embedding of one is zero, too, and has no direction.
        """
        a, b = self.embed([first, second], sample_rate).astype(np.float64)
        norm = np.linalg.norm(a) * np.linalg.norm(b)
        if norm == 0:
            raise AudioError("an embedding is zero, and like nothing; is the audio silence?")
        return float(np.clip(a @ b / norm, -1.0, 1.0))
