"""What the project asks of a kind of models.

    bundle, graphs     what a manifest and the graphs of such a model must have
    serving            in which modes it is served, by which graphs, with which tensors
    requests, results  how parameters become options, and results output tensors

A kind has no state. `Kind` has the answers of a model that takes waveforms and is searched in no way; what it leaves
open is abstract.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from tritone.audio.waveform import Samples, widened
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import SPEECH_PARTS, Manifest, Role
from tritone.errors import BundleError, InputError, TritoneError
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.kinds.audio import read_waveforms
from tritone.pipelines.wire import Tensor, audio_inputs
from tritone.runtime.graph import Array, TensorSpec

Mode = Literal["offline", "streaming", "embedding", "generic"]
Stage = Literal["features", "acoustic", "decoder"]
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


class Kind(ABC):
    """One kind of models."""

    name: ClassVar[str]  # in manifests
    noun: ClassVar[str]  # in messages: "a speaker model"
    does: ClassVar[str]  # in messages about what it does not do: "it makes embeddings"
    usage: ClassVar[str]  # the way to use it: "Load it with tritone.load"
    encoders: ClassVar[Mapping[Mode, Role]]  # modes in which it is served, and the graph of each
    writes_text: ClassVar[bool] = False  # with a pipeline of its own, which nothing but this kind has
    stages: ClassVar[tuple[Stage, ...]] = ()  # of an ensemble that serves it; none: there are no ensembles of it
    modes: ClassVar[tuple[str, ...]] = ()  # of search
    options: ClassVar[type | None] = None  # of requests: SearchOptions, EmbedOptions, or a class of its own
    parameters: ClassVar[tuple[str, ...]] = ()  # names of request parameters
    optional_outputs: ClassVar[Mapping[str, TensorSpec]] = {}  # that graphs may have beyond `tensors`
    whole_outputs: ClassVar[tuple[str, ...]] = ()  # of the network that are one for an input, however long it is
    allows_silence: ClassVar[bool] = True  # audio too short for the network has a result, an empty one
    takes_pcm: ClassVar[bool] = False  # its pipelines take 16-bit samples as they come
    checks_levels: ClassVar[bool] = False  # its pipelines find samples that are not finite, when they fill blocks
    stream_details: ClassVar[str] = ""  # the output of a stream that is made only where it is asked for
    has_class_ids: ClassVar[bool] = False  # the best token of each frame is an output of its own

    # The bundle and its graphs.

    def fault(self, manifest: Manifest) -> str | None:
        """What the manifest has too much or too little for a model of this kind; None if nothing."""
        for part in (*SPEECH_PARTS, "tensors"):
            if getattr(manifest, part) is not None:
                return f"kind is {self.name!r}, which has no part `{part.replace('tensors', 'generic')}`"
        return None

    @abstractmethod
    def tensors(self, manifest: Manifest, role: Role) -> tuple[Specs, Specs]:
        """The inputs and outputs that a graph for a role must have."""

    def roles(self, mode: str) -> tuple[Role, ...]:
        """The graphs beside the encoder that searching in a mode needs."""
        return ()

    def searches(self, bundle: Bundle) -> tuple[str, ...]:
        """The modes of search that requests to a bundle's model may choose."""
        return ()

    # Serving.

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
