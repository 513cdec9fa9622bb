"""What an ONNX file says of its graph, read without onnxruntime and without the package `onnx`.

The few fields that matter are described here, and protobuf parses them (onnx/onnx.proto). Weights beside the graph are
named and not read.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tritone.errors import BundleError
from tritone.runtime.description import ANY, GraphDescription, Size, TensorDescription
from tritone.runtime.onnx.external_data import LOOPS, locations

MAX_BYTES = 2**31 - 1  # of a protobuf message
MAX_AXES = 64
SHOWN_OPERATORS = 8
OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
TYPES = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "STRING",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
    14: "complex64",
    15: "complex128",
    16: "BF16",
}
"""ONNX's numbers of types; in capitals as Triton calls them."""

# message -> field -> (number, type); one that ends in * is repeated
SCHEMA = {
    "Entry": {"key": (1, "bytes"), "value": (2, "bytes")},
    "Opset": {"domain": (1, "bytes"), "version": (2, "int64")},
    "Axis": {"dim_value": (1, "int64"), "dim_param": (2, "bytes")},
    "Shape": {"dim": (1, "Axis*")},
    "Dense": {"elem_type": (1, "int32"), "shape": (2, "Shape")},
    "Other": {},
    "Type": {
        "tensor_type": (1, "Dense"),
        "sequence_type": (4, "Other"),
        "map_type": (5, "Other"),
        "optional_type": (9, "Other"),
        "sparse_tensor_type": (8, "Dense"),
    },
    "Value": {"name": (1, "bytes"), "type": (2, "Type")},
    "Tensor": {"dims": (1, "int64*"), "data_type": (2, "int32"), "name": (8, "bytes")},
    "Node": {"op_type": (4, "bytes"), "domain": (7, "bytes")},
    "Graph": {
        "node": (1, "Node*"),
        "name": (2, "bytes"),
        "initializer": (5, "Tensor*"),
        "input": (11, "Value*"),
        "output": (12, "Value*"),
    },
    "Model": {
        "ir_version": (1, "int64"),
        "producer_name": (2, "bytes"),
        "producer_version": (3, "bytes"),
        "graph": (7, "Graph"),
        "opset_import": (8, "Opset*"),
        "metadata_props": (14, "Entry*"),
    },
}


def describe(path: Path) -> GraphDescription:
    """Read an ONNX file.

    Raises:
        BundleError: it is no ONNX graph.
    """
    model = _parsed(path)
    graph = model.graph
    operators = Counter(_text(node.op_type) for node in graph.node)
    opsets = {_text(each.domain): each.version for each in model.opset_import}
    common = ", ".join(f"{name} {count}" for name, count in operators.most_common(SHOWN_OPERATORS))
    rest = f", and {len(operators) - SHOWN_OPERATORS} other kinds" if len(operators) > SHOWN_OPERATORS else ""
    weights = {_text(each.name): each for each in graph.initializer}
    numbers = sum(_product(each.dims) for each in weights.values())
    beside = sorted(locations(path))
    facts = {
        "graph": _text(graph.name),
        "opset": ", ".join(f"{version}" if not name else f"{name} {version}" for name, version in opsets.items()),
        "format": f"IR {model.ir_version}",
        "written by": f"{_text(model.producer_name)} {_text(model.producer_version)}".strip(),
        "operators": f"{sum(operators.values())}: {common}{rest}" if operators else "none",
        "weights": f"{numbers:,} numbers in {len(weights)} tensors",
        "weights beside it": ", ".join(beside),
        "metadata": ", ".join(_text(each.key) for each in model.metadata_props),
    }
    foreign = sorted(name for name in opsets if name not in OWN_DOMAINS)
    loops = [name for name in operators if name.encode() in LOOPS]
    inputs = tuple(_tensor(each) for each in graph.input if _text(each.name) not in weights)
    outputs = tuple(_tensor(each) for each in graph.output)
    twice = [name for name, count in Counter(each.name for each in (*inputs, *outputs)).items() if count > 1]
    notes = [f"operators of {', '.join(foreign)}, which onnxruntime does not bring"] if foreign else []
    notes += [f"two of its inputs and outputs are called {name!r}" for name in twice]
    notes += [f"loops ({', '.join(loops)}), whose end only running it tells"] if loops else []
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


def _parsed(path: Path) -> Any:
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise BundleError(f"{path} has {size} bytes; an ONNX file has at most {MAX_BYTES}")
        model = _model_class()()
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    except DecodeError as error:
        raise BundleError(f"{path} is no ONNX graph: {error}") from error
    if not model.ir_version or not model.HasField("graph") or not model.opset_import:
        raise BundleError(f"{path} is no ONNX graph: it has no version, no opset or no graph")
    return model


def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="tritone/onnx_description.proto", package="tritone_onnx_description")
    kinds = {"bytes": "TYPE_BYTES", "int64": "TYPE_INT64", "int32": "TYPE_INT32"}
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            each = message.field.add(name=field, number=number)
            each.label = each.LABEL_REPEATED if kind.endswith("*") else each.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            each.type = getattr(each, kinds.get(kind, "TYPE_MESSAGE"))
            if kind not in kinds:
                each.type_name = f".{file.package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Model"))


def _tensor(value: Any) -> TensorDescription:
    name, kind = _text(value.name), value.type
    for field, word in (("sequence_type", "a sequence"), ("map_type", "a map"), ("optional_type", "an optional value")):
        if kind.HasField(field):
            return TensorDescription(name, word, None)
    dense = kind.sparse_tensor_type if kind.HasField("sparse_tensor_type") else kind.tensor_type
    word = TYPES.get(dense.elem_type, f"type {dense.elem_type}")
    if kind.HasField("sparse_tensor_type"):
        word = f"sparse {word}"
    if not dense.HasField("shape"):
        return TensorDescription(name, word, None)
    return TensorDescription(name, word, tuple(_size(axis) for axis in dense.shape.dim[:MAX_AXES]))


def _size(axis: Any) -> Size:
    if axis.HasField("dim_value") and axis.dim_value >= 0:  # paddle2onnx writes -1 for any size
        return int(axis.dim_value)
    return _text(axis.dim_param) or ANY


def _product(dims: Any) -> int:
    result = 1
    for size in dims[:MAX_AXES]:
        result *= max(0, size)
    return result


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
