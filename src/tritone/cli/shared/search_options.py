"""The options of commands that say how to search, and what is made of them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from tritone.search.options import PARAMETERS, SearchMode, SearchOptions, idle_options, used_by

Command = TypeVar("Command", bound=Callable[..., Any])

# Of each option what it does; names, types and defaults are those of `PARAMETERS` and `SearchOptions`. What commands
# take in a form of their own (hotwords, timestamps) is not among them.
HELP: Mapping[str, str] = {
    "search": "greedy; for CTC models prefix-beam, or rescoring of its n best by the attention decoder; for "
    "transducers modified-beam or fast-beam.",
    "beam": "Hypotheses kept after each frame, or of fast-beam how far below the best a path may be; 0: as usual for "
    "the search.",
    "nbest": "Readings to show, best first.",
    "ctc_weight": "Of the CTC score in rescoring; the model's own if not given.",
    "reverse_weight": "Of the right-to-left decoder in rescoring, 0 to 1; the model's own if not given.",
    "lm_weight": "Of the language model; 0 leaves it out.",
    "word_bonus": "Added for each word that the language model scores.",
    "blank_penalty": "Of transducers: subtracted from the blank's logit. More makes fewer deletions.",
    "temperature": "Of modified-beam and fast-beam: divides the logits.",
    "max_symbols": "Of greedy search in transducers: the most tokens of one frame.",
    "max_states": "Of fast-beam: states kept after each frame.",
    "max_contexts": "Of fast-beam: different contexts among them.",
}
Hotwords = Annotated[
    str | None, typer.Option(metavar="PHRASES", help='Phrases to favour, with weights: "anna:8, new york:5".')
]


def takes_search_options(*, before: str, with_defaults: bool = False) -> Callable[[Command], Command]:
    """Give a command the options of `HELP`, which it gets as `**search` by the names that requests use.

    Args:
        before: the parameter that they are listed before.
        with_defaults: those that are not given have the default of `SearchOptions`; else they are None.
    """
    kinds = get_type_hints(SearchOptions)
    usual = {field.name: field.default for field in fields(SearchOptions)}

    def decorate(command: Command) -> Command:
        options = []
        for name, told in HELP.items():
            field, _ = PARAMETERS[name]
            kind = kinds[field] if with_defaults else kinds[field] | None
            annotation = Annotated[kind, typer.Option(help=told)]  # type: ignore[valid-type]
            default = usual[field] if with_defaults else None
            options.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
        signature = inspect.signature(command)
        own = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in signature.parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        place = [each.name for each in own].index(before)
        merged = [*own[:place], *options, *own[place:]]
        command.__signature__ = signature.replace(parameters=merged)  # type: ignore[attr-defined]
        return command

    return decorate


def given(**options: Any) -> dict[str, Any]:
    """Those that were given, by the names that requests use.

    Raises:
        KeyError: one is no request parameter.
    """
    return {name: value for name, value in options.items() if PARAMETERS[name] and value is not None}


def check_used(names: Iterable[str], mode: SearchMode) -> None:
    """Make sure that a search of this mode looks at all these options.

    Raises:
        typer.BadParameter: it does not.
    """
    if idle := idle_options(names, mode):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise typer.BadParameter(f"{flags} has no effect with --search {mode}; add --search {used_by(idle)}")


def parse_parameters(text: str | None, *, others: Sequence[str] = ()) -> dict[str, str]:
    """Read request parameters like `search=rescoring,beam=10`; several hotwords are separated by semicolons.

    Args:
        others: names beside those of the search.

    Raises:
        typer.BadParameter: it is not `name=value,name=value`, or a name is unknown.
    """
    parameters: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in (text or "").split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value or name not in (*PARAMETERS, *others):
            raise typer.BadParameter(
                f"{part!r} is no request parameter; write NAME=VALUE with one of {', '.join((*PARAMETERS, *others))}"
            )
        parameters[name] = value.replace(";", ",") if name == "hotwords" else value
    return parameters
