"""`tritone export sherpa-onnx`: a folder of ready-made ONNX files becomes a bundle. And the way back, for icefall's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.cli.export.options import Name, Output, TailPaddingForWords
from tritone.cli.export.report import names, progress, refuse
from tritone.errors import MissingDependencyError


def sherpa_onnx(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder with encoder*.onnx, decoder*.onnx, joiner*.onnx, or model*.onnx, and tokens.txt.",
        ),
    ],
    output: Output,
    variant: Annotated[
        str | None,
        typer.Option(
            help="Which model, where the folder holds several: what its files' names have in common, such as "
            "-epoch-99-avg-1-chunk-16-left-64."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Files to take, one or several of fp32, fp16, int8; the first is the default. Default: all."),
    ] = None,
    tokens: Annotated[Path | None, typer.Option(help="The token table. Default: tokens.txt of the folder.")] = None,
    name: Name = None,
    tail_padding_ms: TailPaddingForWords = 0.0,
) -> None:
    """Import a model in sherpa-onnx's layout: online and offline transducers and CTC models. Needs no torch."""
    try:
        from tritone.families.sherpa_onnx.export import export_sherpa_onnx
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"importing needs {error.name}, which is not installed: pip install 'tritone[import]' "
            "(in a checkout: '.[import]')"
        ) from error
    try:
        report = export_sherpa_onnx(
            folder=folder,
            output=output,
            variant=variant,
            precisions=None if precision is None else names(precision),  # type: ignore[arg-type]
            tokens=tokens,
            name=name,
            tail_padding_ms=tail_padding_ms,
            progress=progress,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(f"{report.bundle.path}: {report.files.kind}, {report.bytes / 1e6:.2f} MB", err=True)
    for graph, difference in report.differences.items():
        typer.echo(
            f"  {graph}: largest difference from the original {difference:.2e} (of the size of results)", err=True
        )
    for graph, leak in report.leaks.items():
        typer.echo(f"  {graph}: {leak}", err=True)
    typer.echo(report.bundle.path)


def write_layout(layout: str, unfit: Sequence[str], network: Mapping[str, Any]) -> None:
    """Do `tritone export icefall --layout`.

    Args:
        unfit: options that were given and are for bundles.
        network: arguments of `export_sherpa_layout`.
    """
    if layout != "sherpa-onnx":
        raise typer.BadParameter(f"{layout!r} is not bundle or sherpa-onnx", param_hint="--layout")
    if unfit:
        raise typer.BadParameter(f"{', '.join(unfit)} is for bundles, not for folders of sherpa-onnx")
    try:
        from tritone.families.icefall.sherpa_layout import export_sherpa_layout
    except ModuleNotFoundError as error:
        refuse(error)
    for note in export_sherpa_layout(**network, progress=progress):
        typer.echo(f"note: {note}", err=True)
    typer.echo(network["output"])
