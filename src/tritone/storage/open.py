"""Opening what an address or a path names as a `Store`."""

import os
from pathlib import Path

from tritone.errors import MissingDependencyError
from tritone.installing import pip_install
from tritone.storage.address import Address, parse, scheme_of
from tritone.storage.folder_store import FolderStore
from tritone.storage.store import Store


def open_store(where: Address | str | os.PathLike[str]) -> Store:
    """The folder of an address, or of a path on this machine. Nothing is read yet.

    Raises:
        MissingDependencyError: the package that reads such storage is not installed.
        InputError: it is an address that cannot be one, or of a scheme that nobody knows.
    """
    address = where if isinstance(where, Address) else parse(where)
    if address is None:
        assert not isinstance(where, Address)
        return FolderStore(Path(where))
    scheme = scheme_of(address)
    try:
        store: Store = scheme.look_up(scheme.store)(address)
    except ModuleNotFoundError as error:
        makers = scheme.package.partition(".")[0]
        if (error.name or "").partition(".")[0] in ("tritone", makers):  # a fault of theirs, which nobody can install
            raise
        advice = pip_install(scheme.extra) if scheme.extra else f"install what {makers} needs"
        raise MissingDependencyError(f"{address}: storage needs the package {error.name}: {advice}") from error
    return store
