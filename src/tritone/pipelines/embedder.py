"""Embeddings in process: the same pipeline that serves, without a server.

embedder = Embedder(Bundle.open("demo-speaker"))
embedder.embed(["a.wav", "b.flac"])     ->  (2, dim) float32
embedder.similarity("a.wav", "b.wav")   ->  their cosine
"""

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tritone.audio.inputs import AudioInput, all_or_one
from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import AudioError, TritoneError
from tritone.pipelines import check_embeds
from tritone.pipelines.embed_options import EmbedOptions
from tritone.pipelines.embedding import EmbeddingPipeline
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S
from tritone.pipelines.sources import Sources
from tritone.result import EmbeddingResult

Embeddings = npt.NDArray[np.float32]

# What `embed_iter` gives to the model at once, which it cuts into calls of similar length. The more there are to choose
# from, the less padding; what is in a batch is lost when the process is killed.
BATCH_INPUTS = 512
BATCH_S = 240.0  # audio, in seconds

DECISIVE = ("runtime", "precision", "window_s", "shift_s")  # options that decide an embedding


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
        check_embeds(bundle)
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
        self,
        inputs: Sequence[AudioInput] | AudioInput,
        sample_rate: int | None = None,
        options: EmbedOptions | None = None,
        *,
        window_s: float | None = None,
        shift_s: float | None = None,
        concurrency: int | None = None,
    ) -> Embeddings:
        """Embed audio files and waveforms, all of them or none; `embed_iter` has a result for each.

        Args:
            inputs: paths, and arrays (samples,) or (samples, channels) of a floating type in [-1, 1]; both kinds may be
                mixed. Or a single one.
            sample_rate: of the arrays, in Hz; None means the model's. Other rates are resampled; files know their own.
            options: how to embed; None takes what the embedder was loaded with.
            window_s, shift_s: the same one by one, see `EmbedOptions`.
            concurrency: inputs given to the model together; None gives it as many as fit in memory.

        Returns:
            (inputs, dim), in their order, not normalised; of a single input (dim,).

        Raises:
            AudioError: an input cannot be used, or is too short; the message names it. Nothing is returned then.
            InputError: the model does not take windows of that length.
            ValueError: `sample_rate` is no rate that audio has, or `concurrency` is below 1.
        """
        windows = {"window_s": window_s, "shift_s": shift_s}

        def run(each: Iterable[AudioInput]) -> Iterator[EmbeddingResult]:
            return self._run(each, sample_rate, options, windows, concurrency, None)

        found = all_or_one(inputs, run)
        if isinstance(found, EmbeddingResult):
            return found.vector
        return np.stack([each.vector for each in found]) if found else np.zeros((0, self.dim), np.float32)

    def embed_iter(
        self,
        inputs: Iterable[AudioInput],
        *,
        sample_rate: int | None = None,
        window_s: float | None = None,
        shift_s: float | None = None,
        concurrency: int = BATCH_INPUTS,
    ) -> Generator[EmbeddingResult, None, None]:
        """Yield a result for each input, as batches of `concurrency` are done; arguments and errors as of `embed`.

        An input that fails keeps its error in its own result and does not disturb the others. `inputs` may be a
        generator of any length: the next ones are decoded while the model computes.
        """
        return self._run(inputs, sample_rate, None, {"window_s": window_s, "shift_s": shift_s}, concurrency, BATCH_S)

    def _run(
        self,
        inputs: Iterable[AudioInput],
        sample_rate: int | None,
        options: EmbedOptions | None,
        windows: Mapping[str, float | None],
        batch_inputs: int | None,
        batch_s: float | None,
    ) -> Generator[EmbeddingResult, None, None]:
        given = {name: value for name, value in windows.items() if value is not None}
        chosen = (options or self._options).changed(given) if given else options
        if chosen is not None:
            self.pipeline.check_options(chosen)  # before files are read

        def embed(waveforms: list[Waveform]) -> Sequence[Embeddings | TritoneError]:
            return self.pipeline.run(waveforms, [chosen] * len(waveforms))

        return self._sources.each(
            inputs, embed, EmbeddingResult, sample_rate=sample_rate, batch_inputs=batch_inputs, batch_s=batch_s
        )

    run, run_iter = embed, embed_iter  # by one name in every kind of model
    batch_inputs = BATCH_INPUTS

    def open(self, *, streaming: bool = False) -> EmbeddingPipeline:
        """The pipeline, opened if it has not been; there is none for streams."""
        return self.pipeline

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the vectors besides the model; where the bundle lies, threads and device do not."""
        part = self.bundle.manifest.embedding
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
