"""The options of commands that say how to search a request, and checks of them."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from tritone.search.options import MODEL_PARAMETERS, PARAMETERS, SearchMode, idle_options, used_by

Hotwords = Annotated[
    str | None, typer.Option(metavar="PHRASES", help='Phrases to favour, with weights: "anna:8, new york:5".')
]


def check_used(names: Iterable[str], mode: SearchMode) -> None:
    """Make sure that a search of this mode looks at all these options; raises `typer.BadParameter` if it does not."""
    if idle := idle_options(names, mode):
        flags = ", ".join((MODEL_PARAMETERS | PARAMETERS)[name].flag for name in idle)
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
