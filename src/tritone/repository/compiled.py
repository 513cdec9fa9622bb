"""Compiled code of a repository's or a bundle's programs in storage, beside them, for machines of the same kind.

    store = store_beside("s3://models/production")    the folder s3://models/production.compiled
    push_compiled(folder, store, "cuda")              what the user's cache has for the programs in a folder
    pull_compiled(store, "cuda", trust=True)          what storage has for this machine, into the user's cache

    STAMP/stamp.json      the versions and the device that the code is for
    STAMP/index.json      the list of the other files with their checksums; it comes last
    STAMP/PROGRAM/...     sizes of a program, see `runtime/torch/compiled.py`
    STAMP/kernels/...     kernels of Triton's compiler

It is no part of the repository: Triton, which may read that by itself, takes every folder in it for a model.
The code runs with the rights of whoever opens it. A checksum shows that it is what was pushed, not who pushed it: so it
is pulled only where the storage is trusted, and from then on believed as what this user compiled himself.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tritone.errors import InputError, OperatorError, StorageError
from tritone.paths import explained, sha256_of
from tritone.repository.stored import MAX_INDEX_BYTES, FileFacts
from tritone.runtime.kept import distrust, make_private, stamp_digest
from tritone.runtime.kept import root as kept_root
from tritone.runtime.known import runtimes
from tritone.runtime.runtime import Runtime
from tritone.storage import Entry, Store, open_store, parse
from tritone.storage.address import scheme_of
from tritone.storage.transfer import Upload, download, upload

BESIDE, INDEX, STAMP = ".compiled", "index.json", "stamp.json"
PART = r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}"
NAME = re.compile(rf"[0-9a-f]{{32}}/{PART}\.(?:pt2|json)|kernels/(?:{PART}/)?{PART}")
GROUP = "__grp__"  # of Triton's compiler: a list of the files of a kernel, by their whole paths


class Index(BaseModel):
    """The files for one stamp, by their names below its folder."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    files: dict[str, FileFacts]


@dataclass(frozen=True)
class Moved:
    """How many files were pushed or pulled that were not there, of how many, for which stamp."""

    sent: int
    files: int
    stamp: Mapping[str, str]


def store_beside(storage: str) -> Store:
    """Where compiled code of a repository or a bundle in storage is, the address or path with `BESIDE` after it.

    Raises:
        InputError: it is a whole bucket, beside which there is nothing.
        StorageError: as of `open_store`.
    """
    address = parse(storage)
    if address is None:
        return open_store(f"{storage.rstrip('/')}{BESIDE}")
    scheme = scheme_of(address)
    if not address.path and not scheme.single:
        raise InputError(
            f"{storage} is a whole {scheme.place}: --compiled is for a folder in it, such as {address / 'models'}"
        )
    return open_store(replace(address, path=f"{address.path}{BESIDE}"))


def push_compiled(folder: Path, store: Store, device: str) -> Moved:
    """Push what the cache of this user has of the programs in a folder, for this machine.

    Args:
        folder: a repository or a bundle.
        device: cpu, cuda or cuda:<index>, where the programs run.

    Raises:
        OperatorError: nothing of it is compiled here, or there is no such device.
        StorageError, StorageUnreachableError: as of `Store`.
    """
    runtime, kept = _keeper()
    stamp = kept.stamp_here(device)
    programs = sorted({path.resolve() for path in folder.rglob(f"*{runtime.suffix}")})
    # What a compiler writes just now has a name that does not match.
    found = {name: path for name, path in kept.kept_files(programs, device) if NAME.fullmatch(name)}
    if not found:
        raise OperatorError(
            f"nothing of the programs in {folder} is compiled for {device} on this machine: `tritone compile` compiles "
            "a network, and the first start of a model on a GPU its kernels"
        )
    where = stamp_digest(stamp)
    facts = {name: FileFacts(size=path.stat().st_size, sha256=sha256_of(path)) for name, path in found.items()}
    before = _index(store, where)
    files = [Upload(name=f"{where}/{name}", source=path, sha256=facts[name].sha256) for name, path in found.items()]
    present = {entry.name: entry for entry in store.entries(where)}
    sent = upload(store, files, present, task=f"{store.title}/{where}")
    store.write(f"{where}/{STAMP}", json.dumps(dict(stamp), indent=1).encode())
    # Of other models of a repository, as far as they were pushed before, it stays.
    index = Index(files={**(before.files if before is not None else {}), **facts})
    store.write(f"{where}/{INDEX}", index.model_dump_json(indent=1).encode())
    return Moved(sent, len(found), stamp)


def pull_compiled(store: Store, device: str, *, trust: bool) -> Moved:
    """Pull what was compiled for machines as this one into the cache of this user, after checking every file.

    Raises:
        InputError: it is not given that the storage is to be trusted.
        OperatorError: the cache cannot be written, others could write to it, or there is no such device.
        StorageError: there is nothing for this machine, or a file is not what the list says.
        StorageUnreachableError: as of `Store`.
    """
    require_trust(store, trust)
    stamp, root = _keeper()[1].stamp_here(device), kept_root()
    where = stamp_digest(stamp)
    index = _index(store, where)
    if index is None:
        raise StorageError(f"{store.title} has nothing compiled for this machine: {_differences(store, stamp)}")
    if unfit := [name for name in index.files if not NAME.fullmatch(name)]:
        raise StorageError(f"{store.title}: {where}/{INDEX} lists {unfit[0][:200]!r}, which is no compiled file")
    present = {entry.name: entry for entry in store.entries(where)}
    entries: list[Entry] = []
    for name, facts in index.files.items():
        entry = present.get(f"{where}/{name}")
        if entry is None or entry.size != facts.size:
            raise StorageError(f"{store.title}: {where}/{name} is missing or of another size; push it again")
        target = _target(root, name, where)
        if not (target.is_file() and target.stat().st_size == facts.size and sha256_of(target) == facts.sha256):
            entries.append(replace(entry, sha256=facts.sha256))
    try:
        make_private(root)
        if reason := distrust(root):
            raise OperatorError(f"nothing is pulled, because it would not be used: {reason}")
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=root) as temporary:
            download(store, entries, Path(temporary), Path(temporary, "parts"), task=f"{store.title}/{where}")
            # The description of a size after its code, without which it is not looked at.
            for entry in sorted(entries, key=lambda each: each.name.endswith(".json")):
                target = _target(root, entry.name.removeprefix(f"{where}/"), where)
                places = [each for each in target.parents if root in each.parents]
                make_private(root, *reversed(places))
                path = Path(temporary, entry.name)
                path.chmod(0o600)
                if target.name.startswith(GROUP):
                    _point(path, target.parent)
                os.replace(path, target)
    except OSError as error:
        raise explained(error, f"cannot write {root}") from error
    return Moved(len(entries), len(index.files), stamp)


def _keeper() -> tuple[Runtime, Any]:
    """The runtime that compiles and keeps what it has compiled, and its module for that.

    Raises:
        OperatorError: there is none.
    """
    for each in runtimes().values():
        if each.kept:
            return each, import_module(f".{each.kept}", each.package)
    raise OperatorError(f"no runtime that is here compiles anything: {', '.join(runtimes())}")


def require_trust(store: Store, trust: bool) -> None:
    """Raise `InputError` unless the storage is given as trusted."""
    if not trust:
        raise InputError(
            f"what is compiled in {store.title} is code that runs with your rights when a model is opened. If you "
            "trust who can write there, say so: --trust (in Python trust=True)"
        )


def _target(root: Path, name: str, stamp: str) -> Path:
    """Where a file belongs in the cache: the stamp's folder is below that of the program, or of all kernels."""
    first, _, rest = name.partition("/")
    return root / first / stamp / rest


def _index(store: Store, where: str) -> Index | None:
    content = store.read(f"{where}/{INDEX}", MAX_INDEX_BYTES)
    if content is None:
        return None
    try:
        return Index.model_validate_json(content)
    except ValidationError as error:
        raise StorageError(f"{store.title}: {where}/{INDEX} is damaged ({error.errors()[0]['msg']})") from error


def _differences(store: Store, stamp: Mapping[str, str]) -> str:
    differences = []
    for entry in store.entries():
        if entry.name.endswith(f"/{STAMP}") and entry.name.count("/") == 1:
            other = json.loads(store.read(entry.name, MAX_INDEX_BYTES) or b"{}")
            names = [name for name in sorted({*other, *stamp}) if other.get(name) != stamp.get(name)]
            differences += [f"{name} {other.get(name)} there, {stamp.get(name)} here" for name in names]
    return "; ".join(dict.fromkeys(differences)) or "nothing at all was pushed with --compiled"


def _point(path: Path, folder: Path) -> None:
    """Have a list of Triton's compiler name the files beside it, and none elsewhere."""
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    names = content.get("child_paths", {}) if isinstance(content, dict) else {}
    path.write_text(
        json.dumps({"child_paths": {name: str(folder / Path(name).name) for name in names}}), encoding="utf-8"
    )
