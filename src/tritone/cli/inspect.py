"""`tritone inspect`: what a bundle, a repository or a graph's file is."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Bundle (folder or name), model repository or one model of it, ONNX, TorchScript or .pt2 file.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a bundle, a model repository or a graph: its tensors, files and settings.

    Nothing of it is run, so it is safe for files of strangers. Exit code 1 if a bundle is damaged.
    """
    from tritone.inspection import inspect_path

    found = inspect_path(path)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        console = Console(soft_wrap=True, highlight=False)
        console.print(_text(found.what))
        facts = Table(box=None, show_header=False)
        for name, value in found.facts.items():
            facts.add_row(name, _text(value))
        console.print(facts)
        for listing in found.listings:
            console.print(f"\n{listing.title}")
            table = Table(box=None)
            for column in listing.columns:
                table.add_column(column, overflow="fold")
            for row in listing.rows:
                table.add_row(*map(_text, row))
            console.print(table)
        for note in found.notes:
            console.print(_text(f"note: {note}"))
    if found.fault:
        typer.echo(f"error: {_text(found.fault)}", err=True)
        raise typer.Exit(1)


def _text(content: str) -> Text:
    """Text as it is, not as markup; what a terminal would obey is shown as escapes."""
    return Text("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in content))
