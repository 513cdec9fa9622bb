"""Options of the export commands, made from the options of the families' exports: names, help, types and defaults.

    JasperOptions  ->  a command with --checkpoint, --config, ...  ->  {"checkpoint": Path, "config": None, ...}

What is a list in the library is text with commas on the command line.
"""

import collections.abc
import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typer

from tritone.options.fields import REQUIRED, described

Values: TypeAlias = dict[str, Any]
"""What was given on the command line, by the names of the library's options."""


def with_options(options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a family's options; it gets their values as its argument.

    Args:
        options: the dataclass of the family, whose own options come first in the help.
    """
    own = inspect.get_annotations(options)
    offered: dict[str, inspect.Parameter] = {}
    conversions: dict[str, Callable[[Any], Any]] = {}
    for name, option in sorted(described(options).items(), key=lambda each: each[0] not in own):
        kind, default = option.type, option.default
        if default is REQUIRED:
            default = inspect.Parameter.empty
        taken, conversions[name] = _taken(kind, option.flag)
        flags = option.flags or ((option.flag,) if taken is bool else ())
        least, most = (None if math.isinf(bound) else bound for bound in (option.least, option.most))
        described_as: Any = {"help": option.help, "metavar": option.metavar}
        if option.argument:
            info = typer.Argument(**described_as)
        else:
            info = typer.Option(*flags, min=least, max=most, **described_as)
        default = ",".join(default) if isinstance(default, tuple) else default
        offered[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[taken, info]
        )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            command({name: None if value is None else conversions[name](value) for name, value in given.items()})

        called.__signature__ = inspect.Signature(list(offered.values()))  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in offered.values()}
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return decorate


def names(text: str) -> tuple[str, ...]:
    """The parts of `a,b`."""
    return tuple(part.strip() for part in text.split(","))


def _taken(kind: Any, flag: str) -> tuple[Any, Callable[[Any], Any]]:
    """The type that a command takes for a type of the library's, and what makes the one from the other."""
    parts = [each for each in get_args(kind) if each is not NoneType] if _is_union(kind) else [kind]
    part = parts[-1]
    taken, convert = part, lambda value: value
    if part == Sequence[Path]:
        taken = list[Path]
    elif part == Sequence[int]:
        taken, convert = str, partial(_numbers, flag)
    elif get_origin(part) is collections.abc.Sequence:
        taken, convert = str, names
    elif get_origin(part) is Literal:
        taken, convert = str, partial(_one_of, flag, get_args(part))
    return (taken | None if _is_union(kind) and NoneType in get_args(kind) else taken), convert


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _one_of(flag: str, known: Sequence[str], given: str) -> str:
    if given not in known:
        raise typer.BadParameter(f"{given!r} is not {', '.join(known[:-1])} or {known[-1]}", param_hint=flag)
    return given


def _numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(part) for part in names(text)]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} should be whole numbers, separated by commas", param_hint=flag) from error
