"""What an ONNX file says of its graph, read without onnxruntime. Weights beside the graph are named and not read."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

from tritone.errors import BundleError
from tritone.runtime.description import ANY, GraphDescription, Size, TensorDescription, most_common
from tritone.runtime.files.external_data import LOOPS, locations, parsed

MAX_BYTES = 2**31 - 1  # of a protobuf message
MAX_AXES = 64
OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
TRITONS = {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16", "BFLOAT16": "BF16"}


def types() -> dict[int, str]:
    """ONNX's types by their numbers, with Triton's names of those that it has."""
    from onnx import TensorProto

    return {number: TRITONS.get(name, name) for name, number in TensorProto.DataType.items()}


def describe(path: Path) -> GraphDescription:
    """Read an ONNX file.

    Raises:
        BundleError: it is no ONNX graph.
    """
    model = _read(path)
    graph = model.graph
    operators = Counter(_text(node.op_type) for node in graph.node)
    opsets = {_text(each.domain): each.version for each in model.opset_import}
    weights = {_text(each.name): each for each in graph.initializer}
    numbers = sum(math.prod(max(0, size) for size in each.dims[:MAX_AXES]) for each in weights.values())
    beside = sorted(locations(model))
    facts = {
        "graph": _text(graph.name),
        "opset": ", ".join(f"{version}" if not name else f"{name} {version}" for name, version in opsets.items()),
        "format": f"IR {model.ir_version}",
        "written by": f"{_text(model.producer_name)} {_text(model.producer_version)}".strip(),
        "operators": most_common(operators) if operators else "none",
        "weights": f"{numbers:,} numbers in {len(weights)} tensors",
        "weights beside it": ", ".join(beside),
        "metadata": ", ".join(_text(each.key) for each in model.metadata_props),
    }
    foreign = sorted(name for name in opsets if name not in OWN_DOMAINS)
    loops = [name for name in operators if name in LOOPS]
    inputs = tuple(_tensor(each) for each in graph.input if _text(each.name) not in weights)
    outputs = tuple(_tensor(each) for each in graph.output)
    twice = [name for name, count in Counter(each.name for each in (*inputs, *outputs)).items() if count > 1]
    notes = [f"operators of {', '.join(foreign)}, which onnxruntime does not bring"] if foreign else []
    notes += [f"two of its inputs and outputs are called {name!r}" for name in twice]
    notes += [f"loops ({', '.join(loops)}), whose end only running it shows"] if loops else []
    for name in beside:
        if "\0" in name or (path.parent / name).resolve().parent != path.parent.resolve():
            notes.append(f"weights at {name!r}, outside of its folder: Tritone does not open it")
        elif not (path.parent / name).is_file():
            notes.append(f"its weights {name!r} are not beside it")
    return GraphDescription(
        format="ONNX",
        inputs=inputs,
        outputs=outputs,
        facts={name: value for name, value in facts.items() if value},
        notes=tuple(notes),
    )


def _read(path: Path) -> Any:
    if path.is_file() and (size := path.stat().st_size) > MAX_BYTES:
        raise BundleError(f"{path} has {size} bytes; an ONNX file has at most {MAX_BYTES}")
    model = parsed(path)
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise BundleError(f"{path} is not an ONNX graph: it has no version, no opset or no graph")
    return model


def _tensor(value: Any) -> TensorDescription:
    name, kind = _text(value.name), value.type
    for field, word in (("sequence_type", "a sequence"), ("map_type", "a map"), ("optional_type", "an optional value")):
        if kind.HasField(field):
            return TensorDescription(name, word, None)
    dense = kind.sparse_tensor_type if kind.HasField("sparse_tensor_type") else kind.tensor_type
    word = types().get(dense.elem_type, f"type {dense.elem_type}")
    if kind.HasField("sparse_tensor_type"):
        word = f"sparse {word}"
    if not dense.HasField("shape"):
        return TensorDescription(name, word, None)
    return TensorDescription(name, word, tuple(_size(axis) for axis in dense.shape.dim[:MAX_AXES]))


def _size(axis: Any) -> Size:
    if axis.HasField("dim_value") and axis.dim_value >= 0:  # paddle2onnx writes -1 for any size
        return int(axis.dim_value)
    return _text(axis.dim_param) or ANY


def _text(content: str | bytes) -> str:
    """Text of a field; what is not UTF-8 comes as bytes."""
    return content if isinstance(content, str) else content.decode("utf-8", "replace")
