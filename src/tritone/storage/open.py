"""Opening what an address or a path names as a `Store`."""

import os
from pathlib import Path

from tritone.errors import MissingDependencyError
from tritone.installing import pip_install
from tritone.storage.address import Address, parse
from tritone.storage.store import Store


def open_store(where: Address | str | os.PathLike[str]) -> Store:
    """The folder of an address, or of a path on this machine. Nothing is read yet.

    Raises:
        MissingDependencyError: the package that reads such storage is not installed.
        InputError: it is an address that cannot be one.
    """
    address = where if isinstance(where, Address) else parse(where)
    if address is None:
        from tritone.storage.folder_store import FolderStore

        assert not isinstance(where, Address)
        return FolderStore(Path(where))
    try:
        if address.scheme == "hf":
            from tritone.storage.hf.store import HubStore

            return HubStore(address)
        from tritone.storage.objects.store import ObjectStore

        return ObjectStore(address)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{address}: storage needs the package {error.name}: {pip_install('remote')}"
        ) from error
