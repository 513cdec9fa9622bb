"""Commands that take option classes: their fields become options of the command line.

    @takes_option_classes()
    def serve(repo: Path, options: ServerOptions) -> None: ...     # --host, --http-port, ...

A field is an option if `option` of `tritone.options` describes it, or if its type is `Annotated` for typer. Whole
numbers in a tuple are text with commas. A class's own fields come before those that it inherits. A field that is an
option class itself is expanded as well; `help` in its metadata may then say which of its fields, {name: help}.

A parameter of the type `Annotated[dict[str, Any], SearchOptions]` gets the options that were given, by their names;
those whose class reads them itself (`read`) are text then. What two classes call by one name is of the first.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from tritone.errors import InputError

Command = Callable[..., Any]


def takes_option_classes(*, leave_out: Iterable[str] = (), **classes: type) -> Callable[[Command], Command]:
    """Expand the parameters of a command that are option classes.

    The command gets instances. A `ValueError` or `InputError` of one, about values that do not fit, is wrong usage.

    Args:
        leave_out: options that this command does not have, as its help calls them with "_" for "-".
        classes: those of parameters whose annotation cannot say it, because it is made when the command is.
    """
    without = frozenset(leave_out)

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True) | classes
        groups = {name: group for name, hint in hints.items() if (group := _group(hint)) is not None}
        offered: dict[str, list[tuple[Field[Any], Any, Any]]] = {}
        for name, group in groups.items():
            taken = {_parameter_name(option[0]) for held in offered.values() for option in held}
            offered[name] = list(_options(group, without | taken))
        parameters = []
        for each in inspect.signature(command).parameters.values():
            if each.name in groups:
                as_given = hints[each.name] is not groups[each.name]
                parameters += [_parameter(*option, as_given=as_given) for option in offered[each.name]]
            else:
                parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name]))

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            made: dict[str, Any] = {}
            try:
                for name, group in groups.items():
                    if hints[name] is group:
                        made[name] = _made(group, given, without)
                    else:
                        values = ((_name(each), given[_parameter_name(each)]) for each, _, _ in offered[name])
                        made[name] = {each: value for each, value in values if value is not None}
            except (ValueError, InputError) as error:
                raise typer.BadParameter(str(error)) from error
            own = {name: value for name, value in given.items() if name in hints}
            return command(**own | made)  # an option may have the name of its class's parameter

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _group(hint: Any) -> type | None:
    """The option class of a parameter, if it has one."""
    return next((each for each in (hint, *get_args(hint)[1:]) if isinstance(each, type) and is_dataclass(each)), None)


def _options(
    group: type, without: frozenset[str], helps: Mapping[str, str] | None = None
) -> Iterator[tuple["Field[Any]", Any, Any]]:
    """Field, type, and help or typer's own annotation of each option of a class. `helps`: of its fields, by name."""
    bases = [inspect.get_annotations(base) for base in group.__mro__]

    def depth(found: tuple["Field[Any]", Any, Any]) -> int:
        return max(number for number, names in enumerate(bases) if found[0].name in names)

    for each, hint, help_text in sorted(_fields(group, helps), key=depth):
        if is_dataclass(hint):
            yield from _options(hint, without, help_text)  # type: ignore[arg-type]
        elif help_text is not None and _parameter_name(each) not in without:
            yield each, hint, help_text


def _parameter(each: "Field[Any]", hint: Any, help_text: Any, *, as_given: bool) -> inspect.Parameter:
    default: Any = each.default
    if each.default_factory is not MISSING:
        default = each.default_factory()
    if each.metadata.get("percent"):
        default = 100 * default
    flags = [f"--{each.name.replace('_', '-')}"] if hint is bool and default is False else []  # without its --no-
    if each.metadata.get("auto"):
        hint, default = str, "auto"
    if hint == tuple[int, ...]:
        hint, default = str, ",".join(map(str, default))
    if as_given:
        if each.metadata.get("read"):
            hint = bool if bool in get_args(hint) else str
        hint, default = hint | None, None
    if not isinstance(help_text, OptionInfo):
        shown: dict[str, Any] = {"metavar": each.metadata.get("metavar"), "rich_help_panel": each.metadata.get("panel")}
        hint = Annotated[hint, typer.Option(*each.metadata.get("flags", flags), help=help_text, **shown)]
    return inspect.Parameter(_parameter_name(each), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _made(
    group: type, given: Mapping[str, Any], without: frozenset[str], helps: Mapping[str, str] | None = None
) -> Any:
    values: dict[str, Any] = {}
    for each, hint, help_text in _fields(group, helps):
        if is_dataclass(hint):
            values[each.name] = _made(hint, given, without, help_text)  # type: ignore[arg-type]
        elif help_text is not None and _parameter_name(each) not in without:
            value = given[_parameter_name(each)]
            if each.metadata.get("percent"):
                value = value / 100
            if each.metadata.get("auto"):
                read = each.metadata.get("read") or functools.partial(_number, _name(each), hint)
                value = each.default if value == "auto" else read(value)
            values[each.name] = _numbers(value) if hint == tuple[int, ...] else value
    return group(**values)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"expected numbers separated by commas, like 0,1; got {text!r}") from None


def _number(name: str, kind: type[int] | type[float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        words = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} must be {words} or auto, got {text!r}") from None


def _name(each: "Field[Any]") -> str:
    return each.metadata.get("name") or each.name


def _parameter_name(each: "Field[Any]") -> str:
    """The name of its parameter, which follows from what a command line calls it."""
    on, _, _ = each.metadata.get("flags", (_name(each),))[0].partition("/")
    return str(on).removeprefix("--").replace("-", "_")


def _fields(group: type, helps: Mapping[str, str] | None) -> Iterator[tuple["Field[Any]", Any, Any]]:
    """Field, type, and help or typer's own annotation of each field; None of those that are no options."""
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        hint = hints[each.name]
        help_text = each.metadata.get("help") if helps is None else helps.get(each.name)
        yield each, hint, next((one for one in get_args(hint) if isinstance(one, OptionInfo)), help_text)
