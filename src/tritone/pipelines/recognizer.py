"""Recognition in process: the same pipelines that serve, without a server.

recognizer = Recognizer(Bundle.open("demo-asr"))
recognizer.transcribe(["a.wav", "b.flac"])  ->  [TranscriptResult, TranscriptResult]
recognizer.log_probs("a.wav").log_probs     ->  (frames, vocab)
with recognizer.stream() as stream: stream.accept(samples); stream.finish()
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, overload

from tritone.activity import SpeechActivity
from tritone.audio.inputs import AudioInput, all_or_one
from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import TritoneError
from tritone.longform import BlockActivity, LongForm
from tritone.pipelines import check_writes, open_offline, open_streaming
from tritone.pipelines.detector import Detector
from tritone.pipelines.frames import FrameScores
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S
from tritone.pipelines.live import Stream, open_stream
from tritone.pipelines.offline import OfflinePipeline
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.sources import Sources
from tritone.pipelines.streaming import StreamingPipeline
from tritone.result import TranscriptResult
from tritone.search.endpoint import EndpointRules
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from typing_extensions import Unpack

BATCH_INPUTS = 32  # given to the model at once by `transcribe_iter`, so that it can batch them
BATCH_S = 300.0  # and their audio, in seconds; results of short batches appear while others are being worked on

Options = SearchOptions | Mapping[str, Any] | None


class TranscribeOptions(TypedDict, total=False):
    """How inputs are transcribed, see `Recognizer.transcribe`."""

    search: Options
    details: bool
    concurrency: int | None


class Recognizer:
    """A model ready to transcribe. Graphs are opened when they are first needed; may be used from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = DEFAULT_MAX_AUDIO_S,
        search: SearchSettings | None = None,
        chunk_size: int | None = None,
        left_chunks: int | None = None,
        endpoints: EndpointRules | None = None,
        detector: Detector | None = None,
    ) -> None:
        """Take an opened bundle, and the options of `tritone.load`; those of the search are gathered in `search`.

        `detector`: by whose pauses long recordings are cut.

        Raises:
            BundleError: the model writes no text.
        """
        check_writes(bundle)
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = max_audio_s
        self._sources = Sources(self.sample_rate, max_audio_s)
        self._options: dict[str, Any] = {
            "placement": placement,
            "search": search,
        }
        self._streams: dict[str, Any] = {"endpoints": endpoints}
        # Not told unless asked for: most bundles have numbers of their own.
        self._streams |= {
            name: value
            for name, value in (("chunk_size", chunk_size), ("left_chunks", left_chunks))
            if value is not None
        }
        self._detector = detector
        self._lock = threading.Lock()
        self._offline: OfflinePipeline | None = None
        self._streaming: StreamingPipeline | None = None
        self._dropped: deque[int] = deque()  # slots of streams that were dropped without a word

    @property
    def offline(self) -> OfflinePipeline:
        """The pipeline for whole utterances."""
        with self._lock:
            if self._offline is None:
                self._offline = open_offline(self.bundle, max_audio_s=self.max_audio_s, **self._options)
            return self._offline

    @property
    def streaming(self) -> StreamingPipeline:
        """The pipeline for streams; raises `BundleError` if the bundle was exported without one."""
        with self._lock:
            if self._streaming is None:
                self._streaming = open_streaming(self.bundle, **self._options, **self._streams)
            return self._streaming

    @overload
    def transcribe(  # type: ignore[overload-overlap]  # a path is an iterable of letters, too
        self,
        inputs: AudioInput,
        sample_rate: int | None = None,
        **options: "Unpack[TranscribeOptions]",
    ) -> TranscriptResult: ...

    @overload
    def transcribe(
        self,
        inputs: Iterable[AudioInput],
        sample_rate: int | None = None,
        **options: "Unpack[TranscribeOptions]",
    ) -> list[TranscriptResult]: ...

    def transcribe(
        self,
        inputs: Any,
        sample_rate: int | None = None,
        *,
        search: Options = None,
        details: bool = True,
        concurrency: int | None = None,
    ) -> TranscriptResult | list[TranscriptResult]:
        """Transcribe audio files and waveforms, as `Client.transcribe` does by a server.

        An input that fails keeps its error in its own result and does not disturb the others. Recordings of more than
        `max_audio_s` are cut into pieces, whose texts are joined (docs/applications/long-audio.md).

        Args:
            inputs: paths, and arrays (samples,) or (samples, channels) of a floating type in [-1, 1]; both kinds may be
                mixed. Or a single one.
            sample_rate: of the arrays, in Hz; None means the model's. Other rates are resampled; files know their own.
            search: how to search: `{"search": "prefix-beam", "nbest": 5}`, or `SearchOptions`; what it does not name,
                and None, is what the recognizer was loaded with.
            details: whether to return tokens, words, times and confidences; they cost nothing here.
            concurrency: inputs given to the model together; None gives it as many as fit in memory.

        Returns:
            The results, in the order of the inputs. They have the attributes of their transcripts, which raise the
            input's error where it failed. Of a single input its result, whose error is raised at once.

        Raises:
            InputError: the options ask for what the model does not have.
            ValueError: `sample_rate` is no rate that audio has, or `concurrency` is below 1.
        """

        def run(each: Iterable[AudioInput]) -> Iterator[TranscriptResult]:
            return self._run(each, sample_rate, search, details, concurrency, None)

        return all_or_one(inputs, run)

    def transcribe_iter(
        self,
        inputs: Iterable[AudioInput],
        *,
        sample_rate: int | None = None,
        search: Options = None,
        details: bool = True,
        concurrency: int = BATCH_INPUTS,
    ) -> Generator[TranscriptResult, None, None]:
        """Like `transcribe`, but yields results as batches of `concurrency` inputs are done.

        `inputs` may be a generator of any length: the next ones are decoded while the model computes.
        """
        return self._run(inputs, sample_rate, search, details, concurrency, BATCH_S)

    def _run(
        self,
        inputs: Iterable[AudioInput],
        sample_rate: int | None,
        search: Options,
        details: bool,
        batch_inputs: int | None,
        batch_s: float | None,
    ) -> Generator[TranscriptResult, None, None]:
        chosen: SearchOptions | None = None
        if search is not None:  # what is wrong with it is found before files are read
            searching = self.offline.searching
            given = search if isinstance(search, SearchOptions) else searching.options.changed(_as_parameters(search))
            chosen = searching.check(given)

        def recognize(waveforms: list[Waveform]) -> Sequence[Transcript | TritoneError]:
            return self.offline.run(waveforms, [chosen] * len(waveforms))

        def shown(found: Any) -> TranscriptResult:
            options = chosen or self.offline.searching.options
            if found.value is None or details or (options.nbest > 1 and options.mode != "greedy"):
                return found  # alternatives are details
            only: TranscriptResult = replace(found, value=Transcript(found.value.text, segments=found.value.segments))
            return only

        def detected(detector: Detector, samples: Waveform) -> SpeechActivity:
            return detector.detect(samples, sample_rate=rate).get()

        detector, rate = self._detector, self.sample_rate
        long_form = LongForm(
            rate,
            lambda: min(self.max_audio_s, self.offline.runner.max_audio_s),
            details=details,
            activity=lambda: None if detector is None else partial(BlockActivity, partial(detected, detector), rate),
        )
        results = self._sources.each(
            inputs,
            recognize,
            TranscriptResult,
            sample_rate=sample_rate,
            batch_inputs=batch_inputs,
            batch_s=batch_s,
            long_form=long_form,
        )
        return _each(long_form.join(results), shown)

    run, run_iter = transcribe, transcribe_iter  # by one name in every kind of model
    batch_inputs = BATCH_INPUTS

    def open(self, *, streaming: bool = False) -> OfflinePipeline | StreamingPipeline:
        """The pipeline for whole utterances or for streams, opened if it has not been."""
        return self.streaming if streaming else self.offline

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the texts besides the model: all options that it was loaded with, and where it is."""
        return {"bundle": str(self.bundle.path), **options}

    def log_probs(self, source: AudioInput, sample_rate: int | None = None) -> FrameScores:
        """The log-probabilities that a CTC model gives every token in every frame.

        Args:
            source: a path or an array.
            sample_rate: of the array, in Hz; None means the model's.

        Raises:
            AudioError: the audio cannot be used.
            InputError: the model is no CTC model.
            ValueError: `sample_rate` is no rate that audio has.
        """
        log_probs = self.offline.log_probs(self._sources.read(source, sample_rate))
        manifest, vocabulary = self.bundle.manifest, self.bundle.vocabulary
        return FrameScores(
            log_probs=log_probs,
            frame_s=manifest.frame_s,
            tokens=tuple(vocabulary.tokens),
            blank=vocabulary.settings.blank_id,
        )

    def stream(self, sample_rate: int | None = None, options: SearchOptions | None = None) -> Stream[Transcript]:
        """Start a stream. Streams may be of any length.

        Args:
            sample_rate: of its audio, in Hz; None means the model's.
            options: how to search; None takes what the recognizer was loaded with.

        Raises:
            InputError: the options ask for what the model does not have.
            ServerBusyError: too many streams are open.
        """
        return open_stream(self.streaming, self._dropped, sample_rate, options)


def _as_parameters(search: Mapping[str, Any]) -> dict[str, Any]:
    """A search by the names of the wire contract, in the form that requests have it."""
    return {
        name: json.dumps(dict(value)) if isinstance(value, Mapping) else value
        for name, value in search.items()
        if value is not None
    }


def _each(
    results: Generator[TranscriptResult, None, None], shown: Callable[[TranscriptResult], TranscriptResult]
) -> Generator[TranscriptResult, None, None]:
    with closing(results):
        yield from map(shown, results)
