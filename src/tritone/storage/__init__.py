"""Folders in object stores and on the Hugging Face hub: their addresses, local copies of them, and writing them."""

from typing import TYPE_CHECKING

from tritone.later import attributes

if TYPE_CHECKING:
    from tritone.storage.address import Address, parse
    from tritone.storage.cache import fetch
    from tritone.storage.entry import Entry
    from tritone.storage.open import open_store
    from tritone.storage.store import Store

__all__ = ["Address", "Entry", "Store", "fetch", "open_store", "parse"]

__getattr__ = attributes(
    __name__,
    {
        **dict.fromkeys(("Address", "parse"), "tritone.storage.address"),
        "fetch": "tritone.storage.cache",
        "Entry": "tritone.storage.entry",
        "open_store": "tritone.storage.open",
        "Store": "tritone.storage.store",
    },
)
