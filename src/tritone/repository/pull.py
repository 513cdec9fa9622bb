"""Pulling repositories from storage to a folder, from which a server may be serving meanwhile.

pull(store, folder)  ->  of each model the versions that it serves, checked; its configuration last
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tritone.bundle.bundle import Bundle
from tritone.errors import OperatorError, StorageError
from tritone.paths import explained, sha256_of
from tritone.repository.folder import CONFIG
from tritone.repository.stored import INDEX, KEPT, NUMBER, SOURCE, StoredModel, StoredVersion, read_models
from tritone.storage import Entry, Store, parse
from tritone.storage.transfer import download


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What became of a model: the versions that it serves, and whether it is "new", "updated" or "unchanged"."""

    model: str
    versions: tuple[int, ...]
    outcome: Literal["new", "updated", "unchanged"]


def pull(store: Store, folder: Path, *, only: Sequence[str] = (), every_version: bool = False) -> list[Pulled]:
    """Make the models of a repository in storage those of a folder; other models in it stay.

    Versions appear at once and whole, and never change. Of one model the configuration comes last; if anything fails,
    the models that are not done yet stay as they were.

    Args:
        only: names of models, if not all.
        every_version: also complete versions that are not served.

    Raises:
        OperatorError: the folder cannot be written.
        StorageError: there is no repository, a version that is served is not complete or damaged, or the folder has
            another version of the same number.
        StorageUnreachableError: as of `Store`.
    """
    models = read_models(store, only=only)
    if not models:
        raise StorageError(f"{store.title}: there is no model. `tritone repo push` puts some there")
    staging = folder.absolute().parent / f".{folder.absolute().name}.pull"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            staging.mkdir(exist_ok=True)  # beside the folder: a server would take what is in it for a model
            found = [_pull(store, model, folder, staging, every_version=every_version) for model in models.values()]
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise explained(error, f"cannot write the repository {folder}") from error
    return found


def pull_bundle(source: str | os.PathLike[str], folder: Path) -> None:
    """Copy a bundle from storage to a folder that is new or empty, with the local copy in the cache between them.

    Raises:
        OperatorError: the folder has content, or cannot be written.
        StorageError, StorageUnreachableError, BundleError: as of `Bundle.open`.
    """
    if parse(source) is None:
        raise OperatorError(f"{source} is on this machine already; copy it")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OperatorError(f"{folder} has content already; name a new folder")
    bundle = Bundle.open(source)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as temporary:
            for name in bundle.files:
                target = Path(temporary, "bundle", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(bundle.file(name), target)
            if folder.exists():
                folder.rmdir()
            os.rename(Path(temporary, "bundle"), folder)
    except OSError as error:
        raise explained(error, f"cannot write the bundle {folder}") from error


def is_bundle(store: Store) -> bool:
    """Whether a folder in storage is a bundle."""
    return any(entry.name == "manifest.json" for entry in store.entries())


def prune(folder: Path, name: str, keep: Sequence[int]) -> list[int]:
    """Remove versions of a model from a folder that were pulled and are not among `keep`; returns their numbers."""
    gone = []
    for path in (folder / name).iterdir():
        if NUMBER.fullmatch(path.name) and int(path.name) not in keep and (path / SOURCE).is_file():
            shutil.rmtree(path)
            gone.append(int(path.name))
    return sorted(gone)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Inside, no other process pulls to the folder; waits for one that does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _pull(store: Store, model: StoredModel, folder: Path, staging: Path, *, every_version: bool) -> Pulled:
    target = folder / model.name
    served = model.served
    if model.text is None or not served:
        raise StorageError(f"{store.title}: model {model.name} has no version to serve; push it again")
    wanted = list(served)
    if every_version:
        wanted = sorted(number for number, version in model.versions.items() if version.is_complete)
        wanted = sorted({*wanted, *served})
    is_new = not target.exists()
    work = staging / model.name
    changed = False
    files = _own_files(store, model, target, work)
    for number in wanted:
        version = model.versions[number]
        if number in served and not version.is_complete:
            raise StorageError(
                f"{store.title}: version {number} of model {model.name} is not complete: "
                f"{', '.join(version.missing[:3]) or 'it is being pushed'}. Push it again, or `tritone repo rollback`"
            )
        source = _source(model, version)
        if (target / str(number)).is_dir():
            if _read(target / str(number) / SOURCE) != source:
                raise StorageError(
                    f"{target / str(number)} is another version {number} of model {model.name} than that of "
                    f"{store.title}. Pull to another folder, or remove it"
                )
            continue
        place = work / str(number)
        _check_room(version, staging)
        download(store, _checked_by(version, f"{model.name}/{number}"), place, work / "parts")
        inner = place / model.name / str(number)  # names are relative to the store
        inner.mkdir(parents=True, exist_ok=True)  # of an ensemble it may have no files
        (inner / SOURCE).write_text(source, encoding="utf-8")
        changed = True
    config = model.text.encode()
    if changed or files or _read_bytes(target / CONFIG) != config:
        work.mkdir(exist_ok=True)
        beside = work / CONFIG
        beside.write_bytes(config)
        _place(target, work, wanted, files, beside)
        return Pulled(model=model.name, versions=served, outcome="new" if is_new else "updated")
    return Pulled(model=model.name, versions=served, outcome="unchanged")


def _place(target: Path, work: Path, numbers: Sequence[int], files: Mapping[str, Path], config: Path) -> None:
    target.mkdir(exist_ok=True)
    for number in numbers:
        place = work / str(number) / target.name / str(number)
        if place.is_dir():
            os.rename(place, target / str(number))
    for name, file in (*files.items(), (CONFIG, config)):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, path)
    shutil.rmtree(work, ignore_errors=True)


def _own_files(store: Store, model: StoredModel, target: Path, work: Path) -> dict[str, Path]:
    """The model's own files that differ here, such as labels and samples for warm-up, but for its configuration.

    They are of any size, so they are copied to `work` in pieces and compared there.
    """
    index = model.versions[max(model.served)].index
    facts = {} if index is None else index.model_files
    entries = []
    for name, entry in model.files.items():
        if name == CONFIG:
            continue
        known = facts[name].sha256 if name in facts else None
        entries.append(entry if known is None else replace(entry, sha256=known))
    place = work / "own"
    shutil.rmtree(place, ignore_errors=True)  # of an earlier pull, perhaps of other contents
    copied = download(store, entries, place, work / "parts")
    found = {}
    for each, digest in copied.items():
        name = each.removeprefix(f"{model.name}/")
        here = target / name
        if not here.is_file() or sha256_of(here) != digest:
            found[name] = place / each
    return found


def _checked_by(version: StoredVersion, prefix: str) -> list[Entry]:
    """The entries to read, with the checksums of the version's list; what the list does not name is left."""
    entries = []
    for name, entry in version.files.items():
        if name.startswith(f"{KEPT}/") or (version.index is not None and name not in (*version.index.files, INDEX)):
            continue
        facts = version.index.files.get(name) if version.index is not None else None
        entries.append(replace(entry, sha256=facts.sha256) if facts is not None else entry)
    assert all(entry.name.startswith(f"{prefix}/") for entry in entries)
    return entries


def _source(model: StoredModel, version: StoredVersion) -> str:
    if version.index is not None:
        return version.index.content
    listing = sorted((name, entry.size, entry.etag) for name, entry in version.files.items())
    return sha256(json.dumps([model.name, version.number, listing]).encode()).hexdigest()


def _check_room(version: StoredVersion, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if version.size > free:
        raise OperatorError(
            f"version {version.number} has {version.size / 1e9:.1f} GB, but {folder.parent} is on a disk with "
            f"{free / 1e9:.1f} GB free"
        )


def _read(path: Path) -> str | None:
    content = _read_bytes(path)
    return None if content is None else content.decode("utf-8", "replace")


def _read_bytes(path: Path) -> bytes | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes()
    return None
