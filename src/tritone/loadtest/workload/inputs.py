"""Samples of a model's own inputs: read from files, or made of the shapes that it declares.

    sample.json, sample.bin, sample.npz, folders of them  ->  read_inputs  ->  Inputs
    a model without any                                   ->  made_inputs  ->  Inputs

JSON is the body of a request of the inference protocol, or values by name as Triton's generation extension takes them;
`.bin` is a body with binary tensors. `tritone api` writes all three. Arrays of `.npz` may lack the axis of rows.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from tritone.bfloat16 import to_bfloat16
from tritone.client.endpoint import Endpoint
from tritone.client.transport import connect
from tritone.describe.models import MOST_VALUES, DescribedModel, DescribedTensor, described
from tritone.errors import InputError
from tritone.loadtest.senders.samples import Input, Sample
from tritone.loadtest.workload.workload import MAX_UTTERANCES

TIMEOUT_S = 30.0
FORMS = (".json", ".bin", ".npz")
OF_A_STREAM = ("sequence_id", "sequence_start", "sequence_end")  # each request is a stream of its own
OF_THE_ANSWER = ("binary_data_output",)  # how it travels is up to the sender
KINDS = {"BOOL": "b", "BYTES": "USO", "FP16": "iuf", "BF16": "iuf", "FP32": "iuf", "FP64": "iuf"}  # integers: "iu"
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A pool of samples, equally likely. `seconds` describes for people what they are, as that of a `Workload` does."""

    seconds: str
    samples: Sequence[Sample]
    notes: Sequence[str] = ()

    @property
    def pool(self) -> Sequence[Sample]:
        """What is sent."""
        return self.samples

    def mean_bytes(self, bytes_per_sample: int) -> float:
        """Mean size of a sample."""
        return sum(each.array.nbytes for sample in self.samples for each in sample.inputs) / len(self.samples)

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds that a plan can name: one, without a name."""
        return ("",)


def model_at(endpoint: Endpoint, name: str) -> DescribedModel:
    """A model as its server describes it.

    Raises:
        OperatorError: its configuration has no tensors.
        RetryError: the server cannot be reached.
    """
    transport = connect(endpoint)
    try:
        config = transport.model_config(name, TIMEOUT_S)
    finally:
        transport.close()
    return described(name, ParseDict(config, model_config_pb2.ModelConfig(), ignore_unknown_fields=True))


def made_inputs(model: DescribedModel) -> Inputs:
    """One sample of the shapes that a model declares or is warmed up with: ones, and words where it takes text.

    Raises:
        InputError: it would be larger than a sample may be.
    """
    if model.sample_values > MOST_VALUES:
        raise InputError(
            f"model '{model.name}' declares an input of {model.sample_values} values, one that is made has at most "
            f"{MOST_VALUES}. Give one with --input."
        )
    made = [(each, model.sample[each.name]) for each in model.sampled]
    sample = Sample(inputs=tuple(Input(each.name, each.type, _typed(each, array)) for each, array in made))
    shapes = ", ".join(f"{each.name} {list(array.shape)}" for each, array in made)
    note = f"the inputs were made from the model's configuration, all of them alike: {shapes}; --input sends others"
    return Inputs(seconds="made inputs", samples=[sample], notes=[note])


def read_inputs(paths: Sequence[str | os.PathLike[str]], model: DescribedModel, *, seed: int = 0) -> Inputs:
    """Read samples from files and folders; of more than fit, a random choice.

    Raises:
        InputError: a file cannot be read, or does not fit the model; the message names it.
    """
    files = [file for path in paths for file in _files(Path(path))]
    order = sorted(map(int, np.random.default_rng(seed).permutation(len(files))[:MAX_UTTERANCES]))
    samples = []
    for file in (files[index] for index in order):
        try:
            samples.append(_read(file, model))
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror or error}") from error
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{file}: it is not the body of a request of the inference protocol ({error!r})"
            ) from error
        except (ValueError, BadZipFile, EOFError) as error:
            raise InputError(f"{file}: {error}. It takes {_takes(model)}.") from error
    notes = [f"{len(order)} of the {len(files)} files were sent, chosen at random"] if len(order) < len(files) else []
    return Inputs(seconds=files[0].name if len(files) == 1 else f"{len(files)} inputs", samples=samples, notes=notes)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in FORMS and each.is_file())
    if not found:
        raise InputError(f"{path} has no samples: files that end in {', '.join(FORMS)}")
    return found


def _read(file: Path, model: DescribedModel) -> Sample:
    if file.suffix == ".npz":
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return _sample({name: arrays[name] for name in arrays.files}, model)
    content = file.read_bytes()
    body, end = _json(content)
    if not isinstance(body, dict):
        raise ValueError("a sample is a JSON object: the body of a request, or values by name")
    tensors = body.get("inputs")
    if not (isinstance(tensors, list) and all(isinstance(each, dict) and "name" in each for each in tensors)):
        return _sample({name: _plain(model, name, value) for name, value in body.items()}, model)
    arrays = {}
    for each in tensors:
        tensor = _named(model, each["name"])
        if each.get("datatype") != tensor.type:
            raise ValueError(f"{tensor.name} is of type {each.get('datatype')}, {tensor.type} is needed")
        shape = each.get("shape")
        if not (isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)):
            raise ValueError(f"{tensor.name} has no shape of whole numbers")
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None:
            values = _array(tensor.name, each.get("data"))
        else:
            values, end = _binary(tensor, content[end : end + size], size), end + size
        if values.size != math.prod(shape):
            raise ValueError(f"{tensor.name} has {values.size} values for shape {shape}")
        arrays[tensor.name] = values.reshape(shape)
    ignored = (*OF_A_STREAM, *OF_THE_ANSWER)
    parameters = {name: each for name, each in body.get("parameters", {}).items() if name not in ignored}
    if bad := [name for name, each in parameters.items() if not isinstance(each, str | int | float)]:
        raise ValueError(f"parameter {bad[0]} is neither text nor a number")
    return _sample(arrays, model, tuple(parameters.items()), tuple(_asked(model, body)), whole=True)


def _json(content: bytes) -> tuple[Any, int]:
    """The JSON that some bytes begin with, and where it ends: binary tensors may follow."""
    text = content.decode("latin-1")  # a character for each byte
    try:
        _, end = json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
        return json.loads(content[:end].decode("utf-8")), end
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error}); samples end in {', '.join(FORMS)}") from error


def _array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} has lists of different lengths") from error


def _asked(model: DescribedModel, body: Mapping[str, Any]) -> list[tuple[str, int]]:
    known = {each.name for each in model.outputs}
    asked = [
        (each["name"], int(each.get("parameters", {}).get("classification", 0))) for each in body.get("outputs", ())
    ]
    if unknown := [name for name, _ in asked if name not in known]:
        raise ValueError(f"model '{model.name}' has no output {unknown[0]}; it has {', '.join(sorted(known))}")
    # All of them is what a request without any asks for, and costs nobody the names.
    return [] if {name for name, _ in asked} == known and not any(classes for _, classes in asked) else asked


def _binary(tensor: DescribedTensor, content: bytes, size: int) -> Array:
    if len(content) != size:
        raise ValueError(f"{tensor.name} has {size} bytes, but the file ends after {len(content)} of them")
    if tensor.type == "BYTES":
        return np.asarray(deserialize_bytes_tensor(content), np.object_)
    # bfloat16 has no type of numpy's: its bits are the upper half of float32.
    if tensor.type == "BF16":
        return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(content, triton_to_np_dtype(tensor.type))


def _plain(model: DescribedModel, name: str, value: Any) -> Array:
    """A value, or a list of them, as the generation extension takes it: one row, in the order of its elements."""
    tensor = _named(model, name)
    array = _array(name, value)
    dims = tensor.shape[1:] if model.batched else tensor.shape
    if array.ndim <= 1 and array.ndim != len(dims) and dims.count(-1) <= 1:
        with suppress(ValueError):  # reported below, with the shape that it has
            array = array.reshape(dims)
    return array


def _sample(
    arrays: Mapping[str, Array],
    model: DescribedModel,
    parameters: tuple[tuple[str, Any], ...] = (),
    outputs: tuple[tuple[str, int], ...] = (),
    *,
    whole: bool = False,
) -> Sample:
    """Check arrays against a model. `whole`: whether they have the axis of rows."""
    if missing := [each.name for each in model.inputs if not each.optional and each.name not in arrays]:
        raise ValueError(f"input {', '.join(missing)} of model '{model.name}' is missing")
    inputs = []
    for name, given in arrays.items():
        tensor = _named(model, name)
        array = given[None] if model.batched and not whole and given.ndim == len(tensor.shape) - 1 else given
        fits = array.ndim == len(tensor.shape) and all(
            size in (-1, found) for size, found in zip(tensor.shape, array.shape, strict=True)
        )
        if not fits:
            raise ValueError(f"{name} has shape {list(given.shape)}, {list(tensor.shape)} is needed (-1 is any)")
        inputs.append(Input(name, tensor.type, _typed(tensor, array)))
    rows = {len(each.array) for each in inputs} if model.batched else {1}
    if len(rows) > 1 or not 0 < min(rows) <= max(model.max_batch_size, 1):
        counts = " and ".join(map(str, sorted(rows)))
        raise ValueError(f"its inputs have {counts} rows, they must have equally many, 1 to {model.max_batch_size}")
    return Sample(inputs=tuple(inputs), parameters=parameters, outputs=outputs)


def _typed(tensor: DescribedTensor, array: Array) -> Array:
    """The array as it travels; raises `ValueError` where its values are not of the tensor's type."""
    is_whole = tensor.type not in KINDS
    if array.dtype.kind not in KINDS.get(tensor.type, "iu"):
        raise ValueError(f"{tensor.name} has values of type {array.dtype}, {tensor.type} is needed")
    if tensor.type == "BYTES":
        texts = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1).tolist()]
        if wrong := [each for each in texts if not isinstance(each, bytes)]:
            raise ValueError(f"{tensor.name} has the value {wrong[0]!r}, {tensor.type} is needed: text")
        found = np.empty(array.size, np.object_)
        found[:] = texts
        return found.reshape(array.shape)
    if tensor.type == "BF16":
        return to_bfloat16(array.astype(np.float32))
    wanted = np.dtype(triton_to_np_dtype(tensor.type))
    if (
        is_whole
        and array.size
        and not (np.iinfo(wanted).min <= int(array.min()) and int(array.max()) <= np.iinfo(wanted).max)
    ):
        raise ValueError(
            f"{tensor.name} has values from {array.min()} to {array.max()}, which {tensor.type} cannot hold"
        )
    return np.ascontiguousarray(array, wanted)


def _named(model: DescribedModel, name: str) -> DescribedTensor:
    for each in model.inputs:
        if each.name == name:
            return each
    raise ValueError(f"model '{model.name}' has no input {name!r}")


def _takes(model: DescribedModel) -> str:
    return ", ".join(f"{each.name} {each.type}{list(each.shape)}" for each in model.inputs)
