"""Reading the zip files that torch writes as data: records that are JSON, raw numbers or text, by name.

    path  ->  records of checked sizes, tensors over raw numbers

A bundle may come from a stranger, so nothing in a file is unpickled by torch, evaluated or run.
"""

import json
import mmap
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from tritone.errors import BundleError

MAX_JSON_BYTES = 2**28
MAX_RECORDS = 2**17
MAX_AXES = 64
NAMES = "tritone.json"  # our own record: what inputs and outputs are called
SCRIPT_TYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a record of a zip file: signature, lengths of its name and extra field

Opened = TypeVar("Opened", bound="Records")


class Records:
    """An open file. What is wrong with it raises `BundleError`, or `ValueError` where its form is not torch's."""

    kind = "archive of torch"
    compressible = ""
    """Records may be compressed if they are below this folder; no small file can unpack to a huge one elsewhere."""

    def __init__(self, path: Path) -> None:
        """Open the file and check its frame: kind and sizes."""
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise self.fault(f"it is not an {self.kind} ({error})") from error
        records = self._zip.infolist()
        if not records or len(records) > MAX_RECORDS:
            raise self.fault(f"the archive has {len(records)} records, 1 to {MAX_RECORDS} are allowed")
        # All records lie in one folder, which torch names after the file.
        self._root = records[0].filename.partition("/")[0]
        for record in records:
            if self.compressible and record.filename.startswith(f"{self._root}/{self.compressible}"):
                continue
            if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
                raise self.fault(f"record {record.filename!r} is compressed, as torch never writes it")
        self._sizes = {record.filename: record.file_size for record in records}
        if self.has("byteorder") and self.read("byteorder", 16) != b"little":
            raise self.fault("its numbers are not little-endian")

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def fault(self, reason: str) -> BundleError:
        """The error that says why this file cannot be used."""
        return BundleError(f"cannot open {self.path}: {reason}. Export the bundle again with this version of torch.")

    @property
    def names(self) -> list[str]:
        """The names of all records."""
        return [name.partition("/")[2] for name in self._sizes if name.startswith(f"{self._root}/")]

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

    def described(self) -> Mapping[str, Any]:
        """What we wrote about the file ourselves; empty for files that `tritone export` did not write."""
        content = self.json(f"extra/{NAMES}") if self.has(f"extra/{NAMES}") else {}
        if not isinstance(content, dict):
            raise self.fault(f"record {NAMES!r} must hold an object")
        return content

    def numbers(self, record: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A record of raw numbers (count,) on a device, copied once from the file's pages; for many threads at once."""
        content = self._raw(record)
        if len(content) % dtype.itemsize:
            raise self.fault(f"record {record!r} has {len(content)} bytes, no multiple of {dtype.itemsize}")
        if not content:
            return torch.empty(0, dtype=dtype, device=device)
        return torch.frombuffer(content, dtype=dtype).to(device, copy=True)

    def _raw(self, record: str) -> memoryview:
        """The bytes of a record where they lie in the file, after comparing them with their checksum."""
        info, pages = self._zip.getinfo(f"{self._root}/{record}"), self._pages
        start = info.header_offset + LOCAL_HEADER.size
        signature, *lengths = LOCAL_HEADER.unpack(pages[info.header_offset : start].ljust(LOCAL_HEADER.size))
        start += sum(lengths)
        content = memoryview(pages)[start : start + info.file_size]
        if signature != b"PK\3\4" or len(content) < info.file_size or zlib.crc32(content) != info.CRC:
            raise self.fault(f"record {record!r} is damaged (its bytes are not those of its checksum)")
        return content

    @cached_property
    def _pages(self) -> mmap.mmap:
        # Tensors may only be made of memory that can be written to; what is written to this stays in the process.
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(
        self, name: str, flat: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        """A tensor over the numbers of a record, none of which it may reach beyond."""
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False))
        if (
            len(shape) != len(strides)
            or len(shape) > MAX_AXES
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
