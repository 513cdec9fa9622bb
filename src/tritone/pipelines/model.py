"""A model in this process, whatever its kind: what `tritone.load` returns.

    model.run(inputs), model.run_iter(inputs)           every model; by the verb of its kind, too, as of a `Client`
    with model.stream() as stream: stream.accept(...)   models that take audio as it comes

`AudioModel` has what all have that take recordings; what one kind alone has is in the modules of its subclasses. Kinds
of other packages have an `AudioModel`, if they have no class of their own.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, overload

from tritone.audio.inputs import AudioInput, all_or_one
from tritone.audio.waveform import Waveform
from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError
from tritone.later import later
from tritone.longform.longform import LongForm
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import DEFAULT_MAX_AUDIO_S
from tritone.pipelines.kind import Kind, kind_of
from tritone.pipelines.sources import Sources
from tritone.result import AnyResult, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tritone.pipelines import live
else:
    live = later("live")


class Model:
    """A model in this process. It has `run`, `run_iter` and `stream`, and the verbs of its kind."""

    settings: ClassVar[tuple[str, ...]] = ()  # what it is opened with beside a placement and the options of requests
    placed: ClassVar[tuple[str, ...]] = ("device", "threads", "runtime", "precision")  # what it looks at of a placement
    lacks: ClassVar[str] = "is no such model"  # in messages about models of other kinds
    instead: ClassVar[str] = "a bundle of that kind"

    bundle: Bundle
    kind: Kind
    run: Callable[..., Any]
    run_iter: Callable[..., Iterator[Any]]
    stream: Callable[..., Any]

    def _take(self, bundle: Bundle) -> None:
        """Make the bundle this model's; raises `BundleError` if it is of a kind that has another class."""
        self.bundle, self.kind = bundle, kind_of(bundle)
        own = next(each for each in type(self).__mro__ if "lacks" in vars(each))  # users may have subclasses
        if not issubclass(self.kind.front(), own):
            raise self.refused(bundle)

    @classmethod
    def refused(cls, bundle: Bundle) -> BundleError:
        """The error for a bundle of another kind."""
        kind = kind_of(bundle)
        return BundleError(
            f"{bundle.path} is {kind.noun}: {kind.does} and {cls.lacks}. {kind.usage}, or take {cls.instead}."
        )

    @classmethod
    def loadable(cls, kind: Kind) -> tuple[str, ...]:
        """Names of all that such a model of a kind may be loaded with."""
        return (*cls.placed, *cls.settings, *(kind.parameters if kind.options is not None else ()))


class RunOptions(TypedDict, total=False):
    """How inputs are computed, see `AudioModel.run`."""

    options: Any
    concurrency: int | None


class AudioModel(Model, Generic[AnyResult]):
    """A model that takes recordings. Graphs are opened when they are first needed; several threads may use it."""

    settings: ClassVar[tuple[str, ...]] = ("max_audio_s",)
    result: ClassVar[type[Result[Any]]] = Result  # of an input
    batch_inputs: ClassVar[int] = 32  # given to the model at once by `run_iter`, so that it can batch them
    batch_s: ClassVar[float] = 300.0  # and their audio, in seconds; results of short batches appear while others run
    longest_s: ClassVar[float] = DEFAULT_MAX_AUDIO_S  # audio that is accepted where nothing else is asked for

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float | None = None,
        **options: Any,
    ) -> None:
        """Take an opened bundle.

        Args:
            placement: which graphs are run, and where.
            max_audio_s: the longest audio that the model gets at once, in seconds; None takes the class's.
            options: how requests are answered that ask for nothing else, by the names that they have in requests.

        Raises:
            BundleError: the bundle is of a kind that has another class.
            InputError: an option is unknown or out of its range.
        """
        self._take(bundle)
        self.sample_rate = bundle.manifest.sample_rate
        self.max_audio_s = self.longest_s if max_audio_s is None else max_audio_s
        usual: Any = None if self.kind.options is None else self.kind.options()
        self._usual = usual.changed(options) if options else usual
        self._defaults = self._usual  # as the kind's pipelines take them
        self._placement = placement
        self._open_options: dict[str, Any] = {}  # of the pipeline for whole inputs
        self._stream_options: dict[str, Any] = {}
        self._sources = Sources(self.sample_rate, self.max_audio_s)
        self._lock = threading.Lock()
        self._offline: Any = None
        self._streaming: Any = None
        self._dropped: deque[int] = deque()  # slots of streams that were dropped before their end

    @property
    def offline(self) -> Any:
        """The pipeline for whole inputs; see there for what opening it raises."""
        with self._lock:
            if self._offline is None:
                self._offline = self.kind.open(
                    self.bundle,
                    placement=self._placement,
                    max_audio_s=self.max_audio_s,
                    defaults=self._defaults,
                    **self._open_options,
                )
            return self._offline

    @property
    def streaming(self) -> Any:
        """The pipeline for streams; raises `BundleError` if there is none."""
        with self._lock:
            if self._streaming is None:
                self._streaming = self.kind.open_streaming(
                    self.bundle, placement=self._placement, **self._stream_options
                )
            return self._streaming

    def open(self, *, streaming: bool = False) -> Any:
        """The pipeline for whole inputs or for streams, opened if it has not been."""
        return self.streaming if streaming else self.offline

    @overload
    def run(  # type: ignore[overload-overlap]  # a path is an iterable of letters, too
        self, inputs: AudioInput, sample_rate: int | None = None, **asked: "Unpack[RunOptions]"
    ) -> AnyResult: ...

    @overload
    def run(
        self, inputs: Iterable[AudioInput], sample_rate: int | None = None, **asked: "Unpack[RunOptions]"
    ) -> list[AnyResult]: ...

    def run(
        self, inputs: Any, sample_rate: int | None = None, options: Any = None, *, concurrency: int | None = None
    ) -> Any:
        """Compute audio files and waveforms. `transcribe` of Whisper models and `detect` are other names of it.

        An input that fails keeps its error in its own result and does not disturb the others.

        Args:
            inputs: paths, and arrays (samples,) or (samples, channels) of a floating type in [-1, 1]; both kinds may be
                mixed. Or a single one.
            sample_rate: of the arrays, in Hz; None means the model's. Other rates are resampled; files know their own.
            options: what the kind's requests may ask for, by name, `{"language": "de"}` of a Whisper model,
                `{"threshold": 0.6}` of a detector; or an object of the kind's class of options. What it does not name,
                and None, is what the model was loaded with.
            concurrency: inputs given to the model together; None gives it as many as fit in memory.

        Returns:
            The results, in the order of the inputs. Of a single input its result, whose error is raised at once.

        Raises:
            InputError: an option is unknown, out of its range, or for what the model does not have.
            ValueError: `sample_rate` is no rate that audio has, or `concurrency` is below 1.
        """

        def each(given: Iterable[AudioInput]) -> Iterator[AnyResult]:
            return self._each(given, sample_rate, options, concurrency, None)

        return all_or_one(inputs, each)

    def run_iter(
        self,
        inputs: Iterable[AudioInput],
        *,
        sample_rate: int | None = None,
        options: Any = None,
        concurrency: int | None = None,
    ) -> Generator[AnyResult, None, None]:
        """Like `run`, but yields results as batches of `concurrency` inputs (None: `batch_inputs`) are done.

        `inputs` may be a generator of any length: the next ones are decoded while the model computes.
        """
        together = self.batch_inputs if concurrency is None else concurrency
        return self._each(inputs, sample_rate, options, together, self.batch_s)

    def stream(self, sample_rate: int | None = None, options: Any = None) -> "live.Stream[Any]":
        """Start a stream. Streams may be of any length.

        Args:
            sample_rate: of its audio, in Hz; None means the model's.
            options: as of `run`.

        Raises:
            BundleError: the model has no streams.
            InputError: the options ask for what the model does not have.
            ServerBusyError: too many streams are open.
        """
        pipeline = self.streaming
        chosen = pipeline.changed(self._parameters(options)) if isinstance(options, Mapping) else options
        return live.open_stream(pipeline, self._dropped, sample_rate, chosen)

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the results besides the model: all options that it was loaded with, and where it is."""
        return {"bundle": str(self.bundle.path), **options}

    def _chosen(self, options: Any) -> Any:
        """What requests are run with, checked; None, for the pipeline's own, if nothing is asked for."""
        if isinstance(options, Mapping):
            outputs = [each.name for each in self.kind.outputs(self.bundle)]
            return self.kind.read_options(self.offline, self._parameters(options), outputs)
        return options if options is None else self._checked(options)

    def _parameters(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options by name in the form that requests have them."""
        return options

    def _checked(self, options: Any) -> Any:
        """An object of the kind's options, after making sure that the model has what it asks for."""
        return options

    def _each(
        self,
        inputs: Iterable[AudioInput],
        sample_rate: int | None,
        options: Any,
        batch_inputs: int | None,
        batch_s: float | None,
        long_form: LongForm | None = None,
    ) -> Generator[AnyResult, None, None]:
        chosen = self._chosen(options)  # what is wrong with it is found before files are read

        def compute(waveforms: list[Waveform]) -> Sequence[Any]:
            return self.offline.run(waveforms, [chosen] * len(waveforms))

        result: type[Any] = self.result
        return self._sources.each(
            inputs,
            compute,
            result,
            sample_rate=sample_rate,
            batch_inputs=batch_inputs,
            batch_s=batch_s,
            long_form=long_form,
        )
