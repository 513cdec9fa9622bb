"""Reading the files of `torch.export.save` (.pt2) as data.

    encoder.pt2  ->  model.json, tensors by name, names of inputs and outputs

`torch.export.load` is for files of friends: it unpickles, evaluates text as Python, and may load compiled code. A
bundle may come from a stranger, so its archive is read here: a zip whose records are JSON and raw numbers. Records of
any other kind are never looked at, and where one of them would be needed the file is refused.
Source of the format: torch/export/pt2_archive/_package.py and torch/_export/serde/schema.py, torch 2.11 to 2.13.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tritone.runtime.files.records import Records, field

SCHEMA_MAJOR = 8  # of model.json; torch raises it when older readers would misread a file
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


class Archive(Records):
    """An open .pt2 file."""

    kind = "archive of torch.export"

    def __init__(self, path: Path) -> None:
        """Open the file and check its frame: kind, version, sizes."""
        super().__init__(path)
        kind, version = self.read("archive_format", 16), self.read("archive_version", 16)
        if (kind, version) != (b"pt2", b"0"):
            raise self.fault(f"the archive is of kind {kind!r} and version {version!r}, known is pt2 of version 0")

    def program(self) -> Mapping[str, Any]:
        """The program's description, model.json."""
        content = self.json("models/model.json")
        version = field(content, "schema_version", dict)
        if version.get("major") != SCHEMA_MAJOR:
            raise self.fault(
                f"torch {content.get('torch_version')} wrote it in schema {version}; known is {SCHEMA_MAJOR}.x"
            )
        return field(content, "graph_module", dict)

    def tensors(self, device: torch.device) -> dict[str, torch.Tensor]:
        """All weights and constants by their qualified name, on a device.

        Tensors that share a record share memory, as they did when they were saved.
        """
        found: dict[str, torch.Tensor] = {}
        records: dict[str, torch.dtype] = {}
        places: dict[str, tuple[str, Mapping[str, Any], torch.dtype]] = {}
        for folder, config in (
            ("data/weights", "model_weights_config.json"),
            ("data/constants", "model_constants_config.json"),
        ):
            entries = field(self.json(f"{folder}/{config}"), "config", dict)
            for name, entry in entries.items():
                if entry.get("use_pickle") is not False or entry.get("tensor_meta") is None:
                    raise self.fault(f"{name} is a pickled object, which could run any code when it is read")
                record, meta = f"{folder}/{field(entry, 'path_name', str)}", entry["tensor_meta"]
                dtype = self.dtype(meta.get("dtype"))
                records.setdefault(record, dtype)
                places[name] = record, meta, dtype
        if missing := [record for record in records if not self.has(record)]:
            raise self.fault(f"the archive has no record {missing[0]!r}")
        with ThreadPoolExecutor() as pool:  # checksums and copies of gigabytes take a second each on one core
            flat = dict(
                zip(records, pool.map(lambda each: self.numbers(each, records[each], device), records), strict=True)
            )
        for name, (record, meta, dtype) in places.items():
            found[name] = self._strided(name, flat[record], meta, dtype)
        return found

    def dtype(self, number: Any) -> torch.dtype:
        """A type from torch's number of it."""
        if not isinstance(number, int) or number not in DTYPES:
            raise self.fault(f"it uses tensors of type {number}, which is none of {', '.join(map(str, DTYPES))}")
        return DTYPES[number]

    def _strided(self, name: str, flat: torch.Tensor, meta: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
        shape = [count(size) for size in field(meta, "sizes", list)]
        strides = [count(stride) for stride in field(meta, "strides", list)]
        if flat.dtype != dtype:
            raise self.fault(f"{name} is of type {dtype}, its record holds {flat.dtype}")
        return self.view(name, flat, shape, strides, count(meta.get("storage_offset")))


def count(content: Any) -> int:
    """A whole number in torch's wrapping, {"as_int": 3}; -1 for a symbol."""
    if not isinstance(content, dict):
        raise ValueError(f"expected a wrapped number, got {content!r:.40}")
    number = content.get("as_int", -1)
    if not isinstance(number, int) or abs(number) >= 2**62:
        raise ValueError(f"expected a whole number, got {number!r:.40}")
    return number
