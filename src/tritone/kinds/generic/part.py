"""The parts of the manifest of generic models: their tensors, and how they are served."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tritone.bundle.part import MAX_COUNT, MAX_STATE_BYTES, KindPart, NonNegative, Part, Parts, Positive, TensorType
from tritone.errors import BundleError
from tritone.paths import plain_text

TensorName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]
Size = Annotated[int, Field(gt=0, le=2**31 - 1)] | Literal[-1]
MAX_AXES = 32
MAX_TENSORS = 1024
MAX_ELEMENTS = 2**31  # of one row of a tensor; a request of gRPC has at most 2 GB
MAX_LABEL_BYTES = 16 * 2**20


def _elements(dims: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(size for size in dims if size > 0), dims.count(-1)


class GenericTensor(Part):
    """A tensor of a generic model: `type` is Triton's name of it, `dims` are without the batch axis, -1 for any size.

    `reshape`: the shape that the graph has where clients see `dims`, in the same order of elements; () is a scalar.
    """

    name: TensorName
    type: TensorType
    dims: Annotated[tuple[Size, ...], Field(min_length=1, max_length=MAX_AXES)]
    reshape: Annotated[tuple[Size, ...], Field(max_length=MAX_AXES)] | None = None

    @model_validator(mode="after")
    def _fit(self) -> "GenericTensor":
        for shape in (self.dims, self.reshape or ()):
            if (elements := math.prod(size for size in shape if size > 0)) > MAX_ELEMENTS:
                raise ValueError(
                    f"{self.name} has {elements} elements ({list(shape)}), at most {MAX_ELEMENTS} are allowed"
                )
        if self.reshape is not None and _elements(self.dims) != _elements(self.reshape):
            raise ValueError(
                f"{self.name}: reshape {list(self.reshape)} must have as many elements and as many sizes -1 as dims "
                f"{list(self.dims)}"
            )
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """What the graph has, without the batch axis."""
        return self.dims if self.reshape is None else self.reshape


class GenericInput(GenericTensor):
    """An input. `format`: of images, the order of their three axes. `optional`: the graph has a value of its own.

    `sample`: dims that the graph was tried with, for warm-ups and examples.
    """

    format: Literal["none", "nhwc", "nchw"] = "none"
    optional: bool = False
    sample: Annotated[tuple[Positive, ...], Field(max_length=MAX_AXES)] | None = None

    @model_validator(mode="after")
    def _is_image(self) -> "GenericInput":
        if self.sample is not None and (
            len(self.sample) != len(self.dims)
            or any(size not in (-1, tried) for size, tried in zip(self.dims, self.sample, strict=True))
        ):
            raise ValueError(f"{self.name}: sample {list(self.sample)} does not fit dims {list(self.dims)}")
        if self.format != "none" and len(self.dims) != 3:
            raise ValueError(f"{self.name}: format {self.format} is of images with 3 axes, dims are {list(self.dims)}")
        return self


class GenericOutput(GenericTensor):
    """An output. `labels`: a file of the bundle with a name for each of its elements, one on each line."""

    labels: Annotated[str, Field(min_length=1, max_length=255)] | None = None

    @model_validator(mode="after")
    def _is_counted(self) -> "GenericOutput":
        if self.labels is not None and (min(self.dims) < 0 or self.type == "STRING"):
            raise ValueError(
                f"{self.name}: labels name the elements of numbers with fixed dims, got {self.type} {list(self.dims)}"
            )
        return self

    @property
    def num_classes(self) -> int:
        """How many elements a row has, which is how many labels there must be."""
        return math.prod(self.dims)


class SequenceState(Part):
    """A tensor that a generic model passes from one request of a sequence to the next: graph `output` to `input`.

    `dims` are without the batch axis and fixed. `initial`: the value of all elements when a sequence starts.
    """

    input: TensorName
    output: TensorName
    type: TensorType
    dims: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=MAX_AXES)]
    initial: float = 0.0

    @model_validator(mode="after")
    def _fit(self) -> "SequenceState":
        if self.type == "STRING":
            raise ValueError(f"state {self.input} is of type STRING; states are numbers")
        if (size := math.prod(self.dims) * 8) > MAX_STATE_BYTES:
            raise ValueError(
                f"state {self.input} of a sequence takes {size} bytes, at most {MAX_STATE_BYTES} are allowed"
            )
        return self


class SequenceControl(Part):
    """An input of the graph that says where in its sequence a request is: 1 or 0, of shape (batch, 1); or its id."""

    input: TensorName
    kind: Literal["start", "end", "ready", "corrid"]
    type: Literal["BOOL", "INT32", "FP32", "UINT32", "INT64", "UINT64"]

    @model_validator(mode="after")
    def _fit(self) -> "SequenceControl":
        known = ("INT32", "UINT32", "INT64", "UINT64") if self.kind == "corrid" else ("BOOL", "INT32", "FP32")
        if self.type not in known:
            raise ValueError(f"control {self.input}: {self.kind} is of type {', '.join(known)}, got {self.type}")
        return self


class PythonFunction(Part):
    """A model that is a Python function: `function` of the file that the artifact of runtime `python` names first.

    `requirements`: what pip has to install for it. `decoupled`: it may answer a request any number of times. `calls`:
    names of other models that it asks.
    """

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}(\.[A-Za-z_][A-Za-z0-9_]{0,127})?$")]
    requirements: tuple[Annotated[str, Field(max_length=512)], ...] = ()
    decoupled: bool = False
    calls: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(max_length=MAX_TENSORS)
    ] = ()


class RateLimit(Part):
    """A resource that an instance takes while it runs: `count` of `name`, on each device or of the whole server."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    count: Positive
    everywhere: bool = False


class ServingPart(KindPart):
    """How a generic model is served unless its repository is built otherwise; None leaves it to `tritone build`.

    `version`: the version folder. `version_policy`: `latest:N`, `all` or `specific:1,3`. `instances`: `COUNT[@PLACE]`.
    `timeout_ms`: how long a request may wait; `timeout_action`: what happens then. `priority_timeouts_ms`: the same of
    each priority, the highest first, as many as `priorities`; 0 is never.
    `max_idle_s`: a sequence without a request for so long is closed. `strategy`: how sequences share batches.
    """

    key = "serving"
    optional = True
    version: Annotated[int, Field(gt=0, le=2**31)] = 1
    version_policy: Annotated[str, Field(pattern=r"^(all|latest:\d{1,9}|specific:\d{1,9}(,\d{1,9})*)$")] | None = None
    instances: Annotated[str, Field(max_length=64)] | None = None
    queue_delay_ms: Annotated[float, Field(ge=0, le=MAX_COUNT)] | None = None
    preferred_batch_sizes: tuple[Positive, ...] | None = None
    queue_limit: NonNegative | None = None
    timeout_ms: Annotated[float, Field(ge=0, le=2**40)] | None = None
    timeout_action: Literal["reject", "delay"] | None = None
    timeout_override: bool | None = None
    priorities: Annotated[int, Field(ge=0, le=1000)] | None = None
    default_priority: Annotated[int, Field(ge=0, le=1000)] | None = None
    priority_timeouts_ms: tuple[Annotated[float, Field(ge=0, le=2**40)], ...] | None = None
    preserve_order: bool | None = None
    response_cache: bool | None = None
    resources: tuple[RateLimit, ...] | None = None
    resource_priority: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_idle_s: Annotated[float, Field(gt=0, le=2**31)] | None = None
    strategy: Literal["direct", "oldest"] | None = None
    warmup: bool | None = None


class GenericPart(KindPart):
    """A model of any use: its tensors as clients see them, and the graph's that Tritone feeds itself.

    `max_batch_size` 0: tensors have no batch axis; otherwise it is the first axis of all of them, clients may send up
    to so many rows, and rows do not depend on each other.
    """

    key = "generic"
    inputs: Annotated[tuple[GenericInput, ...], Field(max_length=MAX_TENSORS)]
    outputs: Annotated[tuple[GenericOutput, ...], Field(min_length=1, max_length=MAX_TENSORS)]
    max_batch_size: Annotated[int, Field(ge=0, le=65536)] = 0
    states: Annotated[tuple[SequenceState, ...], Field(max_length=MAX_TENSORS)] = ()
    controls: Annotated[tuple[SequenceControl, ...], Field(max_length=8)] = ()
    python: PythonFunction | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> "GenericPart":
        fed = [*(each.name for each in self.inputs), *(each.input for each in self.states)]
        fed += [each.input for each in self.controls]
        for what, names in (
            ("inputs, states and controls", fed),
            ("outputs", [each.name for each in self.outputs]),
            ("states' outputs", [each.output for each in self.states]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what} need names of their own; {', '.join(twice)} occurs twice")
        if not fed:
            raise ValueError("a model needs at least one input")
        return self

    @property
    def is_sequence(self) -> bool:
        """Whether requests belong to sequences."""
        return bool(self.states or self.controls)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(each.labels for each in self.outputs if each.labels is not None)

    def check_files(self, path_of: Callable[[str], Path]) -> None:
        for output in self.outputs:
            if output.labels is not None:
                labels_of(output, path_of(output.labels))


def labels_of(output: GenericOutput, path: Path) -> tuple[str, ...]:
    """The names of the elements of an output, as its file has them.

    Raises:
        BundleError: there are not as many as elements, or the file is no text.
    """
    labels = read_labels(path)
    if len(labels) != output.num_classes:
        raise BundleError(
            f"{path.parent}: {output.labels} has {len(labels)} labels, but output {output.name} has "
            f"{output.num_classes} elements. Export the model again with one label on each line."
        )
    return labels


def read_labels(path: Path) -> tuple[str, ...]:
    """The labels of a file, one on each line, as Triton reads them.

    Raises:
        BundleError: it is too large, or not UTF-8.
    """
    if (size := path.stat().st_size) > MAX_LABEL_BYTES:
        raise BundleError(f"{path} has {size} bytes; labels are at most {MAX_LABEL_BYTES}")
    try:
        return tuple(plain_text(path.read_bytes()).rstrip("\n").split("\n"))
    except UnicodeDecodeError as error:
        raise BundleError(f"{path} is not UTF-8 ({error}). Save the labels as UTF-8, one on each line.") from error


PARTS = Parts(needs=(), own=(GenericPart, ServingPart))
