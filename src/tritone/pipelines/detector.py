"""Voice activity in process: the same pipelines that serve, without a server.

detector = Detector(Bundle.open("vad"))
detector.segments("a.wav")                      ->  [SpeechSegment(start_s=0.45, end_s=2.13), ...]
detector.detect(["a.wav", "b.flac"])            ->  [ActivityResult, ActivityResult]
with detector.stream() as stream: stream.accept(samples); stream.finish()
"""

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.inputs import AudioInput, all_or_one
from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, TritoneError
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.kind import kind_of
from tritone.pipelines.live import Stream, open_stream
from tritone.pipelines.sources import Sources
from tritone.pipelines.voice_activity import VoiceActivityPipeline, VoiceActivityStreams
from tritone.result import ActivityResult
from tritone.search.activity import PARAMETERS, ActivityOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_AUDIO_S = 4 * 3600.0  # of one recording; an hour at 16 kHz is 230 MB
BATCH_INPUTS = 32  # given to the model at once by `detect_iter`, so that it can batch them
BATCH_S = 600.0  # and their audio, in seconds

Options = ActivityOptions | Mapping[str, Any] | None


class DetectRequest(TypedDict, total=False):
    """How speech is found in inputs, see `Detector.detect`."""

    sample_rate: int | None
    options: Options
    concurrency: int | None


class Detector:
    """A voice activity detector. Graphs are opened when they are first needed; may be used from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float = MAX_AUDIO_S,
        options: ActivityOptions | None = None,
        chunk_size: int | None = None,
    ) -> None:
        """Take an opened bundle, and the options of `tritone.load_detector`.

        Raises:
            BundleError: the model does not detect speech.
        """
        kind = kind_of(bundle)
        if kind.options is not ActivityOptions:
            raise BundleError(
                f"{bundle.path} is {kind.noun}: {kind.does} and detects no voice activity. {kind.usage}, or take a "
                "bundle of `tritone export silero`."
            )
        self.bundle = bundle
        self.sample_rate = bundle.manifest.sample_rate
        self.frame_s = bundle.manifest.frame_s
        self.max_audio_s = max_audio_s
        self.options = options or ActivityOptions()
        self._sources = Sources(self.sample_rate, max_audio_s)
        self._placement, self._chunk_size = placement, chunk_size
        self._lock = threading.Lock()
        self._offline: VoiceActivityPipeline | None = None
        self._streaming: VoiceActivityStreams | None = None
        self._dropped: deque[int] = deque()  # slots of streams that were dropped before their end

    @property
    def offline(self) -> VoiceActivityPipeline:
        """The pipeline for whole recordings."""
        with self._lock:
            if self._offline is None:
                self._offline = VoiceActivityPipeline(
                    self.bundle, placement=self._placement, max_audio_s=self.max_audio_s, options=self.options
                )
            return self._offline

    @property
    def streaming(self) -> VoiceActivityStreams:
        """The pipeline for streams. It uses the detector's options but for the lengths of speech."""
        with self._lock:
            if self._streaming is None:
                self._streaming = VoiceActivityStreams(
                    self.bundle,
                    placement=self._placement,
                    chunk_size=self._chunk_size,
                    options=self.options.for_streams(),
                )
            return self._streaming

    def segments(self, source: AudioInput, sample_rate: int | None = None, **options: Any) -> list[SpeechSegment]:
        """The speech segments of one recording, in order.

        Args:
            source: a path or an array.
            sample_rate: of the array, in Hz; None means the model's.
            options: fields of `ActivityOptions`; what is not given is what the detector was loaded with.

        Raises:
            AudioError: the audio cannot be used.
            InputError: an option is unknown or out of its range.
            ValueError: `sample_rate` is no rate that audio has.
        """
        return list(self.detect(source, sample_rate=sample_rate, options=options).segments)

    def probabilities(self, source: AudioInput, sample_rate: int | None = None) -> npt.NDArray[np.float32]:
        """The probability of speech in each frame of `frame_s` seconds, (frames,); errors as of `segments`."""
        found = self.detect(source, sample_rate=sample_rate).probabilities
        assert found is not None
        return found

    @overload
    def detect(  # type: ignore[overload-overlap]  # a path is an iterable of letters, too
        self, inputs: AudioInput, **options: "Unpack[DetectRequest]"
    ) -> ActivityResult: ...

    @overload
    def detect(self, inputs: Iterable[AudioInput], **options: "Unpack[DetectRequest]") -> list[ActivityResult]: ...

    def detect(
        self,
        inputs: Any,
        *,
        sample_rate: int | None = None,
        options: Options = None,
        concurrency: int | None = None,
    ) -> ActivityResult | list[ActivityResult]:
        """Find the speech in audio files and waveforms.

        An input that fails keeps its error in its own result and does not disturb the others.

        Args:
            inputs: paths, and arrays (samples,) or (samples, channels) of a floating type in [-1, 1]; both kinds may be
                mixed. Or a single one.
            sample_rate: of the arrays, in Hz; None means the model's. Other rates are resampled; files know their own.
            options: `{"threshold": 0.6}`, or `ActivityOptions`; what it does not name, and None, is what the detector
                was loaded with.
            concurrency: inputs given to the model together; None gives it as many as fit in memory.

        Returns:
            The results, in the order of the inputs. Of a single input its result, whose error is raised at once.

        Raises:
            InputError: an option is unknown or out of its range.
            ValueError: `sample_rate` is no rate that audio has, or `concurrency` is below 1.
        """

        def run(each: Iterable[AudioInput]) -> Iterator[ActivityResult]:
            return self._run(each, sample_rate, options, concurrency, None)

        return all_or_one(inputs, run)

    def detect_iter(
        self,
        inputs: Iterable[AudioInput],
        *,
        sample_rate: int | None = None,
        options: Options = None,
        concurrency: int = BATCH_INPUTS,
    ) -> Generator[ActivityResult, None, None]:
        """Like `detect`, but yields results as batches of `concurrency` inputs are done.

        `inputs` may be a generator of any length: the next ones are decoded while the model computes.
        """
        return self._run(inputs, sample_rate, options, concurrency, BATCH_S)

    run, run_iter = detect, detect_iter  # by one name in every kind of model
    batch_inputs = BATCH_INPUTS

    def open(self, *, streaming: bool = False) -> VoiceActivityPipeline | VoiceActivityStreams:
        """The pipeline for whole recordings or for streams, opened if it has not been."""
        return self.streaming if streaming else self.offline

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the segments besides the model: its options, but not threads or device."""
        return {name: value for name, value in options.items() if name in PARAMETERS or name == "mode"}

    def _run(
        self,
        inputs: Iterable[AudioInput],
        sample_rate: int | None,
        options: Options,
        batch_inputs: int | None,
        batch_s: float | None,
    ) -> Generator[ActivityResult, None, None]:
        chosen = self._chosen(options)  # what is wrong with them is found before files are read

        def detect(waveforms: list[Waveform]) -> Sequence[SpeechActivity | TritoneError]:
            return self.offline.run(waveforms, [chosen] * len(waveforms))

        return self._sources.each(
            inputs, detect, ActivityResult, sample_rate=sample_rate, batch_inputs=batch_inputs, batch_s=batch_s
        )

    def stream(self, sample_rate: int | None = None, options: Options = None) -> Stream[SpeechActivity]:
        """Start a stream. Streams may be of any length.

        Its answers have the segments that ended since the answer before, `speaking_since_s` of the one under way, and
        the probabilities of the new frames. A segment is reported when it begins, before its length is known.

        Args:
            sample_rate: of its audio, in Hz; None means the model's.
            options: as of `detect`, but for the lengths of speech.

        Raises:
            InputError: an option is unknown, out of its range, or not for streams.
            ServerBusyError: too many streams are open.
        """
        chosen = None
        if options is not None:
            usual = self.streaming.options
            chosen = options if isinstance(options, ActivityOptions) else usual.changed(options)
        return open_stream(self.streaming, self._dropped, sample_rate, chosen)

    def _chosen(self, options: Options) -> ActivityOptions:
        if options is None or isinstance(options, ActivityOptions):
            return options or self.options
        return self.options.changed(options)
