"""Many items at once, each with its own result or its own error.

items  ->  prepare each  ->  compute all together; where that fails, each apart  ->  a result or an error of each
"""

import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from tritone.errors import OperatorError, TritoneError

Item = TypeVar("Item")
Job = TypeVar("Job")
Value = TypeVar("Value")
Options = TypeVar("Options")


def isolated(
    compute: Callable[[Sequence[Item]], Sequence[Value | TritoneError]], items: Sequence[Item]
) -> list[Value | TritoneError]:
    """Compute items together; where that raises, compute each alone, so that only those at fault have an error."""
    if not items:
        return []
    try:
        return list(compute(items))
    except Exception as error:  # runtimes raise what they like
        if len(items) == 1:
            return [as_value(error)]
    return [result for item in items for result in isolated(compute, [item])]


def prepared(
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Sequence[Value | TritoneError]],
    items: Sequence[Item],
) -> list[Value | TritoneError]:
    """Compute items as `isolated` does, after `prepare` has checked each; one for which it raises is not computed."""
    jobs = [attempt(prepare, item) for item in items]
    results = iter(isolated(compute, [job for job in jobs if not isinstance(job, TritoneError)]))
    return [job if isinstance(job, TritoneError) else next(results) for job in jobs]


def with_options(items: Sequence[Item], options: Sequence[Options | None] | None) -> list[tuple[Item, Options | None]]:
    """Items with the options of each, None where there are none; raises `ValueError` if their numbers differ."""
    if options is None:
        return [(item, None) for item in items]
    if len(options) != len(items):
        raise ValueError(f"{len(items)} waveforms need as many options, got {len(options)}")
    return list(zip(items, options, strict=True))


def values(results: Sequence[Value | TritoneError]) -> list[Value]:
    """The results; raises the first error among them instead, whose message then starts with its position."""
    found: list[Value] = []
    for index, result in enumerate(results):
        if isinstance(result, TritoneError):
            raise result.saying(f"input {index}: {result}") from result
        found.append(result)
    return found


class UnexpectedError(OperatorError):
    """An error that nobody raises on purpose, kept in place of a result. `report` is its traceback, as text."""

    report = ""


def as_value(error: Exception) -> TritoneError:
    """An error to be kept in place of a result; one that is not ours becomes an `UnexpectedError`.

    It loses its tracebacks, and the errors behind it: their frames would keep the items of the batch, and thus a
    server's shared memory, for as long as somebody holds the error, frames that hold it would be cycles that only the
    garbage collector ends, and some errors of Python hold the whole text that they could not read.
    """
    report = "" if isinstance(error, TritoneError) else "".join(traceback.format_exception(error))
    behind: list[BaseException | None] = [error]
    while behind:
        if (each := behind.pop()) is not None:
            behind += [each.__cause__, each.__context__]
            each.__traceback__ = each.__cause__ = each.__context__ = None
    if isinstance(error, TritoneError):
        return error
    failure = UnexpectedError(f"{type(error).__name__}: {error}")
    failure.report = report
    return failure


def attempt(prepare: Callable[[Item], Job], item: Item) -> Job | TritoneError:
    """What `prepare` makes of an item, or the error that it raises."""
    try:
        return prepare(item)
    except Exception as error:
        return as_value(error)
