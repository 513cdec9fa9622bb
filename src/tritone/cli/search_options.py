"""The options of commands that say how to search, and what is made of them."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from tritone.search.options import PARAMETERS, USED_BY, SearchMode, idle_options

Search = Annotated[
    SearchMode | None,
    typer.Option(help="greedy, prefix-beam, or rescoring of its n best by the attention decoder."),
]
Beam = Annotated[int | None, typer.Option(help="Prefixes kept after each frame.")]
Nbest = Annotated[int | None, typer.Option(help="Readings to show, best first.")]
CtcWeight = Annotated[float | None, typer.Option(help="Of the CTC score in rescoring; the model's own if not given.")]
ReverseWeight = Annotated[
    float | None, typer.Option(help="Of the right-to-left decoder, 0 to 1; the model's own if not given.")
]
LmWeight = Annotated[float | None, typer.Option(help="Of the language model; 0 leaves it out.")]
WordBonus = Annotated[float | None, typer.Option(help="Added for each word that the language model scores.")]
Hotwords = Annotated[
    str | None, typer.Option(metavar="PHRASES", help='Phrases to favour, with weights: "anna:8, new york:5".')
]


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
        raise typer.BadParameter(f"{flags} has no effect with --search {mode}; add --search {USED_BY[idle[0]][0]}")


def parse_parameters(text: str | None) -> dict[str, str]:
    """Read request parameters like `search=rescoring,beam=10`; several hotwords are separated by semicolons.

    Raises:
        typer.BadParameter: it is not `name=value,name=value`, or a name is unknown.
    """
    parameters: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in (text or "").split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value or name not in PARAMETERS:
            raise typer.BadParameter(
                f"{part!r} is no request parameter; write NAME=VALUE with one of {', '.join(PARAMETERS)}"
            )
        parameters[name] = value.replace(";", ",") if name == "hotwords" else value
    return parameters
