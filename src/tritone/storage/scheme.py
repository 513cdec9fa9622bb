"""What the rest of Tritone may know of a store, on one page that imports no client of it.

    storage/s3/scheme.py: SCHEME = ...Scheme(name="s3", ...)   ->  addresses such as s3://bucket/folder

A store of another package is named in its entry point of the group `tritone.stores`, see `known.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritone.pages import Page

if TYPE_CHECKING:
    from tritone.storage.address import Address

PLACE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"


@dataclass(frozen=True, kw_only=True)
class Scheme(Page):
    """One scheme of addresses, `NAME://PLACE/FOLDER`, and what opens them. A name has letters and digits.

    `store`: the class, or a function, that makes a `Store` of an `Address`.
    `place`: what holds folders there, such as "bucket"; `form`: how addresses are written, where it is another way.
    `pattern`: of what stands after `NAME://`, with the groups `place`, `path` and, where there are such, `revision`.
    `order`: in lists, those that are used most first.
    `extra`: which of Tritone's extras has the packages that the store needs; those of others come with its own.
    `credentials`: what is taken from the environment, in words.
    `files`: it holds any files, such as recordings. `single`: a whole place is one repository of models or one bundle,
    and what belongs beside that lies in it.
    `read_only`: why nothing is written here and what writes, a sentence in which `{place}` is filled in.
    `triton`: the scheme by which Triton's own client calls such storage, if it has one; `triton_place`: a function of
    an address and the environment, what stands there before the folder; raises `InputError` if Triton must know more.
    """

    GROUP = "tritone.stores"
    INTERFACE = 1

    store: str
    place: str
    form: str = ""
    pattern: str = rf"(?P<place>{PLACE})(?:/(?P<path>.*))?"
    order: int = 50
    extra: str = ""
    credentials: str = ""
    files: bool = False
    single: bool = False
    read_only: str = ""
    triton: str = ""
    triton_place: "Callable[[Address, Mapping[str, str]], str]" = lambda address, environment: address.place

    @property
    def written(self) -> str:
        """How addresses are written, for messages."""
        return self.form or f"{self.name}://{self.place.upper()}/FOLDER"
