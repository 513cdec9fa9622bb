"""`tritone inspect`: what a bundle, a repository, a checkpoint or a graph's file is."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tritone.cli.shared.inspection_printer import print_inspection, printable
from tritone.cli.shared.what import HELP, Trust


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help=f"Model repository or one model of it, or {HELP}.",
        ),
    ],
    trust: Trust = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a bundle, a repository, a checkpoint or a graph.

    The commands that make a service of it are printed, too.

    Nothing of it is run, so it is safe for files of strangers. Exit code 1 if a bundle is damaged.
    """
    from tritone.prepare import explain

    found = explain(path, trust=bool(trust))
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        print_inspection(found)
    if found.fault:
        typer.echo(f"error: {printable(found.fault)}", err=True)
        raise typer.Exit(1)
