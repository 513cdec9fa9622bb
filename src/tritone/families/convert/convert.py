"""An ONNX graph converted: precision, opset, fixed shapes.

    model.onnx  ->  Conversion: model.fp16.onnx, and how far its outputs are from those of model.onnx

Every result is opened and run before it gets its name.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import onnx

from tritone.errors import ExportError
from tritone.families.convert.calls import Call, InputFiles, cast, merged
from tritone.families.convert.drift import OutputDrift, compare
from tritone.families.convert.fixed import fix_shapes
from tritone.families.convert.fp16 import to_fp16
from tritone.families.convert.int8 import calibrate, multiply_int8, store_int8
from tritone.families.convert.opset import OLDEST, opset_of, to_opset
from tritone.families.convert.reference import ReferenceGraph
from tritone.families.convert.samples import samples
from tritone.families.onnx.forms import constants_as_weights
from tritone.families.onnx.source import read_source
from tritone.families.onnx.trial import opened as open_onnx
from tritone.runtime.files.external_data import inspect
from tritone.runtime.shapes import Shapes

Target = Literal["fp16", "int8-weights", "int8-dynamic", "int8-static"]
TARGETS: tuple[Target, ...] = get_args(Target)

NEEDED: Mapping[Target, int] = {"fp16": OLDEST, "int8-weights": OLDEST, "int8-dynamic": 18, "int8-static": 13}
"""The opset that a precision is written in, at least."""

EXACT = 1e-3
"""Largest change, relative to the size of an output, of a conversion that should change nothing."""

ROUNDED_CALLS = 8  # of float16, in numpy
ONE_FILE_BYTES = 1_900_000_000  # of a graph with its weights inside; protobuf ends at 2 GiB


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A converted graph. Sizes in bytes, weights included. `drift`: against the original, over `calls` calls.

    `rounded`: whether every operator was rounded as its type says. onnxruntime rounds the weights of a float16 graph
    alone on a CPU; ONNX's reference implementation, which rounds all, does not know every operator.
    """

    path: Path
    opset: int
    opset_before: int
    num_bytes: int
    num_bytes_before: int
    calls: int
    drift: Sequence[OutputDrift]
    rounded: bool


def convert_onnx(
    source: Path,
    output: Path,
    *,
    target: Target | None = None,
    opset: int | None = None,
    shapes: Shapes | None = None,
    calibration: InputFiles | None = None,
    inputs: InputFiles | None = None,
    keep: Collection[str] = (),
    symmetric: bool = False,
    narrow_io: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> Conversion:
    """Convert an ONNX graph; the original stays as it is.

    Args:
        source: the graph; its weights lie beside it.
        output: the file to write. Weights are inside, or beside it as `<name>.data` if they have more than 1.9 GB.
        target: the precision; None leaves it.
        opset: version of ONNX's operators; None leaves it.
        shapes: of all inputs that vary; None leaves them varying.
        calibration: what int8-static finds ranges with.
        inputs: what the result is compared with the original on; None takes the calibration set, or without one makes
            inputs from the shapes.
        keep: types or names of nodes that stay in float32.
        symmetric: activations of int8-static are int8 around 0, as TensorRT wants them.
        narrow_io: inputs and outputs of fp16 become float16.

    Raises:
        ExportError: the graph cannot be read or converted, or the result does not do what the original does.
        InputError: files of inputs do not fit.
        ValueError: nothing is to be done, or options do not fit together or the graph.
    """
    _check_options(target, opset, shapes, calibration, keep, symmetric, narrow_io)
    inputs = inputs or calibration
    read = read_source(source, oldest=OLDEST)
    _drop_weights_from_inputs(read.model)
    constants_as_weights(read.model)
    model, before = read.model, opset_of(read.model)
    if shapes is not None:
        progress(f"fixing shapes to {shapes}")
        model = fix_shapes(read, shapes)
    if opset is not None and opset > before:
        progress(f"opset {before} to {opset}")
        model = to_opset(model, opset)
    with tempfile.TemporaryDirectory(prefix=".tritone-convert-", dir=output.parent) as folder:
        original = open_onnx(source, quiet=inputs is None)  # inputs that are made may not fit
        if target is not None:
            if (needed := NEEDED[target]) > opset_of(model):
                progress(f"opset {opset_of(model)} to {needed}, which {target} is written in")
                model = to_opset(model, needed)
            progress(f"converting to {target}")
            model = _converted(model, target, calibration, keep, symmetric, narrow_io)
        if opset is not None and opset < opset_of(model):
            progress(f"opset {opset_of(model)} to {opset}")
            model = to_opset(model, opset)
        _check(model, source)
        written = _written(model, Path(folder) / output.name)
        opened = open_onnx(written[0])
        specs = merged(original.inputs, opened.inputs)
        calls = list(inputs.calls(specs)) if inputs else samples(original, specs)
        exact = _reference(written[0], calls[0]) if target == "fp16" and calls else None
        if exact is not None:
            opened(cast(calls[0], opened.inputs), list(opened.outputs))  # onnxruntime takes it, too
            calls = calls[:ROUNDED_CALLS]
        progress(f"comparing both on {len(calls)} calls{'' if inputs else ' made from the shapes'}")
        count, drift = compare(original, exact or opened, calls)
        _check_drift(drift, target, source)
        for file in reversed(written):  # the graph last: it is whole when it is there
            file.replace(output.parent / file.name)
        sizes = [sum(each.stat().st_size for each in (path, *inspect(path).weights)) for path in (source, output)]
    return Conversion(
        path=output,
        opset=opset_of(model),
        opset_before=before,
        num_bytes=sizes[1],
        num_bytes_before=sizes[0],
        calls=count,
        drift=drift,
        rounded=exact is not None or target != "fp16",
    )


def _check_options(
    target: Target | None,
    opset: int | None,
    shapes: Shapes | None,
    calibration: InputFiles | None,
    keep: Collection[str],
    symmetric: bool,
    narrow_io: bool,
) -> None:
    if target is None and opset is None and shapes is None:
        raise ValueError(f"nothing to convert: choose a precision ({', '.join(TARGETS)}), an opset or shapes")
    if target not in (None, *TARGETS):
        raise ValueError(f"{target!r} is not {', '.join(TARGETS[:-1])} or {TARGETS[-1]}")
    if (target == "int8-static") != (calibration is not None):
        raise ValueError(
            "int8-static needs a calibration set, real inputs to find ranges of numbers with"
            if calibration is None
            else f"a calibration set is for int8-static, and the precision is {target or 'not converted'}"
        )
    for given, name, wanted in (
        (bool(keep), "keep", ("fp16", "int8-dynamic", "int8-static")),
        (symmetric, "symmetric", ("int8-static",)),
        (narrow_io, "narrow_io", ("fp16",)),
    ):
        if given and target not in wanted:
            raise ValueError(f"{name} is for {', '.join(wanted)}")


def _converted(
    model: onnx.ModelProto,
    target: Target,
    calibration: InputFiles | None,
    keep: Collection[str],
    symmetric: bool,
    narrow_io: bool,
) -> onnx.ModelProto:
    if target == "fp16":
        return to_fp16(model, keep, narrow_io=narrow_io)
    if target == "int8-weights":
        return store_int8(model)
    if target == "int8-dynamic":
        return multiply_int8(model, keep)
    assert calibration is not None
    return calibrate(model, calibration, keep, symmetric=symmetric)


def _drop_weights_from_inputs(model: onnx.ModelProto) -> None:
    """Old files list weights as inputs, with a default: conversions would leave inputs without one."""
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _check(model: onnx.ModelProto, source: Path) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = str(error).strip()[:300]
        raise ExportError(
            f"{source} converted is not a valid graph: {reason}. Convert less of it, or keep it"
        ) from error


def _written(model: onnx.ModelProto, path: Path) -> list[Path]:
    """The files of a graph: itself first, then its weights if they do not fit into it."""
    if model.ByteSize() <= ONE_FILE_BYTES:
        onnx.save_model(model, path)
        return [path]
    data = path.with_name(f"{path.name}.data")
    onnx.save_model(model, path, save_as_external_data=True, location=data.name)
    return [path, data]


def _reference(path: Path, call: Call) -> ReferenceGraph | None:
    """The graph in ONNX's reference implementation, if that can run it."""
    try:
        graph = ReferenceGraph(path)
        graph(cast(call, graph.inputs), list(graph.outputs))
    except Exception:  # it lacks operators, and some of their forms, in as many ways
        return None
    return graph


def _check_drift(drift: Sequence[OutputDrift], target: Target | None, source: Path) -> None:
    for each in drift:
        if not each.is_finite:
            raise ExportError(
                f"output {each.name} of {source} has numbers that are not finite after the conversion: they do not fit "
                f"into {target or 'it'}. Keep what makes them in float32 (--keep-fp32 Softmax,NAME), or stay in float32"
            )
        if target is None and (each.largest or 0.0) > EXACT * max(each.size or 0.0, EXACT):
            raise ExportError(
                f"output {each.name} of {source} changes by {each.largest:.3g} where nothing should change: an "
                "operator means something else in the other opset or shape. Export the model again for it"
            )
