"""Whisper in process: the same pipeline that serves, without a server.

transcriber = tritone.load_whisper("whisper-small", language="de")
transcriber.transcribe(["a.wav", "b.flac"])           ->  [TranscriptResult, TranscriptResult]
transcriber.transcribe("a.wav", options={"beam": 5})  ->  TranscriptResult
with transcriber.stream() as stream: stream.accept(samples); stream.finish()
"""

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tritone.audio.inputs import AudioInput, all_or_one
from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, TritoneError
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.kinds import kind_of
from tritone.pipelines.live import Stream, open_stream
from tritone.pipelines.sources import Sources
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.pipeline import WhisperPipeline
from tritone.pipelines.whisper.streams import WhisperStreams
from tritone.result import TranscriptResult
from tritone.transcript import Transcript

BATCH_INPUTS = 8  # given to the model at once by `transcribe_iter`
BATCH_S = 600.0  # and their audio, in seconds

Options = DecodingOptions | Mapping[str, Any] | None


class Transcriber:
    """A Whisper model ready to transcribe. Its graphs are opened when first needed; several threads may use it."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float,
        options: DecodingOptions | None = None,
    ) -> None:
        """Take an opened bundle, and the options of `tritone.load_whisper`.

        Raises:
            BundleError: it holds no Whisper model.
        """
        kind = kind_of(bundle)
        if kind.options is not DecodingOptions:
            raise BundleError(f"{bundle.path} is {kind.noun}: {kind.does}. {kind.usage}.")
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = max_audio_s
        self._options = options
        self._placement = placement
        self._sources = Sources(self.sample_rate, max_audio_s)
        self._lock = threading.Lock()
        self._pipeline: WhisperPipeline | None = None
        self._streaming: WhisperStreams | None = None
        self._dropped: deque[int] = deque()  # slots of streams that were dropped without a word

    @property
    def pipeline(self) -> WhisperPipeline:
        """The pipeline behind it; see there for what opening it raises."""
        with self._lock:
            if self._pipeline is None:
                self._pipeline = WhisperPipeline(
                    self.bundle, placement=self._placement, max_audio_s=self.max_audio_s, options=self._options
                )
            return self._pipeline

    @property
    def streaming(self) -> WhisperStreams:
        """The streams of the same model; see `pipeline` for what opening it raises."""
        pipeline = self.pipeline
        with self._lock:
            if self._streaming is None:
                self._streaming = WhisperStreams(pipeline)
            return self._streaming

    def transcribe(
        self,
        inputs: Iterable[AudioInput] | AudioInput,
        sample_rate: int | None = None,
        options: Options = None,
        *,
        concurrency: int | None = None,
    ) -> Any:
        """Transcribe audio files and waveforms of any length.

        An input that fails keeps its error in its own result and does not disturb the others.

        Args:
            inputs: paths, and arrays (samples,) or (samples, channels) of a floating type in [-1, 1]; both kinds may be
                mixed. Or a single one.
            sample_rate: of the arrays, in Hz; None means the model's. Other rates are resampled; files know their own.
            options: how to transcribe, such as `{"language": "de", "beam": 5}`, or `DecodingOptions`; what it does not
                name is as the model was loaded with.
            concurrency: inputs given to the model together; None gives it as many as fit in memory.

        Returns:
            `TranscriptResult`s in the order of the inputs; of a single input its result, whose error is raised at once.

        Raises:
            InputError: the options ask for what the model does not have.
            ValueError: `sample_rate` is no rate that audio has, or `concurrency` is below 1.
        """

        def run(each: Iterable[AudioInput]) -> Iterator[TranscriptResult]:
            return self._run(each, sample_rate, options, concurrency, None)

        return all_or_one(inputs, run)

    def transcribe_iter(
        self,
        inputs: Iterable[AudioInput],
        *,
        sample_rate: int | None = None,
        options: Options = None,
        concurrency: int = BATCH_INPUTS,
    ) -> Generator[TranscriptResult, None, None]:
        """Like `transcribe`, but yields results as batches of `concurrency` inputs are done."""
        return self._run(inputs, sample_rate, options, concurrency, BATCH_S)

    def _run(
        self,
        inputs: Iterable[AudioInput],
        sample_rate: int | None,
        options: Options,
        batch_inputs: int | None,
        batch_s: float | None,
    ) -> Generator[TranscriptResult, None, None]:
        chosen = self._chosen(options)  # what is wrong with it is found before files are read

        def transcribe(waveforms: list[Waveform]) -> Sequence[Transcript | TritoneError]:
            return self.pipeline.run(waveforms, [chosen] * len(waveforms))

        return self._sources.each(
            inputs, transcribe, TranscriptResult, sample_rate=sample_rate, batch_inputs=batch_inputs, batch_s=batch_s
        )

    run, run_iter = transcribe, transcribe_iter  # by one name in every kind of model
    batch_inputs = BATCH_INPUTS

    def stream(self, sample_rate: int | None = None, options: Options = None) -> Stream[Transcript]:
        """Start a stream. Streams may be of any length.

        Args:
            sample_rate: of its audio, in Hz; None means the model's.
            options: as of `transcribe`.

        Raises:
            InputError: the options ask for what the model does not have.
            ServerBusyError: too many streams are open.
        """
        return open_stream(self.streaming, self._dropped, sample_rate, self._chosen(options))

    def _chosen(self, options: Options) -> DecodingOptions | None:
        if options is None:
            return None
        given = options if isinstance(options, DecodingOptions) else self.pipeline.options.changed(options)
        return self.pipeline.check_options(given)

    def open(self, *, streaming: bool = False) -> WhisperPipeline | WhisperStreams:
        """The pipeline for whole recordings or for streams, opened if it has not been."""
        return self.streaming if streaming else self.pipeline

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the texts besides the model: all options that it was loaded with, and where it is."""
        return {"bundle": str(self.bundle.path), **options}
