"""Recognition in process: the same pipelines that serve, without a server.

recognizer = tritone.load("demo-asr")
recognizer.transcribe(["a.wav", "b.flac"])  ->  [TranscriptResult, TranscriptResult]
recognizer.log_probs("a.wav").log_probs     ->  (frames, vocab)
with recognizer.stream() as stream: stream.accept(samples); stream.finish()
"""

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, overload

from tritone.activity import SpeechActivity
from tritone.audio.inputs import AudioInput, all_or_one
from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, LanguageModelError
from tritone.later import later
from tritone.longform.longform import LongForm
from tritone.pipelines.frames import FrameScores
from tritone.pipelines.kind import kind_of
from tritone.pipelines.model import AudioModel, Model
from tritone.pipelines.searching.base import SearchSettings
from tritone.result import TranscriptResult
from tritone.search.endpoint import EndpointRules
from tritone.search.hotwords import load_hotwords
from tritone.search.options import LmUnit, SearchOptions
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tritone.longform import activity
    from tritone.pipelines.detector import Detector
else:
    activity = later("activity")

Options = SearchOptions | Mapping[str, Any] | None


class TranscribeOptions(TypedDict, total=False):
    """How inputs are transcribed, see `Recognizer.transcribe`."""

    search: Options
    details: bool
    concurrency: int | None


class Recognizer(AudioModel[TranscriptResult]):
    """A model of speech that is searched frame by frame, ready to transcribe."""

    settings = ("max_audio_s", "lm", "lm_unit", "chunk_size", "left_chunks", "endpoints", "vad")
    placed = (*Model.placed, "compile")
    lacks = "cannot be searched frame by frame"
    result = TranscriptResult

    def __init__(
        self,
        bundle: Bundle,
        *,
        lm: "str | os.PathLike[str] | None" = None,
        lm_unit: LmUnit = "auto",
        hotwords: "str | os.PathLike[str] | Mapping[str, float] | None" = None,
        chunk_size: int | None = None,
        left_chunks: int | None = None,
        endpoints: EndpointRules | None = None,
        detector: "Detector | None" = None,
        **options: Any,
    ) -> None:
        """Take an opened bundle; as of `AudioModel`, the rest as of `tritone.load`.

        Args:
            detector: by whose pauses long recordings are cut; None cuts them into pieces that share some audio.

        Raises:
            LanguageModelError: there is no such language model.
        """
        super().__init__(bundle, **{name: value for name, value in options.items() if value is not None})
        if lm is not None and not Path(lm).is_file():
            raise LanguageModelError(f"there is no language model {lm}; give the path of an ARPA or KenLM file")
        if hotwords is not None:
            self._usual = replace(self._usual, hotwords=load_hotwords(hotwords))
        search = SearchSettings(options=self._usual, lm=None if lm is None else Path(lm), lm_unit=lm_unit)
        self._defaults = search
        self._stream_options = {
            "search": search,
            "endpoints": endpoints,
            "chunk_size": chunk_size,
            "left_chunks": left_chunks,
        }
        self._detector = detector

    @classmethod
    def refused(cls, bundle: Bundle) -> BundleError:
        return kind_of(bundle).unsearched(bundle)

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
            return self._transcribed(each, sample_rate, search, details, concurrency, None)

        return all_or_one(inputs, run)

    def transcribe_iter(
        self,
        inputs: Iterable[AudioInput],
        *,
        sample_rate: int | None = None,
        search: Options = None,
        details: bool = True,
        concurrency: int | None = None,
    ) -> Generator[TranscriptResult, None, None]:
        """Like `transcribe`, but yields results as batches of `concurrency` inputs are done.

        `inputs` may be a generator of any length: the next ones are decoded while the model computes.
        """
        together = self.batch_inputs if concurrency is None else concurrency
        return self._transcribed(inputs, sample_rate, search, details, together, self.batch_s)

    def _transcribed(
        self,
        inputs: Iterable[AudioInput],
        sample_rate: int | None,
        search: Options,
        details: bool,
        batch_inputs: int | None,
        batch_s: float | None,
    ) -> Generator[TranscriptResult, None, None]:
        detector, rate = self._detector, self.sample_rate
        chosen = self._chosen(search)

        def shown(found: Any) -> TranscriptResult:
            options = chosen or self.offline.searching.options
            if found.value is None or details or (options.nbest > 1 and options.mode != "greedy"):
                return found  # alternatives are details
            only: TranscriptResult = replace(found, value=Transcript(found.value.text, segments=found.value.segments))
            return only

        def detected(detector: "Detector", samples: Waveform) -> SpeechActivity:
            return detector.detect(samples, sample_rate=rate).get()

        long_form = LongForm(
            rate,
            lambda: min(self.max_audio_s, self.offline.runner.max_audio_s),
            details=details,
            activity=lambda: (
                None if detector is None else partial(activity.BlockActivity, partial(detected, detector), rate)
            ),
        )
        results = self._each(inputs, sample_rate, chosen, batch_inputs, batch_s, long_form)
        return _mapped(shown, long_form.join(results))

    run, run_iter = transcribe, transcribe_iter  # type: ignore[assignment]

    def _parameters(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: json.dumps(dict(value)) if isinstance(value, Mapping) else value
            for name, value in options.items()
            if value is not None
        }

    def _checked(self, options: SearchOptions) -> SearchOptions:
        return self.offline.searching.check(options)

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


def _mapped(
    shown: Callable[[TranscriptResult], TranscriptResult], results: Generator[TranscriptResult, None, None]
) -> Generator[TranscriptResult, None, None]:
    with closing(results):
        yield from map(shown, results)
