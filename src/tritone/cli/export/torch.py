"""`tritone export torch-export` and `tritone export torchscript`: files of torch of any use become bundles."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.generic import GenericFlags, pairs
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.repository.serving import ExportServing


@takes_option_classes()
def torch_export(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL.pt2", help="A file of torch.export.save.")],
    flags: GenericFlags,
    serving: ExportServing,
) -> None:
    """Make a bundle of any program of torch.export. It is read as data, and only operators on Tritone's list run."""
    flags.export("torch-export", serving, model=model)


@takes_option_classes()
def torchscript(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL.pt", help="A file of torch.jit.save.")],
    flags: GenericFlags,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="NAME=TYPE", help="Type of an input, such as INT64; FP32 if not given."),
    ] = None,
    serving: ExportServing,
) -> None:
    """Make a bundle of any TorchScript. A script is a program: this loads and runs it, so do that with your own.

    A script says nothing of types and sizes: give those of its inputs with --type and --dims.
    """
    flags.export("torchscript", serving, model=model, types=pairs(types or (), "--type"))
