"""Options of commands that take WHAT: any model that somebody has, made ready to run here; see `prepare/`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.paths import CACHE

if TYPE_CHECKING:
    from tritone.prepare import Prepared

HELP = (
    "a bundle, a shipped bundle's name, a checkpoint's file or folder, an ONNX, TorchScript or .pt2 file, or an "
    "address (hf://OWNER/NAME, s3://…)"
)
Trust = Annotated[
    bool | None,
    typer.Option(
        "--trust", help="Take pickles from storage, and programs (TorchScript): code of who made them can hide in both."
    ),
]
CacheFolder = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help=f"Where exports are kept, in place of {CACHE}.")
]


@dataclass(frozen=True, kw_only=True)
class Exporting:
    """How WHAT is made ready, where it is no bundle; None is not given."""

    trust: Trust = None
    cache: CacheFolder = None


def prepared(what: str, exporting: Exporting, *, device: str | None, precision: str | None) -> "Prepared":
    """WHAT as a bundle; lines on stderr say what is done."""
    from tritone.prepare import prepare

    use_cache(exporting.cache)
    return prepare(what, device=device or "cpu", precision=precision, trust=bool(exporting.trust), notify=notify)


def bundle_of(what: str, exporting: Exporting, *, device: str | None, precision: str | None) -> str:
    """The bundle of WHAT, exported where it is none: its path, or what was given."""
    found = prepared(what, exporting, device=device, precision=precision)
    return str(found.path) if found.verified else what


def use_cache(folder: Path | None) -> None:
    """Have this process, and those that it starts, keep exports and copies in a folder."""
    if folder is not None:
        os.environ[CACHE] = str(folder.absolute())


def notify(line: Any) -> None:
    typer.echo(f"tritone: {line}", err=True)
