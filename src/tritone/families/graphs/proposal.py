"""What is proposed of a graph before a bundle is made of it: names, types, dims, batch axis; or what a user gives.

    GraphFacts (what the file declares), TensorOptions  ->  Proposal  ->  table, manifest part `generic`

A graph is tried where it can be run: sizes for its open axes, shapes of outputs that it does not declare, and whether
rows of a batch are independent of each other, which makes its first axis a batch axis.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from tritone.bundle.part import TensorType
from tritone.errors import BundleError, ExportError
from tritone.kinds.generic.part import (
    GenericInput,
    GenericOutput,
    GenericPart,
    SequenceControl,
    SequenceState,
    read_labels,
)
from tritone.pipelines.generic.tensors import DTYPES
from tritone.runtime.graph import Array

Axis = int | str | None
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

FUNCTION_ROWS = 32  # of a call of a Python function, where nobody says how many
MAX_BATCH_SIZE = 8  # where a graph has a batch axis, and nobody says how many rows to join
SIZES = (16, 32, 64, 128, 224, 8, 4, 2, 1, 3, 512, 4096, 16000)  # of open axes, in the order in which they are tried
IMAGE_SIZES = (224, 64, 32, 128, 256, 16, 8)  # and 1 then
IMAGE_AXIS = re.compile(r"^(h|w|height|width|img_?[hw]|image_?(height|width))$", re.IGNORECASE)
BATCH_AXIS = re.compile(r"^(n|b|bs|m|rows?|.*batch.*|unk__\d+)$", re.IGNORECASE)
MAX_TRIAL_BYTES = 256 * 2**20  # of one input
BYTES, BITS = 256, 2  # integers below are tried; 0 and 1 are indices of nearly all tables
TOLERANCE = 1e-3  # of what a row is alone and among others: sums in another order, at most


@dataclass(frozen=True)
class TensorFacts:
    """A tensor as a graph declares it. Axes of `shape`: a size, the name of an open one, or None; None: no rank."""

    name: str
    type: TensorType
    shape: tuple[Axis, ...] | None


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """A graph as its file declares it: `name` to propose for the model, and lines about it for people."""

    name: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    about: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TensorOptions:
    """What a user gives about the tensors of a graph; texts as of the commands.

    `dims`: NAME=SIZE,SIZE without the batch axis, -1 for any size. `reshape`: NAME=SIZE,SIZE, what clients see in place
    of the graph's own shape, without the batch axis. `layout`: [NAME=]nhwc or nchw. `labels`: [OUTPUT=]FILE.
    `states`: INPUT=OUTPUT[:VALUE]. `controls`: KIND=INPUT. `samples`: NAME=SIZE,SIZE.
    """

    max_batch_size: int | None = None
    dims: Sequence[str] = ()
    reshape: Sequence[str] = ()
    layout: Sequence[str] = ()
    labels: Sequence[str] = ()
    states: Sequence[str] = ()
    controls: Sequence[str] = ()
    samples: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What would be written. `labels`: files of outputs' labels, by the names that they get. `notes`: for people."""

    name: str
    generic: GenericPart
    about: tuple[str, ...] = ()
    labels: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """The table."""
        generic = self.generic
        yield f"model    {self.name}" + (f" ({', '.join(self.about)})" if self.about else "")
        rows = f"first axis, up to {generic.max_batch_size} rows in a call" if generic.max_batch_size else "none"
        yield f"batch    {rows}"
        cells = [("", "name", "type", "dims", "")]
        for each in generic.inputs:
            more = [each.format if each.format != "none" else "", "optional" if each.optional else "", _graphs(each)]
            cells.append(("input", each.name, each.type, _sizes(each.dims), ", ".join(filter(None, more))))
        for out in generic.outputs:
            more = [f"{out.num_classes} labels" if out.labels else "", _graphs(out)]
            cells.append(("output", out.name, out.type, _sizes(out.dims), ", ".join(filter(None, more))))
        for state in generic.states:
            initial = f"next value: {state.output}, first {state.initial:g}"
            cells.append(("state", state.input, state.type, _sizes(state.dims), initial))
        for control in generic.controls:
            cells.append(("control", control.input, control.type, "1", control.kind))
        widths = [max(len(row[column]) for row in cells) for column in range(4)]
        for row in cells:
            yield "  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for note in self.notes:
            yield f"note: {note}"


def propose(
    facts: GraphFacts,
    options: TensorOptions,
    run: Run | None,
    *,
    name: str | None = None,
    output: str | Path | None = None,
) -> Proposal:
    """Propose a model of a graph.

    Args:
        run: runs the graph on host arrays, with all inputs by name; None where it cannot be run here.
        name: of the model; None takes that of the folder `output`, or of the file where nothing will be written.

    Raises:
        ExportError: what the graph declares, or a label file, cannot be used; or the options do not fit the graph.
    """
    facts = _with_dims(facts, options)
    trial = _Trial(facts, run, _pairs(options.samples, "--sample", [each.name for each in facts.inputs]))
    batched, batch_note = _batch_axis(facts, options, trial)
    rows = 0 if not batched else options.max_batch_size or MAX_BATCH_SIZE
    notes = [*trial.notes, *([batch_note] if batch_note else [])]
    states, controls = _states(facts, options, bool(rows)), _controls(facts, options)
    own = {each.input for each in states} | {each.input for each in controls} | {each.output for each in states}
    shapes = _shapes(facts, trial, bool(rows))
    reshaped = {
        key: _numbers(value, "--reshape") for key, value in _pairs(options.reshape, "--reshape", shapes).items()
    }
    inputs = [each for each in facts.inputs if each.name not in own]
    layouts = _pairs(options.layout, "--axes", [each.name for each in inputs])
    labels = _labels(options.labels, [each.name for each in facts.outputs])
    files = {
        path: f"labels{f'-{index}' if index else ''}.txt" for index, path in enumerate(dict.fromkeys(labels.values()))
    }
    try:
        generic = GenericPart(
            inputs=tuple(
                GenericInput(
                    **_seen(each, shapes, reshaped),
                    format=layouts.get(each.name, "none"),  # type: ignore[arg-type]  # checked there
                    sample=None if each.name in reshaped else trial.sample_of(each, bool(rows)),
                )
                for each in inputs
            ),
            outputs=tuple(
                GenericOutput(**_seen(each, shapes, reshaped), labels=files.get(labels.get(each.name, Path())))
                for each in facts.outputs
                if each.name not in own
            ),
            max_batch_size=rows,
            states=states,
            controls=controls,
        )
    except ValidationError as error:
        raise ExportError(_fault(error)) from error
    _check_labels(generic, {files[path]: path for path in files})
    return Proposal(
        name=name or (facts.name if output is None else Path(output).resolve().name),
        generic=generic,
        about=facts.about,
        labels={files[path]: path for path in files},
        notes=tuple(notes),
    )


class _Trial:
    """Runs of a graph on made-up inputs: zeros and random rows."""

    def __init__(self, facts: GraphFacts, run: Run | None, given: Mapping[str, str]) -> None:
        self.facts = facts
        self.notes: list[str] = []
        self._run = run
        self._given = {name: _numbers(text, "--sample") for name, text in given.items()}
        self._sizes: dict[str, tuple[int, ...]] | None = None  # of each input, the first axis included
        self.outputs: Mapping[str, Array] = {}
        if run is not None:
            self._find_sizes(run)

    def _find_sizes(self, run: Run) -> None:
        error: Exception | None = None
        for size, image in zip_longest(SIZES, IMAGE_SIZES, fillvalue=1):
            sizes = {each.name: self._shape(each, size, image) for each in self.facts.inputs}
            largest = max((int(np.prod(shape, dtype=float)) * 8 for shape in sizes.values()), default=0)
            if largest > MAX_TRIAL_BYTES:
                error = ExportError(f"an input would have {largest / 1e9:.1f} GB")
                continue
            try:
                self.outputs = run({each.name: _value(each, sizes[each.name]) for each in self.facts.inputs})
            except Exception as failure:  # runtimes raise what they like
                error = failure
            else:
                self._sizes = sizes
                return
            if all(isinstance(axis, int) for each in self.facts.inputs for axis in each.shape or ()):
                break
        reason = _reason(error) if error else "it has no inputs"
        self.notes.append(
            f"the graph did not run on zeros, so nothing of it was tried: {reason}. Give sizes with --sample "
            "NAME=SIZE,..."
        )

    def _shape(self, tensor: TensorFacts, size: int, image: int) -> tuple[int, ...]:
        shape = tensor.shape or ()
        given = self._given.get(tensor.name)
        found = []
        for index, axis in enumerate(shape):
            if isinstance(axis, int):
                found.append(axis)
            elif given is not None and len(given) in (len(shape), len(shape) - 1):
                from_end = index - len(shape)
                found.append(given[from_end] if -from_end <= len(given) else 1)
            elif index == 0 or (isinstance(axis, str) and BATCH_AXIS.match(axis)):
                found.append(1)
            else:
                found.append(image if isinstance(axis, str) and IMAGE_AXIS.match(axis) else size)
        return tuple(found)

    def sample_of(self, tensor: TensorFacts, batched: bool) -> tuple[int, ...] | None:
        """The sizes that an input had when the graph ran, without its batch axis."""
        if self._sizes is None:
            return None
        sizes = self._sizes[tensor.name]
        found = sizes[1:] if batched else sizes
        return found or (1,)

    def rows_are_independent(self) -> bool | None:
        """Whether two rows together give what each gives alone; None if it could not be tried.

        Integers are bytes, or 0 and 1 where such rows differ or the graph does not take them: few networks have learnt
        inputs of two values, and of what they have not learnt they make numbers that no order of sums gives again.
        """
        if self._run is None or self._sizes is None:
            return None
        return any(self._are_independent(self._run, self._sizes, most) for most in (BYTES, BITS))

    def _are_independent(self, run: Run, sizes: Mapping[str, tuple[int, ...]], most: int) -> bool:
        random = np.random.default_rng(0)
        both = {each.name: _random(each, (2, *sizes[each.name][1:]), random, most) for each in self.facts.inputs}
        try:
            together = run(both)
            apart = [run({name: array[row : row + 1] for name, array in both.items()}) for row in range(2)]
        except Exception:  # runtimes raise what they like; a graph that takes one row alone has no batch axis
            return False
        return all(_same_rows(together[name], [each[name] for each in apart]) for name in together)


def _reason(error: Exception) -> str:
    """Why a graph did not run, in a line: of onnxruntime's message what the operator at fault says."""
    return str(error).rpartition("Status Message: ")[2].strip().splitlines()[0][:200]


def _same_rows(together: Array, apart: Sequence[Array]) -> bool:
    if together.ndim == 0 or len(together) != 2 or any(each.ndim != together.ndim or len(each) != 1 for each in apart):
        return False
    joined = np.concatenate(apart) if all(each.shape == apart[0].shape for each in apart) else None
    if joined is None or joined.shape != together.shape:
        return False
    if together.dtype.kind != "f":
        return bool(np.array_equal(joined, together))
    scale = float(np.nanmax(np.abs(joined), initial=0.0, where=np.isfinite(joined))) or 1.0
    return bool(np.allclose(joined, together, rtol=0, atol=TOLERANCE * scale, equal_nan=True))


def _value(tensor: TensorFacts, shape: tuple[int, ...]) -> Array:
    return np.full(shape, b"", object) if tensor.type == "STRING" else np.zeros(shape, DTYPES[tensor.type])


def _random(tensor: TensorFacts, shape: tuple[int, ...], generator: np.random.Generator, most: int) -> Array:
    dtype = DTYPES[tensor.type]
    if tensor.type == "STRING":
        return generator.choice(np.array([b"one", b"two", b"three"], object), shape)
    if dtype.kind == "f":
        return generator.normal(size=shape).astype(dtype)
    if dtype.kind in "iu":
        most = min(most, int(np.iinfo(dtype).max) + 1)
    return generator.integers(0, most, shape).astype(dtype)


def _batch_axis(facts: GraphFacts, options: TensorOptions, trial: _Trial) -> tuple[bool, str]:
    """Whether the first axis is a batch axis, and what to say about it."""
    asked = options.max_batch_size
    if asked is not None and asked < 0:
        raise ExportError(f"--max-batch-size must be 0 (no batch axis) or more, got {asked}")
    if asked == 0:
        return False, ""
    tensors = [*facts.inputs, *(each for each in facts.outputs if each.shape is not None)]
    fixed = [each.name for each in tensors if not each.shape or isinstance(each.shape[0], int)]
    if fixed:
        if asked:
            raise ExportError(
                f"--max-batch-size {asked}: the first axis of {', '.join(fixed)} is fixed or missing, so the graph has "
                "no batch axis. Use --max-batch-size 0, or export the graph with a dynamic first axis."
            )
        return False, ""
    first = {each.shape[0] for each in facts.inputs if each.shape and isinstance(each.shape[0], str)}
    independent = trial.rows_are_independent()
    if asked:
        if independent is False:
            return True, "rows of a batch are not independent of each other here; was --max-batch-size meant?"
        return True, ""
    if independent is False:
        return False, "the first axis is open, but rows depend on each other, so it is no batch axis"
    vectors = any(len(each.shape or ()) < 2 for each in facts.inputs)
    named = all(BATCH_AXIS.match(str(name)) for name in first) if first else not vectors
    if len(first) > 1 or (vectors and not named) or (independent is None and not named):
        axes = ", ".join(sorted(map(str, first))) or "of vectors"
        return False, f"the first axis ({axes}) was not taken for a batch axis; --max-batch-size N makes it one"
    return True, ""


def _shapes(facts: GraphFacts, trial: _Trial, batched: bool) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor without its batch axis, -1 for open axes."""
    found = {}
    for each in (*facts.inputs, *facts.outputs):
        shape = each.shape
        if shape is None and each.name in trial.outputs:
            shape = (None,) * trial.outputs[each.name].ndim
        if shape is None:
            raise ExportError(
                f"the graph does not declare how many axes {each.name} has. Say it: --dims {each.name}=-1,... (without "
                "the batch axis, -1 for any size)"
            )
        sizes = tuple(axis if isinstance(axis, int) else -1 for axis in shape)
        found[each.name] = sizes[1:] if batched else sizes
    return found


def _seen(
    tensor: TensorFacts, shapes: Mapping[str, tuple[int, ...]], reshaped: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """What a tensor is for clients: Triton's tensors have one axis at least, so a scalar is one of size 1."""
    shape = shapes[tensor.name]
    dims = reshaped.get(tensor.name, shape or (1,))
    return {"name": tensor.name, "type": tensor.type, "dims": dims, "reshape": None if dims == shape else shape}


def _with_dims(facts: GraphFacts, options: TensorOptions) -> GraphFacts:
    """The facts with the sizes that the user fixes. What a graph fixes stays."""
    tensors = [*facts.inputs, *facts.outputs]
    given = {
        key: _numbers(text, "--dims") for key, text in _pairs(options.dims, "--dims", [t.name for t in tensors]).items()
    }

    def changed(tensor: TensorFacts) -> TensorFacts:
        if tensor.name not in given:
            return tensor
        dims, shape = given[tensor.name], tensor.shape
        if shape is None:
            return replace(tensor, shape=(*(() if options.max_batch_size == 0 else (None,)), *_open(dims)))
        if len(dims) not in (len(shape), len(shape) - 1):
            raise ExportError(
                f"--dims {tensor.name}={_sizes(dims)}: the graph's shape is [{_shape_text(shape)}]; give its axes "
                "without the batch axis"
            )
        own = shape[len(shape) - len(dims) :]
        for size, axis in zip(dims, own, strict=True):
            if isinstance(axis, int) and axis != size:
                raise ExportError(
                    f"--dims {tensor.name}={_sizes(dims)}: the graph's shape is [{_shape_text(shape)}], whose {axis} "
                    f"cannot become {size}"
                )
        fixed = tuple(axis if size < 0 else size for size, axis in zip(dims, own, strict=True))
        return replace(tensor, shape=(*shape[: len(shape) - len(dims)], *fixed))

    return replace(facts, inputs=tuple(map(changed, facts.inputs)), outputs=tuple(map(changed, facts.outputs)))


def _states(facts: GraphFacts, options: TensorOptions, batched: bool) -> tuple[SequenceState, ...]:
    states = []
    inputs, outputs = {each.name: each for each in facts.inputs}, {each.name: each for each in facts.outputs}
    for name, text in _pairs(options.states, "--state", inputs).items():
        output, _, value = text.partition(":")
        if output not in outputs:
            raise ExportError(f"--state {name}={text}: the graph has no output {output!r}; it has {', '.join(outputs)}")
        if inputs[name].type != outputs[output].type:
            raise ExportError(
                f"--state {name}={text}: {name} is {inputs[name].type}, {output} is {outputs[output].type}"
            )
        shape = inputs[name].shape or ()
        axes = shape[1:] if batched else shape
        dims = tuple(axis for axis in axes if isinstance(axis, int))
        if len(dims) < len(axes):
            raise ExportError(
                f"--state {name}={text}: a state has fixed sizes, the graph's are [{_shape_text(axes)}]. Fix them with "
                f"--dims {name}=SIZE,..."
            )
        try:
            number = float(value) if value else 0.0
            states.append(
                SequenceState(input=name, output=output, type=inputs[name].type, dims=dims or (1,), initial=number)
            )
        except ValidationError as error:
            raise ExportError(_fault(error)) from error
        except ValueError:
            raise ExportError(f"--state {name}={text}: {value!r} is no number to start with") from None
    return tuple(states)


def _controls(facts: GraphFacts, options: TensorOptions) -> tuple[SequenceControl, ...]:
    inputs, controls = {each.name: each for each in facts.inputs}, []
    for text in options.controls:
        kind, sign, name = text.partition("=")
        if not sign or name not in inputs:
            raise ExportError(f"--control {text}: give KIND=INPUT; the graph's inputs are {', '.join(inputs)}")
        try:
            controls.append(SequenceControl(input=name, kind=kind.lower(), type=inputs[name].type))  # type: ignore[arg-type]
        except ValidationError as error:
            raise ExportError(f"--control {text}: {_fault(error)}") from error
    return tuple(controls)


def _labels(texts: Sequence[str], outputs: Sequence[str]) -> dict[str, Path]:
    """The label files by the outputs that they belong to."""
    found = {}
    for text in texts:
        name, sign, path = text.partition("=")
        if not sign or name not in outputs:
            if len(outputs) > 1:
                raise ExportError(f"--labels {text}: say which output it is of, {' or '.join(outputs)}: OUTPUT=FILE")
            name, path = outputs[0], text
        if not Path(path).is_file():
            raise ExportError(f"--labels: there is no file {path}")
        found[name] = Path(path)
    return found


def _check_labels(generic: GenericPart, files: Mapping[str, Path]) -> None:
    for output in generic.outputs:
        if output.labels is None:
            continue
        try:
            count = len(read_labels(files[output.labels]))
        except BundleError as error:
            raise ExportError(str(error)) from error
        if count != output.num_classes:
            raise ExportError(
                f"{files[output.labels]} has {count} labels, but a row of output {output.name} has "
                f"{output.num_classes} elements. Give one label on each line, in the order of the elements."
            )


def _pairs(texts: Sequence[str], flag: str, names: Any) -> dict[str, str]:
    """NAME=VALUE texts; the name may be left out where there is only one."""
    known, found = list(names), {}
    for text in texts:
        # A name may have "=" itself, so the longest known name that fits is meant.
        name = max((each for each in known if text.startswith(f"{each}=")), key=len, default=None)
        value = text if name is None else text[len(name) + 1 :]
        if name is None and (len(known) != 1 or "=" in text):
            raise ExportError(f"{flag} {text}: give NAME=VALUE, with one of the names {', '.join(known)}")
        name = known[0] if name is None else name
        if name in found:
            raise ExportError(f"{flag}: {name} is given twice")
        found[name] = value
    return found


def _numbers(text: str, flag: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ExportError(f"{flag}: {text!r} should be whole numbers separated by commas, -1 for any size") from None


def _open(dims: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(None if size < 0 else size for size in dims)


def _graphs(tensor: GenericInput | GenericOutput) -> str:
    return "" if tensor.reshape is None else f"[{_sizes(tensor.reshape)}] in the graph"


def _sizes(dims: Sequence[int]) -> str:
    return ",".join(map(str, dims))


def _shape_text(shape: Sequence[Axis]) -> str:
    return ", ".join("?" if axis is None else str(axis) for axis in shape)


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
