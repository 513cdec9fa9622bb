"""What differs between two repositories, or two bundles: what a server would load of each, file by file."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tritone.bundle.bundle import MANIFEST
from tritone.errors import InputError
from tritone.paths import sha256_of
from tritone.repository.folder import CONFIG
from tritone.repository.stored import OURS, StoredModel, config_digest, read_models
from tritone.storage import Entry, Store

Side = Literal["left", "right", "both"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A file that only one side has, or that "both" have with different contents; its name without versions."""

    name: str
    side: Side


def compare(left: Store, right: Store) -> list[Difference]:
    """The differences by name; of models the newest versions that are served count, and no version policies.

    Raises:
        InputError: a side is empty.
        StorageError, StorageUnreachableError: as of `Store`.
    """
    ours, theirs = _contents(left), _contents(right)
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            found.append(Difference(name=name, side="left"))
        elif name not in ours:
            found.append(Difference(name=name, side="right"))
        elif not _equal(left, ours[name], right, theirs[name]):
            found.append(Difference(name=name, side="both"))
    return found


def _contents(store: Store) -> Mapping[str, Entry | str]:
    """The files of a bundle or of what a repository serves; checksums of configurations in place of entries."""
    entries = {entry.name: entry for entry in store.entries()}
    if not entries:
        raise InputError(f"{store.title}: there is nothing to compare")
    if MANIFEST in entries:
        return entries
    return {name: what for model in read_models(store).values() for name, what in _of_model(model).items()}


def _of_model(model: StoredModel) -> dict[str, Entry | str]:
    found: dict[str, Entry | str] = {
        f"{model.name}/{name}": each for name, each in model.files.items() if name != CONFIG
    }
    if model.text is not None:
        found[f"{model.name}/{CONFIG}"] = config_digest(model.config)
    if model.served:
        version = model.versions[max(model.served)]
        for name, entry in version.files.items():
            if name.startswith(OURS):
                continue
            facts = version.index.files.get(name) if version.index is not None else None
            if facts is not None and entry.size == facts.size:
                entry = Entry(name=entry.name, size=entry.size, etag=entry.etag, sha256=facts.sha256)
            found[f"{model.name}/*/{name}"] = entry
    return found


def _equal(left: Store, ours: Entry | str, right: Store, theirs: Entry | str) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours == theirs
    return ours.size == theirs.size and _sha256(left, ours) == _sha256(right, theirs)


def _sha256(store: Store, entry: Entry) -> str:
    known = entry.sha256 or store.sha256(entry)
    if known is not None:
        return known
    with tempfile.TemporaryDirectory(prefix="tritone-diff-") as folder:
        path = Path(folder, "file")
        path.touch()
        if entry.size:
            store.download(entry, path, lambda count: None)
        return sha256_of(path)
