"""Many items at once, of which each that fails fails alone."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tritone.errors import OperatorError, TritoneError

Item = TypeVar("Item")
Value = TypeVar("Value")


def isolated(
    compute: Callable[[Sequence[Item]], Sequence[Value | TritoneError]], items: Sequence[Item]
) -> list[Value | TritoneError]:
    """Compute items together; where that raises, each alone, so that only those that fail have an error."""
    try:
        return list(compute(items))
    except Exception as error:  # runtimes raise what they like
        if len(items) > 1:
            return [each for item in items for each in isolated(compute, [item])]
        if isinstance(error, TritoneError):
            return [error]
        failure = OperatorError(f"computing failed ({type(error).__name__}: {error})")
        failure.__cause__ = error
        return [failure]
