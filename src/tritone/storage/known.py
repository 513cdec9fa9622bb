"""The schemes that are known: ours, a folder each with a `scheme.py`, and those of other packages.

scheme("s3")   ->  Scheme, of a store of ours without a look at what is installed
schemes()      ->  all of them by name
"""

from collections.abc import Iterable, Mapping
from functools import cache

from tritone import storage
from tritone.pages import all_pages, built_in
from tritone.storage.scheme import Scheme


@cache
def ours() -> Mapping[str, Scheme]:
    """The schemes of our own stores by name, in their order."""
    return {each.name: each for each in sorted(built_in(Scheme, storage), key=lambda each: each.order)}


@cache
def schemes() -> Mapping[str, Scheme]:
    """All schemes by name. Entry points of packages are looked for, which takes tens of milliseconds, once."""
    return all_pages(Scheme, storage)


def scheme(name: str) -> Scheme | None:
    """The scheme of a name, in letters of any case; None if there is none."""
    name = name.lower()
    return ours().get(name) or schemes().get(name)


def listed(some: Iterable[Scheme]) -> str:
    """Schemes in words: s3://, gs:// and hf://."""
    names = [f"{each.name}://" for each in sorted(some, key=lambda each: each.order)]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
