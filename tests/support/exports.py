"""The exports and copies in the cache that this process uses."""

from tritone.storage import in_use


def let_go() -> None:
    """Use none any more, as if this process had ended."""
    for path in list(in_use._locked):
        in_use.release(path)
