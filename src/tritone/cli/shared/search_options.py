"""The options of commands that say how to search a request, and checks of them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

from tritone.errors import InputError
from tritone.options.fields import described
from tritone.pipelines.embed_options import PARAMETERS as WINDOWS
from tritone.pipelines.whisper.options import DecodingOptions, WordTimes, read_decoding
from tritone.search.options import MODEL_PARAMETERS, PARAMETERS, SearchMode, idle_options, used_by


@dataclass(frozen=True, kw_only=True)
class LoadedSearch:
    """What a model that runs here searches with, and how its streams are cut; None is not given."""

    lm: Annotated[
        str | None, typer.Option(metavar="FILE", help="Without --url: an n-gram language model, ARPA or KenLM binary.")
    ] = None
    chunk_size: Annotated[
        int | None, typer.Option(help="Without --url, with --streaming: new frames in a step; its own if not given.")
    ] = None
    left_chunks: Annotated[
        int | None, typer.Option(help="Without --url, with --streaming: past chunks a step attends to; -1 for all.")
    ] = None


Hotwords = Annotated[
    str | None, typer.Option(metavar="PHRASES", help='Phrases to favour, with weights: "anna:8, new york:5".')
]


def check_used(names: Iterable[str], mode: SearchMode) -> None:
    """Make sure that a search of this mode looks at all these options; raises `typer.BadParameter` if it does not."""
    if idle := idle_options(names, mode):
        flags = ", ".join((MODEL_PARAMETERS | PARAMETERS)[name].flag for name in idle)
        raise typer.BadParameter(f"{flags} has no effect with --search {mode}; add --search {used_by(idle)}")


def decoding_as_flags(text: str) -> list[str]:
    """Words of a command line in place of a JSON object of a Whisper model's options.

    Raises:
        typer.BadParameter: it is none, or a name or value is not of these options.
    """
    try:
        read_decoding(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    known, words = described(DecodingOptions), list[str]()
    for name, value in json.loads(text).items():
        kind, flag = known[name], f"--{name.replace('_', '-')}"
        on, _, off = (kind.flags[0] if kind.flags else f"{flag}/--no{flag[1:]}").partition("/")
        if kind.type in (bool, WordTimes) and not isinstance(value, bool):
            value = kind.parse(value)
        if value is True or value == "auto":
            words.append(on)
        elif value is not False:
            given = ",".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
            words.append(f"{on}={given}")
        elif kind.default is True or kind.flags:  # the others have no word for their default
            words.append(off)
    return words


def parameters_as_flags(text: str) -> list[str]:
    """Words of a command line in place of request parameters like `search=rescoring,beam=10`.

    Raises:
        typer.BadParameter: it is not `name=value,name=value`, or a name is unknown.
    """
    flags = {name: each.flag for name, each in PARAMETERS.items()} | {
        name: f"--embed-{name.replace('_', '-')}" for name in WINDOWS
    }
    words: list[str] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value or name not in flags:
            raise typer.BadParameter(
                f"{part!r} is no request parameter; write NAME=VALUE with one of {', '.join(flags)}"
            )
        if name == "hotwords":
            value = value.replace(";", ",")
        words += (
            [] if name == "timestamps" else [flags[name], value]
        )  # which are for details, that nobody asks for here
    return words
