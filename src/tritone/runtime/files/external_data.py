"""What is to be known of an ONNX file before it is opened: the files that its weights are in, and what it is made of.

encoder.onnx  ->  GraphFile(weights=["weights.bin"], loops=False, attends=True, model=...)

An ONNX file may name any path for its external data, and older versions of onnxruntime (1.23, the last for Python 3.10)
read whatever is named. So the names are checked before a graph is opened.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from tritone.errors import BundleError

LOOPS = {"Loop", "Scan", "SequenceMap"}  # operators that run a graph as often as a tensor says
ATTENTION = "Softmax"


class GraphFile(NamedTuple):
    """The weights that lie beside a graph, whether it has a loop, whose end only running it shows, and attention.

    `model`: an `onnx.ModelProto`, without the weights that lie beside it.
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
    model = parsed(path)
    folder, files = path.parent.resolve(), []
    for location in sorted(locations(model)):
        target = (folder / location).resolve() if "\0" not in location else None
        if target is None or target.parent != folder:
            raise BundleError(
                f"cannot open {path}: it takes weights from {location!r}, which is not a file beside it. "
                "Do not use this bundle unless you know who made it; export the model again."
            )
        files.append(target)
    operators = {node.op_type for node in _below(model, "NodeProto")}
    return GraphFile(files, not operators.isdisjoint(LOOPS), ATTENTION in operators, model)


def parsed(path: Path) -> Any:
    """The `onnx.ModelProto` in a file; raises `BundleError` where there is none."""
    from onnx import ModelProto  # takes a quarter of a second to load, which only processes with such graphs need

    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (DecodeError, OSError) as error:
        raise BundleError(f"cannot open {path}: it is not an ONNX graph ({error}). Export the bundle again.") from error
    return model


def locations(model: Any) -> set[str]:
    """The names of all files that a graph takes tensors from."""
    return {
        entry.value if isinstance(entry.value, str) else entry.value.decode("utf-8", "surrogateescape")
        for tensor in _below(model, "TensorProto")
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _below(message: Message, kind: str) -> Iterator[Any]:
    """All messages of a kind below a message."""
    for field, values in message.ListFields():
        if field.message_type is None:
            continue
        for value in [values] if isinstance(values, Message) else values:
            if field.message_type.name == kind:
                yield value
            yield from _below(value, kind)
