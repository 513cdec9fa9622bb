"""Checkpoints in storage: which of a folder's files are read, and what the hub says of them.

hf://owner/name[@revision], s3://bucket/folder  ->  a local copy of the files that an export reads
"""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from tritone.errors import StorageError
from tritone.families.known import check_type, families, is_pickled, pickles
from tritone.families.seen import MAX_CONFIG_BYTES
from tritone.storage import Address, fetch, open_store

CARD, CONFIG = "README.md", "config.json"
SMALL = ("*.json", "*.txt", "*.yaml", "*.yml", "*.tiktoken", "*.model", "global_cmvn", CARD)
WEIGHTS = ("*.safetensors", "*.onnx")
PICKLES = ("*.pt", "*.pth", "*.ckpt", "*.ts")
"""Files of weights that any family may have; each says what else it has."""
MAX_CARD_BYTES = 2**20
WHY = (
    "these are pickles or programs, in which code of whoever made them can hide. Tritone reads the tensors of a pickle "
    "alone and refuses all else in it, but that rests on torch's reader"
)


def fetch_checkpoint(address: Address, trust: bool) -> Path:
    """A local copy of what a folder in storage holds of a checkpoint; of several forms the one without pickles.

    Raises:
        BundleError: it is a model of transformers that no command exports, which is seen before its weights are read.
        StorageError: there is none, or only pickled ones and no trust; or as of `fetch`.
    """
    return fetch(address, choose=_with_pickles(address) if trust else _without_pickles(address))


def licence_of(folder: Path) -> str:
    """The licence in the model card of a folder, in its own word; empty if there is none."""
    try:
        with (folder / CARD).open("rb") as file:
            text = file.read(MAX_CARD_BYTES).decode("utf-8", "replace")
        _, head, _ = text.split("---", 2) if text.startswith("---") else ("", "", "")
        found = yaml.safe_load(head)
        licence = found.get("license_name" if found.get("license") == "other" else "license") or found.get("license")
    except (OSError, ValueError, yaml.YAMLError, AttributeError, RecursionError):
        return ""
    return ", ".join(map(str, licence))[:200] if isinstance(licence, list) else str(licence or "")[:200]


def _like(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _chosen(names: Collection[str]) -> tuple[set[str], set[str], set[str]]:
    """Of a folder's own files, not those below it: configs and tokens, plain weights, pickled weights."""
    here = [name for name in names if "/" not in name]
    plain = {name for name in here if _like(name, _plain()) and not is_pickled(name)}
    if any(name.endswith(".safetensors") for name in plain):
        plain = {name for name in plain if name.endswith(".safetensors") or _like(name, _of_families())}
    return {name for name in here if _like(name, SMALL)}, plain, {name for name in here if _like(name, _pickled())}


def _of_families() -> list[str]:
    return [pattern for each in families().values() for pattern in each.weights]


def _plain() -> list[str]:
    return [*WEIGHTS, *_of_families()]


def _pickled() -> list[str]:
    return sorted({*PICKLES, *pickles()})


def _without_pickles(address: Address) -> Callable[[Collection[str]], Collection[str]]:
    def plain(names: Collection[str]) -> Collection[str]:
        small, weights, pickles = _chosen(names)
        if weights:
            _check_type(address, names)
            return small | weights
        if pickles:
            raise StorageError(
                f"{address} has its weights in {', '.join(sorted(pickles)[:3])} alone: {WHY}. If you trust who made "
                "them, say so: --trust (in Python trust=True)"
            )
        raise StorageError(_nothing(address, names))

    return plain


def _with_pickles(address: Address) -> Callable[[Collection[str]], Collection[str]]:
    def trusted(names: Collection[str]) -> Collection[str]:
        small, weights, pickles = _chosen(names)
        if not (weights or pickles):
            raise StorageError(_nothing(address, names))
        _check_type(address, names)
        return small | (weights or pickles)

    return trusted


def _check_type(address: Address, names: Collection[str]) -> None:
    if CONFIG not in names or any(_like(name, _of_families()) for name in names):  # whose config may be another's
        return
    content = open_store(address).read(CONFIG, MAX_CONFIG_BYTES)
    with suppress(ValueError, RecursionError):  # who reads it says what is wrong with it
        config = json.loads(content or b"{}")
        if isinstance(config, dict):
            check_type(config, address)


def _nothing(address: Address, names: Collection[str]) -> str:
    some = ", ".join(sorted(names)[:5])
    return (
        f"{address} holds no weights that a command exports ({some}{' ...' if len(names) > 5 else ''}); they are "
        f"{', '.join(_plain())} and {', '.join(_pickled())}"
    )
