"""Weights that are too large for a graph: kept in a file beside it while it is made, and mapped from there.

    WeightFile("…/.weights").keep(tensor, array)   the graph has the place, the file the numbers
    array_of(tensor)                               the numbers again, wherever they are

A protobuf message holds 2 GB, so a graph of a large network never has its weights inside. What `keep` makes of a tensor
names the file by its whole path, which runtimes refuse: `beside` makes a graph that can be opened in the file's folder.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LEAST_BYTES = 1024  # smaller tensors stay inside the graph
ALIGNMENT = 64  # bytes, so that a memory-mapped tensor starts on a cache line


class WeightFile:
    """A file that holds tensors, equal ones once."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._file = self.path.open("wb")
        self._places: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, tensor: TensorProto, array: np.ndarray, location: str | None = None) -> None:
        """Have a tensor point to its numbers in the file; small ones stay where they are.

        Args:
            tensor: is changed in place.
            array: its numbers.
            location: the file's name as the tensor has it; by default its whole path.
        """
        array = np.ascontiguousarray(array)
        if array.nbytes < LEAST_BYTES:
            if tensor.data_location == TensorProto.EXTERNAL or not tensor.HasField("raw_data"):
                name = tensor.name
                tensor.CopyFrom(numpy_helper.from_array(np.array(array), name))
            return
        data = array.reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._places:
            self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
            self._places[digest] = (self._file.tell(), array.nbytes)
            self._file.write(data)
            self._file.flush()  # it is read while it is written
        offset, length = self._places[digest]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (
            ("location", location or str(self.path)),
            ("offset", str(offset)),
            ("length", str(length)),
        ):
            tensor.external_data.add(key=key, value=value)


def array_of(tensor: TensorProto) -> np.ndarray:
    """The numbers of a tensor; those in a file are mapped, not read."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    external = {entry.key: entry.value for entry in tensor.external_data}
    dtype, shape = helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(external["location"], dtype, "r", int(external.get("offset", 0)), shape)


def inner_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside of a graph, each before the one that it is in, and the graph itself."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from inner_graphs(inner)
    yield graph


def is_large(model: onnx.ModelProto) -> bool:
    """Whether tensors of a graph are in a file."""
    return any(
        tensor.data_location == TensorProto.EXTERNAL
        for graph in inner_graphs(model.graph)
        for tensor in graph.initializer
    )


def point_into(model: onnx.ModelProto, folder: Path) -> None:
    """Have a graph that was read without its weights name their files by whole paths, in place.

    Raises:
        ValueError: a tensor lies beyond the end of its file.
    """
    for graph in inner_graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = str((folder / entry.value).resolve())
            array_of(tensor)


def write(model: onnx.ModelProto, path: Path) -> list[str]:
    """Write a graph, and weights that it has in files to one beside it; the names of what was written."""
    names = [path.name]
    if is_large(model):
        names.append(f"{path.stem}.weights.bin")
        with WeightFile(path.parent / names[1]) as weights:
            for graph in inner_graphs(model.graph):
                for tensor in graph.initializer:
                    weights.keep(tensor, array_of(tensor), names[1])
    path.write_bytes(model.SerializeToString())
    return names


def check(model: onnx.ModelProto) -> None:
    """Check a graph; one whose weights are in a file is checked when it is written, see `check_file`."""
    if not is_large(model):
        onnx.checker.check_model(model, full_check=True)


def check_file(path: Path) -> None:
    """Check a graph that was written, whose weights are beside it."""
    onnx.checker.check_model(str(path), full_check=True)


def beside(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that names files of weights without their folder."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for graph in inner_graphs(result.graph):
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = Path(entry.value).name
    return result
