"""Fields of option classes that describe themselves: help, bounds, and who looks at them, where the default stands.

    beam: int = option(10, "Hypotheses kept after each frame.", least=1, most=128)
    described(SearchOptions)["beam"]  ->  Option(name="beam", kind=int, help=..., ...)

Commands, parameters of requests and of served models, and tables of the documents are made of these descriptions.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tritone.errors import InputError

Read = Callable[[Any], Any]
REQUIRED: Any = MISSING  # in place of a default, of a field that must be given


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: its name for users, and the field of a class that has its value."""

    name: str  # in requests, in models' parameters, and on command lines with "-" for "_"
    field: str
    type: Any  # as the class has it
    default: Any
    help: str  # one sentence or two
    least: float = -math.inf
    most: float = math.inf
    unit: str = ""  # of its bounds, in words
    values: str = ""  # what it may be, where type and bounds do not say it
    modes: tuple[str, ...] = ()  # of a search, that look at it; none: all
    kinds: tuple[str, ...] = ()  # of models that look at it; none: all that have such options
    metavar: str | None = None  # on command lines
    panel: str | None = None  # the title over it in the help of commands, where the tables of `cli` do not say it
    argument: bool = False  # on command lines, without a flag
    flags: tuple[str, ...] = ()  # on command lines, where they do not follow from the name
    percent: bool = False  # on command lines, of a share of 1
    auto: bool = False  # whether "auto" stands for the default of a number on command lines
    read: Read | None = None  # of a request's value, where the type does not say how

    def check(self, value: Any) -> None:
        """Raise `InputError` unless a value is within the bounds; None, which leaves it open, is."""
        if value is None or (self.least == -math.inf and self.most == math.inf):
            return
        if not self.least <= value <= self.most or value == math.inf:  # NaN fails too
            raise InputError(f"{self.name} must be {self.bounds}, got {value}")

    @property
    def flag(self) -> str:
        """What a command line has for another value than the default."""
        if self.flags:
            on, _, off = self.flags[0].partition("/")
            return off if off and self.default is True else on
        return f"--{'no-' if self.default is True else ''}{self.name.replace('_', '-')}"

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        if self.least == -self.most:
            return f"a number within ±{self.most:g}"
        return f"{self.least:g} " + ("or more" if self.most == math.inf else f"to {self.most:g}") + self.unit

    def parse(self, value: Any) -> Any:
        """Read a value of a request, which may be text.

        Raises:
            ValueError, TypeError, OverflowError: it is none; the message is what was expected.
        """
        if self.read is not None:
            return self.read(value)
        kind = plain_type(self.type)
        if get_origin(kind) is Literal:
            return read_choice(value, get_args(kind))
        return {bool: read_switch, int: read_count, float: read_number}[kind](value)


def option(default: Any, help: str, *, name: str | None = None, **description: Any) -> Any:
    """A field of an option class, with the rest of its `Option`; `name` where it is not that of the field."""
    return field(default=default, metadata={"name": name, "help": help, **description})


@cache
def described(options: type) -> Mapping[str, Option]:
    """The options of a class by their name, in the order of its fields."""
    types = get_type_hints(options)
    found = {}
    for each in fields(options):
        if "name" in each.metadata:  # by `option`
            description = {**each.metadata}
            name = description.pop("name") or each.name
            found[name] = Option(name=name, field=each.name, type=types[each.name], default=each.default, **description)
    return found


def changed_flags(options: Any, among: Collection[str]) -> list[str]:
    """The flags of those fields of an instance that have another value than their default."""
    return [
        each.flag
        for each in described(options.__class__).values()
        if each.field in among and getattr(options, each.field) not in (None, each.default)
    ]


def check_bounds(options: Any) -> None:
    """Raise `InputError` if a field of an instance is out of its bounds."""
    for each in described(options.__class__).values():
        each.check(getattr(options, each.field))


def parse_parameters(known: Mapping[str, Option], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Read the parameters of a request: values by field.

    Raises:
        InputError: a name is unknown, or a value is not of its type; says which and what would do.
    """
    values = {}
    for name, value in parameters.items():
        if name not in known:
            raise InputError(f"unknown request parameter {name!r}; known are {', '.join(known)}")
        try:
            values[known[name].field] = known[name].parse(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"request parameter {name}: {error}") from error
    return values


def plain_type(kind: Any) -> Any:
    """A type without None: `T` of `T | None`."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    (plain,) = (each for each in get_args(kind) if each is not NoneType)
    return plain


def read_number(value: Any) -> float:
    """A parameter's value as a number; it may be text.

    Raises:
        ValueError: it is none, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, got {repr(value)[:80]}")
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits, which has no text either where there are thousands
        raise ValueError("expected a number below 1e308") from None
    except ValueError:
        raise ValueError(f"expected a number, got {str(value)[:80]!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {repr(value)[:80]}")
    return number


def read_count(value: Any) -> int:
    """A parameter's value as a whole number; raises `ValueError` if it is none."""
    number = read_number(value)
    if number != int(number):
        raise ValueError(f"expected a whole number, got {repr(value)[:80]}")
    return int(number)


def read_switch(value: Any) -> bool:
    """A parameter's value as true or false; raises `ValueError` if it is neither."""
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in known:
        raise ValueError(f"expected true or false, got {str(value)[:80]!r}")
    return known[str(value).lower()]


def read_choice(value: Any, known: tuple[str, ...]) -> str:
    """A parameter's value as one of some words; raises `ValueError` if it is none of them."""
    if value not in known:
        raise ValueError(f"expected one of {', '.join(known)}, got {str(value)[:80]!r}")
    return str(value)
