"""Pushing repositories and bundles to storage: a version is complete or is never loaded.

push(folder, store)     ->  a new version of each model that changed, served once its configuration is there
rollback(store, model)  ->  the version before is served again
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Literal

from tritone.bundle.bundle import MANIFEST, Bundle
from tritone.errors import OperatorError, StorageError
from tritone.paths import sha256_of
from tritone.repository.folder import CONFIG
from tritone.repository.stored import (
    CLAIM,
    INDEX,
    KEPT,
    OURS,
    FileFacts,
    Index,
    StoredModel,
    config_digest,
    how_many,
    key_file,
    read_index,
    read_models,
    serving,
)
from tritone.storage import Entry, Store
from tritone.storage.folder_store import FolderStore
from tritone.storage.transfer import Upload, upload

Outcome = Literal["new", "updated", "switched", "unchanged"]


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What became of a model: the version that has it, and what was done.

    `outcome`: "new" model, "updated" to a new version, "switched" to one that was there, or "unchanged". `files`: how
    many were sent.
    """

    model: str
    version: int
    outcome: Outcome
    files: int = 0


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A version of a model that is to be pushed: the model, where the files lie, and their list."""

    stored: StoredModel
    version: int
    paths: Mapping[str, Path]  # of the version's files
    model_paths: Mapping[str, Path]  # beside the versions
    index: Index


def push(folder: Path, store: Store, *, only: Sequence[str] = ()) -> list[Pushed]:
    """Push the models of a repository on this machine; of each the versions that it serves.

    A model whose content is there is not sent again. Another push of the same content that broke is gone on with. What
    is served changes by the last write, that of the configuration; of a new model, that of its model file.

    Args:
        only: names of models, if not all.

    Raises:
        OperatorError: the folder is no repository, or has a model without a configuration.
        StorageError, StorageUnreachableError: as of `Store`.
    """
    # All of them are read before anything is written.
    local = [_local(model, folder) for model in read_models(FolderStore(folder), only=only).values()]
    if not local:
        raise OperatorError(f"{folder} is no repository: it has no models. `tritone build` makes one")
    there = read_models(store)
    return [_push(versions, there.get(versions[0].stored.name), store) for versions in local]


def push_bundle(folder: Path, store: Store, *, force: bool = False) -> int:
    """Push a bundle: its manifest last, without which it is none; returns how many files were sent.

    Raises:
        BundleError: the folder is no bundle, or is damaged.
        StorageError: another one is there and `force` is not given, or something else is.
    """
    bundle = Bundle.open(folder)
    bundle.verify()
    files = [Upload(name=name, source=bundle.file(name), sha256=sha256_of(bundle.file(name))) for name in bundle.files]
    present = {entry.name: entry for entry in store.entries()}
    manifest = files[0]
    assert manifest.name == MANIFEST
    if MANIFEST in present and not _is_there(manifest, present, store):
        if not force:
            raise StorageError(
                f"{store.title} has another bundle. Push to a folder of its own, such as {store.title}-2; or replace "
                "it with --force, and those who read it meanwhile get an error"
            )
        store.delete([MANIFEST])
        del present[MANIFEST]
    return upload(store, files[1:], present) + upload(store, files[:1], present, task=f"{store.title}/{MANIFEST}")


def rollback(store: Store, name: str, *, to: int | None = None) -> int:
    """Serve an earlier version of a model again, with the configuration that it had; returns its number.

    Args:
        to: the version; None takes the newest complete one before the newest that is served.

    Raises:
        StorageError: there is no such version, it is not complete, or was not written by `push`.
    """
    model = read_models(store, only=[name])[name]
    newest = max(model.served, default=0)
    if to is None:
        before = [each.number for each in model.versions.values() if each.number < newest and each.index is not None]
        to = max((number for number in before if model.versions[number].is_complete), default=None)
        if to is None:
            raise StorageError(f"model {name} has no complete version before {newest} that `tritone repo push` wrote")
    version = model.version(to)
    if version.index is None or not version.is_complete:
        raise StorageError(f"version {to} of model {name} is not complete, or was not written by `tritone repo push`")
    with _copied(store, model, to, [CONFIG, *version.index.model_files]) as kept:
        text = kept.pop(CONFIG).read_text(encoding="utf-8")
        uploads = [Upload(name=f"{name}/{each}", source=path, sha256=sha256_of(path)) for each, path in kept.items()]
        upload(store, uploads, _entries(store, name))
        config = StoredModel(name=name, files={}, versions={}, text=text).config
        store.write(f"{name}/{CONFIG}", serving(config, [to]).encode())
    return to


def _local(model: StoredModel, folder: Path) -> list[LocalModel]:
    if not model.served:
        raise OperatorError(
            f"{folder / model.name} has no version that its {CONFIG} serves; nothing could be loaded from it"
        )
    return [_version(model, number, folder) for number in model.served]


def _version(model: StoredModel, number: int, folder: Path) -> LocalModel:
    names = [name for name in model.versions[number].files if not name.startswith(OURS)]
    paths = {name: folder / model.name / str(number) / name for name in names}
    model_paths = {name: folder / model.name / name for name in model.files if name != CONFIG}
    index = Index(
        model=model.name,
        files={name: _facts(path) for name, path in paths.items()},
        model_files={name: _facts(path) for name, path in model_paths.items()},
        config=config_digest(model.config),
        pushed_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tritone=version_of("tritone"),
    )
    return LocalModel(stored=model, version=number, paths=paths, model_paths=model_paths, index=index)


def _push(versions: Sequence[LocalModel], there: StoredModel | None, store: Store) -> Pushed:
    """Push versions of one model, the oldest first, and have them served together."""
    newest = versions[-1]
    name = newest.stored.name
    is_new = there is None or there.text is None
    there = there or StoredModel(name=name, files={}, versions={})
    is_ours = not is_new and there.config.version_policy.WhichOneof("policy_choice") == "specific"
    complete = [each for each in there.versions.values() if each.is_complete]
    numbers: list[int] = []
    sent, last = 0, None
    for local in versions:
        same = [each.number for each in complete if each.index and each.index.content == local.index.content]
        if same:
            numbers.append(max(same))
            continue
        if not is_new and not is_ours and not numbers:
            # Its policy would take a version that is half there for the latest.
            store.write(f"{name}/{CONFIG}", serving(there.config, there.served).encode())
        # Without its model file Triton cannot load a version: of a new model it is the last to come.
        last = key_file(local.stored.config, local.paths) if is_new and local is newest else None
        number, files = _upload(local, there, store, without=last)
        numbers.append(number)
        sent += files
    wanted = _wanted(newest.stored.config, numbers, [each.number for each in complete])
    if not is_new and is_ours and wanted == there.served and not sent:
        return Pushed(model=name, version=numbers[-1], outcome="unchanged")
    _commit(newest, wanted, there, store)
    if last is not None:
        file = Upload(
            name=f"{name}/{numbers[-1]}/{last}", source=newest.paths[last], sha256=newest.index.files[last].sha256
        )
        sent += upload(store, [file], {})
    return Pushed(
        model=name, version=numbers[-1], outcome="new" if is_new else "updated" if sent else "switched", files=sent
    )


def _wanted(config: Any, numbers: Sequence[int], complete: Sequence[int]) -> tuple[int, ...]:
    """The versions that are to be served: those that were pushed, with older ones as far as the policy has room."""
    count = how_many(config)
    older = sorted(each for each in {*complete} - {*numbers} if each < max(numbers))
    room = len(older) if count is None else max(0, count - len(numbers))
    return tuple(sorted({*numbers, *older[max(0, len(older) - room) :]}))


def _upload(local: LocalModel, there: StoredModel, store: Store, *, without: str | None) -> tuple[int, int]:
    """Write a version, but for the file `without`; returns its number, and how many files were sent."""
    name = local.stored.name
    number = _claim(local, there, store)
    prefix = f"{name}/{number}"
    files = [
        Upload(name=f"{prefix}/{each}", source=path, sha256=local.index.files[each].sha256)
        for each, path in local.paths.items()
        if each != without
    ]
    with tempfile.TemporaryDirectory(prefix="tritone-push-") as folder:
        config = Path(folder, CONFIG)
        config.write_text(local.stored.text or "", encoding="utf-8")
        files += [
            Upload(name=f"{prefix}/{KEPT}/{each}", source=path, sha256=sha256_of(path))
            for each, path in {CONFIG: config, **local.model_paths}.items()
        ]
        sent = upload(store, files, _entries(store, name), task=f"{store.title}/{prefix}")
    store.write(f"{prefix}/{INDEX}", local.index.model_dump_json(indent=1).encode())
    return number, sent


def _claim(local: LocalModel, there: StoredModel, store: Store) -> int:
    """The number of a version that nobody else pushes: a broken push of the same content, or the next one."""
    name = local.stored.name
    for each in there.versions.values():
        if CLAIM in each.files and not (each.index is not None and each.is_complete):
            claimed = read_index(store, f"{name}/{each.number}/{CLAIM}")
            if claimed is not None and claimed.content == local.index.content:
                return each.number
    number = max(there.versions, default=0) + 1 if there.versions else local.version
    # Of two who push at the same time one gets the number.
    while not store.write(f"{name}/{number}/{CLAIM}", local.index.model_dump_json(indent=1).encode(), new=True):
        number += 1
    return number


def _commit(local: LocalModel, numbers: Sequence[int], there: StoredModel, store: Store) -> None:
    """Write the model's own files, and at last the configuration that names the versions to be served."""
    name = local.stored.name
    uploads = [
        Upload(name=f"{name}/{each}", source=path, sha256=local.index.model_files[each].sha256)
        for each, path in local.model_paths.items()
    ]
    if uploads:
        present = {f"{name}/{each}": entry for each, entry in there.files.items()}
        upload(store, uploads, present, task=f"{store.title}/{name}")
    store.write(f"{name}/{CONFIG}", serving(local.stored.config, numbers).encode())


def _entries(store: Store, model: str) -> dict[str, Entry]:
    return {entry.name: entry for entry in store.entries(model)}


def _is_there(file: Upload, present: Mapping[str, Entry], store: Store) -> bool:
    entry = present.get(file.name)
    return entry is not None and entry.size == file.size and store.sha256(entry) == file.sha256


def _facts(path: Path) -> FileFacts:
    return FileFacts(size=path.stat().st_size, sha256=sha256_of(path))


@contextmanager
def _copied(store: Store, model: StoredModel, number: int, names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Local copies of what a version keeps of the model's own files."""
    files = model.versions[number].files
    with tempfile.TemporaryDirectory(prefix="tritone-rollback-") as folder:
        found = {}
        for index, name in enumerate(names):
            entry = files.get(f"{KEPT}/{name}")
            if entry is None:
                raise StorageError(f"version {number} of model {model.name} lost {KEPT}/{name}; push it again")
            found[name] = Path(folder, str(index))
            found[name].touch()
            if entry.size:
                store.download(entry, found[name], lambda count: None)
        yield found
