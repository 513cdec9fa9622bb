"""Changing .pt2 files as a stranger would, without torch's help."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def rewrite(
    source: Path, target: Path, changes: dict[str, bytes | None] | None = None, compression: int = zipfile.ZIP_STORED
) -> Path:
    """Copy an archive with other contents for some records; None leaves a record out, new names are added."""
    changes = dict(changes or {})
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        root = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            content = changes.pop(name.removeprefix(f"{root}/"), old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name, content in changes.items():
            if content is not None:
                new.writestr(f"{root}/{name}", content)
    return target


def edited(source: Path, target: Path, record: str, change: Callable[[Any], object]) -> Path:
    """Copy an archive with one of its JSON records changed in place."""
    content = read_json(source, record)
    change(content)
    return rewrite(source, target, {record: json.dumps(content).encode()})


def read_json(path: Path, record: str) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(f"{archive.namelist()[0].partition('/')[0]}/{record}"))


def nodes(model: Any) -> list[dict[str, Any]]:
    """The operators in the content of `MODEL`."""
    found: list[dict[str, Any]] = model["graph_module"]["graph"]["nodes"]
    return found


def node(model: Any, target: str) -> dict[str, Any]:
    """The first operator of a kind, e.g. "torch.ops.aten.matmul.default"."""
    return next(each for each in nodes(model) if each["target"] == target)
