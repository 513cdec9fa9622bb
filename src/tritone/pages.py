"""Pages: each says all that the rest may know of one part that can be taken out, a family, a runtime or a store.

A part of ours is a folder with a module that is called as the class of its page, and holds one, or a tuple of some, in
capitals: `families/wenet/family.py` has `FAMILY = Family(name="wenet", ...)`. A package names its own as entry points
of the group of such pages; a name that is ours, or another package's, is not taken.

    [project.entry-points."tritone.families"]
    tidy = "tidy_models.family:FAMILY"

What is wrong with a package is logged in a sentence that names it, and all else works.
"""

import logging
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, TypeVar

HEAVY = ("torch", "onnx", "onnxruntime", "transformers", "obstore", "huggingface_hub")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Page:
    """What every page has.

    `package`: that functions and classes are looked up in, as `module:name`, when they are needed.
    `interface`: the `INTERFACE` of such pages that another package was made for; 0 of ours.
    """

    GROUP: ClassVar[str]
    """Of the entry points of other packages, such as "tritone.families"."""
    INTERFACE: ClassVar[int]
    """The version of the class, which pages of other packages state."""

    name: str
    package: str
    interface: int = 0

    def look_up(self, name: str) -> Any:
        """What `module:name` is in the part's package, or `.module:name` in the package around it."""
        module, _, attribute = name.partition(":")
        return getattr(import_module(f".{module}", self.package), attribute)


AnyPage = TypeVar("AnyPage", bound=Page)


def built_in(page: type[AnyPage], room: ModuleType) -> Iterator[AnyPage]:
    """The pages of a class that are ours, one after the other in the order of their folders' names, imported as asked.

    Args:
        room: the package whose folders have them.
    """
    file = page.__name__.lower()
    for each in pkgutil.iter_modules(room.__path__):
        module = f"{room.__name__}.{each.name}"
        if each.ispkg and find_spec(f"{module}.{file}") is not None:
            yield from _held(getattr(import_module(f"{module}.{file}"), file.upper()), page)


def all_pages(page: type[AnyPage], room: ModuleType) -> Mapping[str, AnyPage]:
    """All pages of a class by name: ours, then those of other packages."""
    known = {each.name: each for each in built_in(page, room)}
    packages = dict.fromkeys(known, "Tritone")
    for point in sorted(entry_points(group=page.GROUP), key=lambda each: (_package(each), each.name)):
        for each in _of_package(point, page):
            if each.name in known:
                _LOG.warning(
                    f"the package {_package(point)} has a {_noun(page)} {each.name!r}, a name that "
                    f"{packages[each.name]} has: it is left out. Remove one of the two, or have it renamed"
                )
            else:
                known[each.name], packages[each.name] = each, _package(point)
    return MappingProxyType(known)


def _of_package(point: EntryPoint, page: type[AnyPage]) -> Iterator[AnyPage]:
    """The pages of an entry point; none, and a sentence, if there is something wrong with it."""
    package, before = _package(point), {each for each in HEAVY if each in sys.modules}
    try:
        held = _held(point.load(), page)
    except Exception as error:  # code of others
        _LOG.warning(
            f"the {_noun(page)} {point.name!r} of the package {package} cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {error}. It is left out; repair or remove the package"
        )
        return
    if heavy := [each for each in HEAVY if each in sys.modules and each not in before]:
        _LOG.warning(
            f"the package {package} imports {', '.join(heavy)} with its page {point.value}, which costs every command "
            "seconds; its makers can import that where it is needed"
        )
    for each in held:
        if each.interface == page.INTERFACE:
            yield each
        else:
            _LOG.warning(
                f"the {_noun(page)} {each.name!r} of the package {package} was made for interface {each.interface} of "
                f"{page.GROUP}, and this Tritone has {page.INTERFACE}. It is left out; take the package's version for "
                "this Tritone"
            )


def _held(held: object, page: type[AnyPage]) -> tuple[AnyPage, ...]:
    pages = held if isinstance(held, tuple) else (held,)
    if wrong := [each for each in pages if not isinstance(each, page)]:
        raise TypeError(f"a page must hold a {page.__name__}, or a tuple of some, got {type(wrong[0]).__name__}")
    return pages


def _noun(page: type[Page]) -> str:
    return page.__name__.lower()


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value.partition(":")[0]
