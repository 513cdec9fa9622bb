"""What the project asks of a kind of models, and where kinds are found.

    bundle, graphs     what a manifest and the graphs of such a model must have
    serving            in which modes it is served, by which graphs, with which tensors
    requests, results  how parameters become options, and results output tensors

A kind has no state. `Kind` has the answers of a model that takes waveforms and is searched in no way; what it leaves
open is abstract. Kinds stand above the pipelines that they open: ours are folders of `tritone.kinds`, found by their
names, with a module `kind` that has the object as `KIND`. Other packages name theirs as entry points of the group
`tritone.kinds`, under the kind's name.

    [project.entry-points."tritone.kinds"]
    loudness = "my_package.loudness:LOUDNESS"
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from tritone.audio.waveform import Samples, widened
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Manifest, Role
from tritone.bundle.part import GROUP, Parts, package_of
from tritone.errors import BundleError, InputError, OperatorError, TritoneError
from tritone.pipelines.audio_tensors import read_waveforms
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.wire import Tensor, audio_inputs
from tritone.runtime.graph import Array, TensorSpec

if TYPE_CHECKING:
    from tritone.pipelines.model import Model
    from tritone.pipelines.searching.base import HasOutputs, Searching, SearchSettings

Mode = Literal["offline", "streaming", "embedding", "synthesis", "generic"]
Stage = Literal["features", "acoustic", "decoder"]
Answers = Literal["transcripts", "embeddings", "activity", "diarization", "segmentation", "synthesis", "other", ""]
Specs = dict[str, TensorSpec]

FLOAT32, INT64 = np.dtype(np.float32), np.dtype(np.int64)
WAVEFORMS = {"waveform": TensorSpec(FLOAT32, (None, None)), "num_samples": TensorSpec(INT64, (None,))}


class Pipeline(Protocol):
    """What serves requests for whole inputs. `work`: what it has computed."""

    @property
    def work(self) -> WorkLog: ...

    def run(self, items: Sequence[Any], options: Sequence[Any]) -> Sequence[Any]:
        """For each item its result, or the `TritoneError` that it caused."""

    def warm_up(self) -> None:
        """Compute something, so that the first real request finds everything ready; it is not in `work`."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """What clients may know of a model beside its tensors.

    `searches`: the modes of search, `languages`, and `speakers` of a voice: those that requests may name. `abilities`:
    what of the options of decoding they may ask for: `transcribe`: of all; `prompt`: a text before, and temperatures;
    `detect`: to find the language; `translate`: into English; `word_times`. `windows`: of a model that takes windows,
    samples of one, between frames, and that a frame sees.
    """

    searches: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    abilities: tuple[str, ...] = ()
    windows: tuple[int, ...] = ()
    speakers: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, list[Any]]:
        """What there is of it, for JSON."""
        return {name: list(values) for name, values in vars(self).items() if values}


class Kind(ABC):
    """One kind of models."""

    # What a kind must say.

    name: ClassVar[str]  # in manifests
    noun: ClassVar[str]  # in messages: "a speaker model"
    does: ClassVar[str]  # in messages about what it does not do: "it makes embeddings"
    usage: ClassVar[str]  # the way to use it: "Load it with tritone.load"
    encoders: ClassVar[Mapping[Mode, Role]]  # modes in which it is served, and the graph of each

    # What it may say of its bundles and graphs.

    parts: ClassVar[Parts] = Parts()  # what a manifest has; of ours, `PARTS` of the module `part` beside the kind's
    optional_outputs: ClassVar[Mapping[str, TensorSpec]] = {}  # that graphs may have beyond `tensors`
    whole_outputs: ClassVar[tuple[str, ...]] = ()  # of the network that are one for an input, however long it is
    has_class_ids: ClassVar[bool] = False  # the best token of each frame is an output of its own
    call_sizes: ClassVar[tuple[float, ...]] = ()  # of calls whose memory is measured, where it is not that of audio

    # Of its models in process, on a server and in an ensemble.

    in_process: ClassVar[str] = "tritone.pipelines.model:AudioModel"  # what `tritone.load` makes of a bundle
    answers: ClassVar[Answers] = ""  # what clients ask it for; "": they judge by its tensors
    stages: ClassVar[tuple[Stage, ...]] = ()  # of an ensemble that serves it; none: there are no ensembles of it
    later: ClassVar[tuple[str, ...]] = ("filling_kernel",)  # what requests may need of the table in `tritone.later`
    stream_details: ClassVar[str] = ""  # the output of a stream that is made only where it is asked for

    # Of its pipelines, and of requests to them.

    options: ClassVar[type | None] = None  # of requests: SearchOptions, EmbedOptions, or a class of its own
    parameters: ClassVar[tuple[str, ...]] = ()  # names of request parameters
    modes: ClassVar[tuple[str, ...]] = ()  # of search
    writes_text: ClassVar[bool] = False  # with a pipeline of its own, which nothing but this kind has
    allows_silence: ClassVar[bool] = True  # audio too short for the network has a result, an empty one
    takes_pcm: ClassVar[bool] = False  # its pipelines take 16-bit samples as they come
    checks_levels: ClassVar[bool] = False  # its pipelines find samples that are not finite, when they fill blocks

    # The bundle and its graphs.

    def fault(self, manifest: Manifest) -> str | None:
        """What is wrong within a manifest that has the parts of this kind; None if nothing."""
        return None

    @abstractmethod
    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        """The inputs and outputs that a graph for a role must have."""

    def roles(self, mode: str) -> tuple[Role, ...]:
        """The graphs beside the encoder that searching in a mode needs."""
        return ()

    # Serving.

    def served(self, bundle: Bundle) -> Served:
        """What requests to a bundle's model may choose among."""
        return Served()

    @abstractmethod
    def open(self, bundle: Bundle, *, placement: Placement, max_audio_s: float, defaults: Any = None) -> Pipeline:
        """Open the pipeline for whole inputs.

        Args:
            max_audio_s: the longest audio that is let through to it, in seconds.
            defaults: how requests are answered that ask for nothing else: `SearchSettings` where `options` are
                `SearchOptions`, options where they are `EmbedOptions`, else None.
        """

    def open_streaming(self, bundle: Bundle, **options: Any) -> Any:
        """Open the pipeline for streams, a `StreamPipeline`; options and errors as of its class."""
        raise BundleError(f"{bundle.path} is {self.noun}: {self.does}, of whole inputs alone, and has no streams.")

    def open_searching(
        self, bundle: Bundle, graph: "HasOutputs", settings: "SearchSettings | None", placement: Placement
    ) -> "Searching":
        """Open what a bundle is searched with.

        Args:
            graph: the encoder, offline or streaming, or whatever else has the names of its outputs.
            settings: how to search; None takes greedy.
            placement: where the graphs run that the search itself needs.

        Raises:
            BundleError, InputError, LanguageModelError: see `Searching`.
        """
        raise self.unsearched(bundle)

    def unsearched(self, bundle: Bundle) -> BundleError:
        """The error for who wants to search in the outputs of a model of another sort."""
        lack = "cannot be searched frame by frame" if self.writes_text else "writes no text"
        return BundleError(
            f"{bundle.path} is {self.noun}: {self.does} and {lack}. {self.usage}, or take a bundle that recognises "
            "speech."
        )

    def inputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        """The inputs of a served model."""
        return audio_inputs()

    @abstractmethod
    def outputs(self, bundle: Bundle) -> tuple[Tensor, ...]:
        """The outputs of a served model."""

    def compiler(self, mode: str) -> Callable[[], None] | None:
        """Compiles what searching in a mode needs, or loads it from the cache; None where nothing is compiled.

        Modes that need the same have equal ones.
        """
        return None

    def front(self) -> "type[Model]":
        """The class of such models in this process."""
        front: type[Model] = EntryPoint(self.name, self.in_process, GROUP).load()
        return front

    def check_machine(self, bundle: Bundle) -> None:  # noqa: B027  # most need nothing
        """Make sure that this machine has what a bundle's models need beside Python's packages.

        Raises:
            OperatorError: it has not; the message says what is missing, and how to install it.
        """

    # Requests and results.

    def read(self, tensors: Mapping[str, Array], *, sample_rate: int, max_audio_s: float) -> Sequence[Any]:
        """What a pipeline takes for each row of a request's inputs.

        Raises:
            InputError: the tensors cannot be used; says why.
        """
        rows = read_waveforms(tensors, sample_rate=sample_rate, max_audio_s=max_audio_s, levels=not self.checks_levels)
        return rows if self.takes_pcm else [widened(row) for row in rows]

    def read_options(self, pipeline: Any, parameters: Mapping[str, Any], wanted: Collection[str]) -> Any:
        """The options that a pipeline runs a request with.

        Args:
            parameters: of the request.
            wanted: names of the outputs that it asks for.

        Raises:
            InputError: a parameter is unknown, or asks for what the model does not have.
        """
        if parameters:
            raise InputError(f"this model takes no request parameters, got {', '.join(parameters)}; leave them out")
        return None

    @abstractmethod
    def answer(self, results: Sequence[Any], wanted: Collection[str]) -> Mapping[str, Array]:
        """The output tensors of a request: those `wanted`, of the results of its rows. Text is bytes of UTF-8."""

    def stream_answer(self, result: Any, *, details: bool) -> Mapping[str, Array]:
        """The output tensors of a step of a stream; `details`: whether `stream_details` is among them."""
        raise NotImplementedError

    # Stages of an ensemble.

    def graph_outputs(self, mode: str, available: Collection[str]) -> tuple[str, ...]:
        """The outputs of the network that searching in a mode needs, chosen from `available`."""
        return tuple(available)

    def row_fault(self, bundle: Bundle, rows: Sequence[Samples], parameters: Mapping[str, Any]) -> str | None:
        """Why a stage that makes features cannot take a request; None if it can."""
        return None

    def checked(self, outputs: Mapping[str, Array]) -> Mapping[str, Array] | TritoneError:
        """Outputs of the network for a request, or the error that they are where nothing after it would see that."""
        return outputs


def kind_of(bundle: Bundle) -> Kind:
    """The kind of a bundle's model, after checking what its manifest says.

    Raises:
        BundleError: the kind is unknown here, or parts of the manifest do not fit together.
        OperatorError: another package has the kind, but it cannot be used.
    """
    try:
        kind = kind_named(bundle.manifest.kind)
    except KeyError as error:
        known = ", ".join(sorted({*built_in(), *_others()}))
        raise BundleError(
            f"{bundle.path} is of kind {bundle.manifest.kind!r}; known are {known}. Install the package that has this "
            f"kind (an entry point of the group {GROUP}), or upgrade Tritone."
        ) from error
    if fault := kind.fault(bundle.manifest):
        raise BundleError(f"{bundle.path}: {fault}. Mend the manifest or export the bundle again.")
    return kind


def kind_named(name: str) -> Kind:
    """The kind of this name.

    Raises:
        KeyError: there is none.
        OperatorError: another package has it, but it cannot be loaded or is something else.
    """
    # Looking for those of other packages takes tens of milliseconds, and nobody can replace ours.
    package = package_of(name)
    point = _others()[name] if package is None else EntryPoint(name, f"{package}.kind:KIND", GROUP)
    try:
        kind = point.load()
    except Exception as error:  # code of others
        raise OperatorError(
            f"kind {name!r} cannot be loaded from {point.value}: {type(error).__name__}: {error}. Repair or remove the "
            "package that has it."
        ) from error
    if not isinstance(kind, Kind) or kind.name != name:
        raise OperatorError(
            f"the entry point {name} = {point.value} of the group {GROUP} must be a Kind whose name is {name!r}, got "
            f"{getattr(kind, 'name', kind)!r}. Repair or remove the package that has it."
        )
    return kind


def compile_search(kind: str, mode: str) -> None:
    """Compile what models of a kind need to be searched in a mode, or load it from the cache."""
    if compiler := kind_named(kind).compiler(mode):
        compiler()


def built_in() -> tuple[str, ...]:
    """The names of the kinds that are ours."""
    room = import_module(GROUP)
    return tuple(each.name.replace("_", "-") for each in pkgutil.iter_modules(room.__path__) if each.ispkg)


def _others() -> Mapping[str, EntryPoint]:
    """The kinds of other packages by name."""
    return {point.name: point for point in entry_points(group=GROUP)}
