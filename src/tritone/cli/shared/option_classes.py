"""Commands that take option classes: their fields become options of the command line.

    @takes_option_classes()
    def serve(repo: Path, options: ServerOptions) -> None: ...     # --host, --http-port, ...

A field is an option if its type is `Annotated` for typer, or if its metadata has a `help`; beside that, `metavar`,
`min` and `flags` as for `typer.Option`, and `percent` where users write a share of 1 in percent. A field that is an
option class itself is expanded as well; `help` may then say which of its fields, {name: help}.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

Command = Callable[..., Any]


def takes_option_classes(*, leave_out: Iterable[str] = ()) -> Callable[[Command], Command]:
    """Expand the parameters of a command that are option classes.

    The command gets instances. A `ValueError` of one, about values that do not fit, is wrong usage.

    Args:
        leave_out: fields that this command has no option for.
    """
    without = frozenset(leave_out)

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
        parameters = []
        for each in inspect.signature(command).parameters.values():
            if each.name in groups:
                parameters += [_parameter(field, hint) for field, hint in _options(groups[each.name], without)]
            else:
                parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name]))

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            try:
                made = {name: _made(group, given, without) for name, group in groups.items()}
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
            own = {name: value for name, value in given.items() if name in hints}
            return command(**own | made)  # an option may have the name of its class's parameter

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _options(
    group: type, without: frozenset[str], helps: Mapping[str, str] | None = None
) -> Iterator[tuple["Field[Any]", Any]]:
    """Field and annotated type of each option of a class. `helps`: of its fields, by name."""
    for each, hint, told in _fields(group, helps):
        if is_dataclass(hint):
            yield from _options(hint, without, told)  # type: ignore[arg-type]
        elif told is not None and each.name not in without:
            yield each, _annotated(each, hint, told)


def _annotated(each: "Field[Any]", hint: Any, told: Any) -> Any:
    if isinstance(told, OptionInfo):
        return hint
    how = {name: value for name, value in each.metadata.items() if name not in ("help", "flags", "percent")}
    usual = [f"--{each.name.replace('_', '-')}"] if hint is bool else []  # without its --no-
    return Annotated[hint, typer.Option(*each.metadata.get("flags", usual), help=told, **how)]


def _parameter(each: "Field[Any]", hint: Any) -> inspect.Parameter:
    default: Any = each.default
    if each.default_factory is not MISSING:
        default = each.default_factory()
    if each.metadata.get("percent"):
        default = 100 * default
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _made(
    group: type, given: Mapping[str, Any], without: frozenset[str], helps: Mapping[str, str] | None = None
) -> Any:
    values: dict[str, Any] = {}
    for each, hint, told in _fields(group, helps):
        if is_dataclass(hint):
            values[each.name] = _made(hint, given, without, told)  # type: ignore[arg-type]
        elif told is not None and each.name not in without:
            values[each.name] = given[each.name] / 100 if each.metadata.get("percent") else given[each.name]
    return group(**values)


def _fields(group: type, helps: Mapping[str, str] | None) -> Iterator[tuple["Field[Any]", Any, Any]]:
    """Field, type, and help or typer's own annotation of each field; None of those that are no options."""
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        hint = hints[each.name]
        told = each.metadata.get("help") if helps is None else helps.get(each.name)
        yield each, hint, next((one for one in get_args(hint) if isinstance(one, OptionInfo)), told)
