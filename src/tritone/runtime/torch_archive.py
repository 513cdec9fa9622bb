"""Reading the files of `torch.export.save` (.pt2) as data.

    encoder.pt2  ->  model.json, tensors by name, names of inputs and outputs

`torch.export.load` is for files of friends: it unpickles, evaluates text as Python, and may load compiled code. A
bundle may come from a stranger, so its archive is read here: a zip whose records are JSON and raw numbers. Records of
any other kind are never looked at, and where one of them would be needed the file is refused.
Source of the format: torch/export/pt2_archive/_package.py and torch/_export/serde/schema.py, torch 2.11 to 2.13.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tritone.errors import BundleError

SCHEMA_MAJOR = 8  # of model.json; torch raises it when older readers would misread a file
MAX_JSON_BYTES = 2**28
MAX_RECORDS = 2**17
NAMES = "tritone.json"  # our own record: what inputs and outputs are called
DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
"""torch's numbers of types, as far as programs may use them."""


class Archive:
    """An open .pt2 file. What is wrong with it raises `BundleError`, or `ValueError` where its form is not torch's."""

    def __init__(self, path: Path) -> None:
        """Open the file and check its frame: kind, version, sizes."""
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise self.fault(f"it is not an archive of torch.export ({error})") from error
        records = self._zip.infolist()
        if not records or len(records) > MAX_RECORDS:
            raise self.fault(f"the archive has {len(records)} records, 1 to {MAX_RECORDS} are allowed")
        for record in records:
            # Records are stored as they are: no small file can unpack to a huge one.
            if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
                raise self.fault(f"record {record.filename!r} is compressed, as torch never writes it")
        # All records lie in one folder, which torch names after the file.
        self._root = records[0].filename.partition("/")[0]
        self._sizes = {record.filename: record.file_size for record in records}
        kind, version = self.read("archive_format", 16), self.read("archive_version", 16)
        if (kind, version) != (b"pt2", b"0"):
            raise self.fault(f"the archive is of kind {kind!r} and version {version!r}, known is pt2 of version 0")
        if self.has("byteorder") and self.read("byteorder", 16) != b"little":
            raise self.fault("its numbers are not little-endian")

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._zip.close()

    def fault(self, reason: str) -> BundleError:
        """The error that says why this file cannot be used."""
        return BundleError(f"cannot open {self.path}: {reason}. Export the bundle again with this version of torch.")

    def has(self, name: str) -> bool:
        """Is there a record of this name?"""
        return f"{self._root}/{name}" in self._sizes

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        """The content of a record of at most `max_bytes`."""
        full = f"{self._root}/{name}"
        if full not in self._sizes:
            raise self.fault(f"the archive has no record {name!r}")
        if max_bytes is not None and self._sizes[full] > max_bytes:
            raise self.fault(f"record {name!r} has {self._sizes[full]} bytes, at most {max_bytes} are allowed")
        try:
            return self._zip.read(full)
        except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError) as error:
            raise self.fault(f"record {name!r} is damaged ({error})") from error

    def json(self, name: str) -> Any:
        """A record as JSON."""
        try:
            return json.loads(self.read(name, MAX_JSON_BYTES))
        except (ValueError, RecursionError) as error:
            raise self.fault(f"record {name!r} is not valid JSON ({error})") from error

    def program(self) -> Mapping[str, Any]:
        """The program's description, model.json."""
        content = self.json("models/model.json")
        version = field(content, "schema_version", dict)
        if version.get("major") != SCHEMA_MAJOR:
            raise self.fault(
                f"torch {content.get('torch_version')} wrote it in schema {version}; known is {SCHEMA_MAJOR}.x"
            )
        return field(content, "graph_module", dict)

    def names(self) -> Mapping[str, Any]:
        """What inputs and outputs are called; empty for files that `tritone export` did not write."""
        content = self.json(f"extra/{NAMES}") if self.has(f"extra/{NAMES}") else {}
        if not isinstance(content, dict):
            raise self.fault(f"record {NAMES!r} must hold an object")
        return content

    def tensors(self) -> dict[str, torch.Tensor]:
        """All weights and constants by their qualified name, on the CPU.

        Tensors that share a record share memory, as they did when they were saved.
        """
        found: dict[str, torch.Tensor] = {}
        for folder, config in (
            ("data/weights", "model_weights_config.json"),
            ("data/constants", "model_constants_config.json"),
        ):
            entries = field(self.json(f"{folder}/{config}"), "config", dict)
            held: dict[str, torch.Tensor] = {}
            for name, entry in entries.items():
                if entry.get("use_pickle") is not False or entry.get("tensor_meta") is None:
                    raise self.fault(f"{name} is a pickled object, which could run any code when it is read")
                record, meta = field(entry, "path_name", str), entry["tensor_meta"]
                dtype = self.dtype(meta.get("dtype"))
                if record not in held:
                    held[record] = self._flat(f"{folder}/{record}", dtype)
                found[name] = self._strided(name, held[record], meta, dtype)
        return found

    def dtype(self, number: Any) -> torch.dtype:
        """A type from torch's number of it."""
        if not isinstance(number, int) or number not in DTYPES:
            raise self.fault(f"it uses tensors of type {number}, which is none of {', '.join(map(str, DTYPES))}")
        return DTYPES[number]

    def _flat(self, record: str, dtype: torch.dtype) -> torch.Tensor:
        content = bytearray(self.read(record))
        if len(content) % dtype.itemsize:
            raise self.fault(f"record {record!r} has {len(content)} bytes, no multiple of {dtype.itemsize}")
        return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)

    def _strided(self, name: str, flat: torch.Tensor, meta: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
        shape = [count(size) for size in field(meta, "sizes", list)]
        strides = [count(stride) for stride in field(meta, "strides", list)]
        offset = count(meta.get("storage_offset"))
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False))
        if (
            len(shape) != len(strides)
            or flat.dtype != dtype
            or min([*shape, *strides, offset], default=0) < 0
            or (0 not in shape and last >= flat.numel())
        ):
            raise self.fault(f"{name} does not fit its record: {shape} with strides {strides} from {offset}")
        return flat.as_strided(shape, strides, offset)


def field(content: Any, name: str, kind: type) -> Any:
    """`content[name]`, which must be of a type; raises `ValueError`."""
    if not isinstance(content, dict) or not isinstance(content.get(name), kind):
        raise ValueError(f"{name} must be a {kind.__name__}")
    return content[name]


def count(content: Any) -> int:
    """A whole number in torch's wrapping, {"as_int": 3}; -1 for a symbol."""
    if not isinstance(content, dict):
        raise ValueError(f"expected a wrapped number, got {content!r:.40}")
    number = content.get("as_int", -1)
    if not isinstance(number, int) or abs(number) >= 2**62:
        raise ValueError(f"expected a whole number, got {number!r:.40}")
    return number
