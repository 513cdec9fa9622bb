"""Files that a command will write when it is done."""

import os
from collections.abc import Sequence
from pathlib import Path

import typer


def check_outputs(outputs: Sequence[Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Say now, not after hours, that a file cannot be written, or would be written over another one of the command.

    Raises:
        typer.BadParameter: the first such file, and why.
    """
    taken = {path.resolve(): path for path in inputs if path is not None}
    for output in outputs:
        if output is None:
            continue
        folder = output.absolute().parent
        if not folder.is_dir():
            raise typer.BadParameter(f"there is no folder {folder} for {output}")
        if output.is_dir():
            raise typer.BadParameter(f"{output} is a folder; name a file to write")
        if not os.access(output if output.exists() else folder, os.W_OK):
            raise typer.BadParameter(f"{output} cannot be written: no permission, or a file system that is read-only")
        if other := taken.get(output.resolve()):
            raise typer.BadParameter(f"{output} would be written over {other}, which this command needs too")
        taken[output.resolve()] = output
