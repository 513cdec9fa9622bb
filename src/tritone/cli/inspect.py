"""`tritone inspect`: what a bundle, a repository or a graph's file is."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tritone.cli.shared.inspection_printer import print_inspection, printable


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Bundle (folder or name), model repository or one model of it, ONNX, TorchScript, .pt2, checkpoint.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a bundle, a repository, a graph or a checkpoint.

    Says what it is, and which command exports it.

    Nothing of it is run, so it is safe for files of strangers. Exit code 1 if a bundle is damaged.
    """
    from tritone.inspection import inspect_path

    found = inspect_path(path)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        print_inspection(found)
    if found.fault:
        typer.echo(f"error: {printable(found.fault)}", err=True)
        raise typer.Exit(1)
