"""What is to be known of an ONNX file before it is opened: the files that its weights are in, and what it is made of.

encoder.onnx  ->  GraphFile(weights=["weights.bin"], loops=False, attends=True, model=...)

An ONNX file may name any path for its external data, and older versions of onnxruntime (1.23, the last for Python 3.10)
read whatever is named. So the names are checked before a graph is opened. The `onnx` package is not part of the light
install; this describes the few fields of its schema that matter here (onnx/onnx.proto) and lets protobuf parse them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tritone.errors import BundleError

# message -> field -> (number, its message, int, float, or bytes for a string)
SCHEMA: dict[str, dict[str, tuple[int, str | type]]] = {
    "Entry": {"key": (1, bytes), "value": (2, bytes)},
    "Tensor": {
        "dims": (1, int),
        "data_type": (2, int),
        "name": (8, bytes),
        "raw_data": (9, bytes),
        "external_data": (13, "Entry"),
    },
    "SparseTensor": {"values": (1, "Tensor"), "indices": (2, "Tensor")},
    "Attribute": {
        "name": (1, bytes),
        "f": (2, float),
        "i": (3, int),
        "t": (5, "Tensor"),
        "g": (6, "Graph"),
        "ints": (8, int),
        "tensors": (10, "Tensor"),
        "graphs": (11, "Graph"),
        "type": (20, int),
        "sparse_tensor": (22, "SparseTensor"),
        "sparse_tensors": (23, "SparseTensor"),
    },
    "Node": {
        "input": (1, bytes),
        "output": (2, bytes),
        "op_type": (4, bytes),
        "attribute": (5, "Attribute"),
        "domain": (7, bytes),
    },
    "Value": {"name": (1, bytes)},
    "Graph": {
        "node": (1, "Node"),
        "initializer": (5, "Tensor"),
        "output": (12, "Value"),
        "sparse_initializer": (15, "SparseTensor"),
    },
    "Function": {"node": (7, "Node"), "attribute_proto": (11, "Attribute")},
    "OperatorSet": {"domain": (1, bytes), "version": (2, int)},
    "Model": {"graph": (7, "Graph"), "opset_import": (8, "OperatorSet"), "functions": (25, "Function")},
}

LOOPS = {b"Loop", b"Scan", b"SequenceMap"}  # operators that run a graph as often as a tensor says
ATTENTION = b"Softmax"


def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="tritone/onnx_external_data.proto", package="tritone_onnx")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            # Every field is repeated here, so that all of them are looked at where one occurs twice.
            described = message.field.add(
                name=field, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            )
            types = {bytes: described.TYPE_BYTES, int: described.TYPE_INT64, float: described.TYPE_FLOAT}
            described.type = types[kind] if isinstance(kind, type) else described.TYPE_MESSAGE
            if isinstance(kind, str):
                described.type_name = f".tritone_onnx.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tritone_onnx.Model"))


class GraphFile(NamedTuple):
    """The weights that lie beside a graph, whether it has a loop, whose end only running it tells, and attention.

    `model`: what was read of it, all of it.
    """

    weights: list[Path]
    loops: bool
    attends: bool
    model: Any


def inspect(path: Path) -> GraphFile:
    """Read what is to be known of a graph, and make sure that its weights lie in its own folder.

    Raises:
        BundleError: the file is no ONNX graph, or names weights outside of its folder.
    """
    model = _parsed(path)
    folder, files = path.parent.resolve(), []
    for location in sorted(_locations(model)):
        target = (folder / location).resolve() if "\0" not in location else None
        if target is None or target.parent != folder:
            raise BundleError(
                f"cannot open {path}: it takes weights from {location!r}, which is not a file beside it. "
                "Do not use this bundle unless you know who made it; export the model again."
            )
        files.append(target)
    operators = {name for node in _below(model, "Node") for name in node.op_type}
    return GraphFile(files, not operators.isdisjoint(LOOPS), ATTENTION in operators, model)


def locations(path: Path) -> set[str]:
    """The names of all files that the graph at `path` takes tensors from."""
    return _locations(_parsed(path))


def _parsed(path: Path) -> Any:
    model = _model_class()()
    try:
        model.ParseFromString(path.read_bytes())
    except (DecodeError, OSError) as error:
        raise BundleError(f"cannot open {path}: it is not an ONNX graph ({error}). Export the bundle again.") from error
    return model


def _locations(model: Any) -> set[str]:
    return {
        bytes(value).decode("utf-8", "surrogateescape")
        for entry in _below(model, "Entry")
        if b"location" in entry.key
        for value in entry.value
    }


def _below(message: Any, kind: str) -> Iterator[Any]:
    """All messages of a kind below a message."""
    for field, values in message.ListFields():
        if field.message_type is None:
            continue
        for value in values:
            if field.message_type.name == kind:
                yield value
            yield from _below(value, kind)
