"""Tracing each network once: what a translation gave is given again for a network that is the same in every number.

A trace takes most of the time of an export, and tests export the same small networks with many options. `export_wenet`
goes on to run what it wrote against the network, so a trace of something else would be refused.

    with kept_traces(folder):
        export_wenet(...)   # later exports of this network, with other options, take what this one traced
"""

import dataclasses
import hashlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from filelock import FileLock
from torch import Tensor, nn

import tritone.families.export.networks  # noqa: F401  # the patched names are looked for in modules that are there
from tritone.families.export.torch_program import save_program
from tritone.families.onnx.writer import export_graph


class UnknownContentError(Exception):
    """Something that may matter and whose content cannot be told."""


@contextmanager
def kept_traces(folder: Path) -> Iterator[None]:
    """Inside, `export_wenet` traces every network once, over all processes that keep traces in `folder`."""

    def locked(kept: Path) -> FileLock:
        return FileLock(kept.with_suffix(".lock"))

    def export_once(module: nn.Module, *rest: Any, **options: Any) -> onnx.ModelProto:
        key = fingerprint(module, (rest, options))
        if key is None:
            return export_graph(module, *rest, **options)
        kept = folder / f"{key}.onnx"
        with locked(kept):
            if not kept.exists():
                kept.write_bytes(export_graph(module, *rest, **options).SerializeToString())
        return onnx.ModelProto.FromString(kept.read_bytes())  # a copy: weights are compressed in place

    def save_once(module: nn.Module, path: Path, *rest: Any, **options: Any) -> None:
        key = fingerprint(module, (rest, options))
        if key is None:
            save_program(module, path, *rest, **options)
            return
        kept = folder / f"{key}.pt2"
        with locked(kept):
            if not kept.exists():
                save_program(module, path, *rest, **options)
                shutil.copyfile(path, kept)
        shutil.copyfile(kept, path)

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("tritone.families."):
                for original, once in ((export_graph, export_once), (save_program, save_once)):
                    if vars(module).get(original.__name__) is original:
                        patch.setattr(module, original.__name__, once)
        yield


def fingerprint(module: nn.Module, arguments: object) -> str | None:
    """A digest of all that a trace of `module` could depend on; None if something in it cannot be told."""
    digest = hashlib.sha256()
    try:
        for name, part in module.named_modules(remove_duplicate=False):
            digest.update(f"{name} {type(part).__module__}.{type(part).__qualname__}\n".encode())
            for key, value in sorted(vars(part).items()):
                if key != "_modules":
                    digest.update(f"{key}={_content(value)}\n".encode())
        digest.update(_content(arguments).encode())
    except UnknownContentError:
        return None
    return digest.hexdigest()


def _content(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        content = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
        return f"tensor({value.dtype}, {tuple(value.shape)}, {content})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_content(key)}: {_content(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_content, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_content, value))) + "}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__qualname__}{_content(fields)}"
    raise UnknownContentError
