"""What parts of a manifest have in common, and where kinds of models stand that have parts of their own.

A kind of ours is a folder of `tritone/kinds/`, called as the kind with `_` for `-`.
"""

from importlib.util import find_spec

GROUP = "tritone.kinds"
"""Of the entry points of other packages' kinds."""


def package_of(kind: str) -> str | None:
    """The package of a kind of ours, by the kind's name; None if there is no such folder."""
    name = f"{GROUP}.{kind.replace('-', '_')}"
    found = find_spec(name) if kind.replace("-", "").isalnum() else None
    return name if found is not None and found.submodule_search_locations is not None else None
