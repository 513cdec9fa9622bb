"""Options of a command that are made of described fields (`tritone.search.fields`): names, types, help, defaults."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

from tritone.search.fields import Option

Command = TypeVar("Command", bound=Callable[..., Any])


def takes_options(
    options: Iterable[Option], *, before: str, with_defaults: bool = False
) -> Callable[[Command], Command]:
    """Give a command further options, which it gets among its `**` parameter by their names.

    Args:
        before: the parameter that they are listed before.
        with_defaults: those that are not given have the default of their field; else they are None.
    """
    described = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default if with_defaults else None,
            annotation=Annotated[
                each.type if with_defaults else each.type | None, typer.Option(help=each.help, metavar=each.metavar)
            ],
        )
        for each in options
    ]

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in signature.parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        place = [each.name for each in own].index(before)
        merged = [*own[:place], *described, *own[place:]]
        command.__signature__ = signature.replace(parameters=merged)  # type: ignore[attr-defined]
        return command

    return decorate
