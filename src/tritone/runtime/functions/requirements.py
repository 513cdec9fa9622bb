"""Packages that the functions of a bundle import: found at export, checked wherever the bundle is opened.

modules  ->  "tokenizers>=0.22.1", ...  ->  nothing, or an error with the `pip install`
"""

import ast
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tritone.errors import MissingDependencyError

OURS = "tritone"  # which is there wherever a bundle is opened


def imported(paths: Iterable[Path]) -> set[str]:
    """The top-level names that modules import, wherever in them; raises `SyntaxError` for what is no Python."""
    names: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names


def requirements_of(names: Iterable[str], given: Sequence[str] = ()) -> tuple[str, ...]:
    """The packages that imported names come from, each at least in the version installed here.

    Args:
        given: requirements that the user has stated; they replace those found for their packages.

    Raises:
        ValueError: one that was given is no requirement.
    """
    stated = {canonicalize_name(parsed(text).name): text for text in given}
    found = {}
    for name in sorted(set(names) - set(sys.stdlib_module_names) - {OURS}):
        for package in _packages().get(name, ())[:1]:
            installed = Version(version(package))
            found[canonicalize_name(package)] = f"{package}>={installed.base_version}"
    return tuple({**found, **stated}.values())


def parsed(text: str) -> Requirement:
    """A requirement as of pip; raises `ValueError` if it is none, or names an address."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"{text!r:.100} is not a requirement such as 'tokenizers>=0.20': {error}") from error
    if requirement.url:
        raise ValueError(f"{text!r:.100} names an address; expected a package and its versions")
    return requirement


def check_requirements(requirements: Sequence[str], what: str) -> None:
    """Make sure that packages are installed here.

    Args:
        what: needs them, in the message.

    Raises:
        MissingDependencyError: some are missing or have other versions.
    """
    lacking = []
    for text in requirements:
        requirement = parsed(text)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            lacking.append((text, "is not installed"))
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            lacking.append((text, f"is installed as {installed}"))
    if lacking:
        lacks = "; ".join(f"{text} {reason}" for text, reason in lacking)
        raise MissingDependencyError(
            f"{what} needs packages that are not here: {lacks}. Install them where it is built and where it is served: "
            f"pip install {' '.join(repr(text) for text, _ in lacking)}"
        )


@lru_cache(1)
def _packages() -> dict[str, list[str]]:
    return dict(packages_distributions())
