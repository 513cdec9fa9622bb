"""Serving a repository in storage: from a local copy of it, or by Triton's own client; and loading what changes there.

LocalCopy(address).refresh(store)     ->  a folder of this machine that a server is started with
triton_address(address)               ->  what a tritonserver with a client of its own is started with
Updates(store, 30).start(server)      ->  models are loaded when the repository names other versions
"""

import fcntl
import mmap
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from tritone.errors import ServerSetupError, ServerUnreachableError, TritoneError
from tritone.paths import cache_folder, explained
from tritone.repository.folder import CONFIG
from tritone.repository.pull import prune, pull
from tritone.repository.stored import NUMBER, StoredModel, read_models
from tritone.server.installation import Installation
from tritone.server.process import TritonServer
from tritone.storage import Address, Entry, Store
from tritone.storage.address import scheme_of

PARTS = ("bin/tritonserver", "lib/libtritonserver.so")
Fingerprint = tuple[tuple[str, int, str], ...]


def can_read(installation: Installation, address: Address) -> bool:
    """Whether a tritonserver has a client of its own for such storage; the pip wheel has none."""
    if not (scheme := scheme_of(address).triton):
        return False
    written = f"{scheme}://".encode()  # which a tritonserver that was built with such a client has in it
    for part in (installation.executable, *(installation.root / each for each in PARTS)):
        with (
            suppress(OSError, ValueError),
            part.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content.find(written) >= 0:
                return True
    return False


def triton_address(address: Address, environment: Mapping[str, str] = os.environ) -> str:
    """The address of a folder as Triton's own client takes it.

    Raises:
        InputError: the environment does not say what Triton must know.
    """
    folder = f"/{address.path}" if address.path else ""
    scheme = scheme_of(address)
    return f"{scheme.triton}://{scheme.triton_place(address, environment)}{folder}"


class LocalCopy:
    """A folder in the user's cache for what one server serves of a repository; it belongs to this process until closed.

    Another server of the same repository has a folder of its own, since each changes when its server is ready for it.
    """

    def __init__(self, address: Address) -> None:
        """Find a folder that no other server uses; raises `OperatorError` if it cannot be made."""
        top = cache_folder() / "served"
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", str(address))[:150]
        try:
            top.mkdir(parents=True, exist_ok=True)
            self.folder, self._lock = self._claim(top, slug)
        except OSError as error:
            raise explained(error, f"cannot keep a copy of {address} in {top} (TRITONE_CACHE)") from error

    @property
    def models(self) -> list[str]:
        """The models that it has now, of this start or of an earlier one."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{CONFIG}"))

    def refresh(self, store: Store) -> None:
        """Make the folder what the repository is now, without what it has no more; errors as of `pull`."""
        done = pull(store, self.folder)
        names = {each.model for each in done}
        for each in done:
            prune(self.folder, each.model, each.versions)
        for path in self.folder.iterdir():
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Let another server use the folder."""
        self._lock.close()

    @staticmethod
    def _claim(top: Path, slug: str) -> tuple[Path, IO[bytes]]:
        number = 0
        while True:
            handle = (top / f"{slug}-{number}.lock").open("ab")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                handle.close()
                number += 1
                continue
            return top / f"{slug}-{number}", handle


class Updates:
    """Looks at a repository now and then, and has a running server load the models that changed.

    `reachable`: whether the last look succeeded. `rejected`: models whose newest version does not load.

    A version that does not load leaves the one before serving, also when the server is started again: the local copy
    goes back to its configuration. It is tried again when the repository changes again.
    """

    def __init__(
        self,
        store: Store,
        every_s: float,
        notify: Callable[[str], None],
        *,
        copy: LocalCopy | None = None,
        changed: Callable[[str, str], None] = lambda model, reason: None,
    ) -> None:
        """Args:
        store: the repository.
        every_s: seconds between looks.
        notify: called with what happens.
        copy: where the server's own copy is; None if it reads the repository itself.
        changed: called with a model that was loaded or unloaded, and a reason for those who had streams on it.
        """
        if not every_s > 0:
            raise ValueError(f"every_s must be positive, got {every_s}")
        self._store = store
        self._every_s = every_s
        self._notify = notify
        self._copy = copy
        self._changed = changed
        self._seen: dict[str, tuple[Fingerprint, Fingerprint]] = {}  # of all of a model's files, and of what it serves
        self.reachable = True
        self.rejected: set[str] = set()  # models whose version in the repository does not load
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._look_at(None)

    def start(self, running: TritonServer) -> None:
        """Begin to look, for this server."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, args=(running,), name="tritone-updates", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it after what is under way, or leave that to itself where it takes long."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self._every_s)

    def _run(self, running: TritonServer) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self._look_at(running)
                if not self.reachable:
                    self._notify(f"{self._store.title} can be looked at again")
                self.reachable = True
            except TritoneError as error:
                if self.reachable and not self._ended.is_set():  # once, and not at every look
                    self._notify(f"{self._store.title} cannot be looked at, what is served stays: {error}")
                self.reachable = False

    def _look_at(self, running: TritonServer | None) -> None:
        """Load what changed since the last look; None only remembers what is there."""
        files: dict[str, list[Entry]] = {}
        for entry in self._store.entries():
            name, slash, _ = entry.name.partition("/")
            if slash:
                files.setdefault(name, []).append(entry)
        found = {name: _fingerprint(entries) for name, entries in files.items()}
        moved = [name for name, mark in found.items() if name not in self._seen or self._seen[name][0] != mark]
        models = read_models(self._store, only=moved) if moved else {}
        for name, model in models.items():
            served = _fingerprint(_served_files(model))
            before = self._seen.get(name)
            # A push that is under way changes files, but not what is served.
            if running is not None and model.served and (before is None or before[1] != served):
                self._load(running, model)
            self._seen[name] = found[name], served
        if running is None or not found:
            return
        for name in self._seen.keys() - found.keys():
            self._unload(running, name)
            del self._seen[name]

    def _load(self, running: TritonServer, model: StoredModel) -> None:
        name, versions = model.name, ", ".join(map(str, model.served))
        folder = None if self._copy is None else self._copy.folder / name
        before = (folder / CONFIG).read_bytes() if folder is not None and (folder / CONFIG).is_file() else None
        kept = _numbers(folder) if folder is not None else []
        if self._copy is not None:
            pull(self._store, self._copy.folder, only=[name])
        try:
            running.control.load(name, running.options.start_timeout_s)
        except (ServerSetupError, ServerUnreachableError) as error:  # it may have taken the server with it
            if folder is not None and before is not None:
                _write(folder / CONFIG, before)
            elif folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            self.rejected.add(name)
            self._notify(f"version {versions} of model '{name}' does not load, what was served stays: {error}")
            return
        if self._copy is not None:
            # Those that are being unloaded may still read their files.
            prune(self._copy.folder, name, [*model.served, *kept[-1:]])
        self.rejected.discard(name)
        self._notify(f"model '{name}' serves version {versions} now")
        self._changed(name, "another version of the model is served now; begin the stream again")

    def _unload(self, running: TritonServer, name: str) -> None:
        running.control.unload(name)
        self.rejected.discard(name)
        if self._copy is not None:
            shutil.rmtree(self._copy.folder / name, ignore_errors=True)
        self._notify(f"model '{name}' is not in {self._store.title} any more; it was unloaded")
        self._changed(name, "the model was removed")


def _fingerprint(entries: list[Entry]) -> Fingerprint:
    return tuple((entry.name, entry.size, entry.etag) for entry in entries)


def _served_files(model: StoredModel) -> list[Entry]:
    versions = [entry for number in model.served for entry in model.versions[number].files.values()]
    return [*model.files.values(), *versions]


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if NUMBER.fullmatch(path.name))


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.old")
    beside.write_bytes(content)
    os.replace(beside, path)
