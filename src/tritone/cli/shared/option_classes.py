"""Commands that take option classes: every field with a help text becomes an option of the command line.

    @takes_option_classes()
    def serve(repo: Path, options: ServerOptions) -> None: ...     # --host, --http-port, ...

A field's metadata: `help`; `metavar`, `min`, `flags` as for `typer.Option`; `percent` where users write a share of 1 in
percent. A field that is an option class itself is expanded as well; its `help` may say which fields, {name: help}.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

Command = Callable[..., Any]


def takes_option_classes(*, leave_out: Iterable[str] = ()) -> Callable[[Command], Command]:
    """Expand the parameters of a command that are option classes.

    The command gets instances. A `ValueError` of one, about values that do not fit, is wrong usage.

    Args:
        leave_out: fields that this command has no option for.
    """
    without = set(leave_out)

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
        parameters = []
        for each in inspect.signature(command).parameters.values():
            if each.name in groups:
                parameters += [_parameter(*option) for option in _options(groups[each.name], without)]
            else:
                parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name]))

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            try:
                made = {name: _made(group, given, without) for name, group in groups.items()}
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
            return command(**{name: value for name, value in given.items() if name in hints}, **made)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _options(
    group: type, without: set[str], helps: Mapping[str, str] | None = None
) -> Iterator[tuple["Field[Any]", Any, str]]:
    """Field, type and help of each option of a class."""
    hints = get_type_hints(group)
    for each in fields(group):
        told = each.metadata.get("help") if helps is None else helps.get(each.name)
        if is_dataclass(hints[each.name]):
            yield from _options(hints[each.name], without, told)
        elif told is not None and each.name not in without:
            yield each, hints[each.name], told


def _parameter(each: "Field[Any]", hint: Any, told: str) -> inspect.Parameter:
    how = dict(each.metadata)
    how.pop("help", None)
    default = each.default if each.default is not MISSING else each.default_factory()  # type: ignore[misc]
    if how.pop("percent", False) and default is not None:
        default = 100 * default
    if hint is bool and "flags" not in how:
        how["flags"] = [f"--{each.name.replace('_', '-')}"]  # without its --no-
    annotation = Annotated[hint, typer.Option(*how.pop("flags", ()), help=told, **how)]  # type: ignore[valid-type]
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _made(group: type, given: Mapping[str, Any], without: set[str]) -> Any:
    hints = get_type_hints(group)
    values: dict[str, Any] = {}
    for each in fields(group):
        if is_dataclass(hints[each.name]):
            values[each.name] = _made(hints[each.name], given, without)
        elif each.name in given and each.name not in without:
            value = given[each.name]
            values[each.name] = value / 100 if each.metadata.get("percent") and value is not None else value
    return group(**values)
