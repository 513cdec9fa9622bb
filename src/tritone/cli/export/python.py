"""`tritone export python`: a Python function becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.run import usage_errors
from tritone.cli.shared.inspection_printer import print_inspection
from tritone.families.graphs.proposal import FUNCTION_ROWS
from tritone.families.known import family


def python(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION", help="Function or class, of a module here; or path/module.py:function."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Folder of the bundle. An older bundle there is replaced.")],
    name: Annotated[str | None, typer.Option(help="Name of the model. Default: the output folder's name.")] = None,
    max_batch_size: Annotated[
        int, typer.Option(min=0, help="Most rows in one call; 0: requests have no axis of rows.")
    ] = FUNCTION_ROWS,
    include: Annotated[
        list[Path] | None,
        typer.Option(help="File or folder beside the module that it reads; may be given several times."),
    ] = None,
    requirement: Annotated[
        list[str] | None,
        typer.Option(help="Package as of pip, in place of what was found; may be given several times."),
    ] = None,
) -> None:
    """Serve a Python function over batches: its annotations are the inputs and outputs. This imports the module.

    A generator answers many times. The bundle is a program: it runs only with --runtime python.
    """
    from tritone.inspection import inspect_path

    with usage_errors():
        bundle = family("python").exporter({})(
            target=target,
            output=output,
            name=name,
            max_batch_size=max_batch_size,
            include=include or (),
            requirements=requirement or (),
        )
    print_inspection(inspect_path(bundle.path), stderr=True)
    typer.echo(f"Serve it with: tritone build {bundle.path} --output REPO --runtime python", err=True)
    typer.echo(bundle.path)
