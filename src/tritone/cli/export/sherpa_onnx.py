"""`tritone export sherpa-onnx`: a folder of ready-made ONNX files becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.options import Values, names, with_options
from tritone.cli.export.run import function_of, progress, usage_errors
from tritone.families.export.options import RecognizerOptions


@with_options(RecognizerOptions, only=("output", "name", "tail_padding_ms"))
def sherpa_onnx(
    values: Values,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder with encoder*.onnx, decoder*.onnx, joiner*.onnx, or model*.onnx, and tokens.txt, or a Whisper "
            "or Moonshine",
        ),
    ],
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
) -> None:
    """Import a model in sherpa-onnx's layout: transducers and CTC models, NeMo's too, Whisper, Moonshine.

    None but Moonshine needs torch.
    """
    run = function_of("sherpa_onnx.export", "export_sherpa_onnx", "import")
    with usage_errors():
        report = run(
            **values,
            folder=folder,
            variant=variant,
            precisions=None if precision is None else names(precision),
            tokens=tokens,
            progress=progress,
        )
    typer.echo(f"{report.bundle.path}: {report.files.kind}, {report.bytes / 1e6:.2f} MB", err=True)
    for graph, difference in report.differences.items():
        typer.echo(
            f"  {graph}: largest difference from the original {difference:.2e} (of the size of results)", err=True
        )
    for graph, leak in report.leaks.items():
        typer.echo(f"  {graph}: {leak}", err=True)
    for note in report.notes:
        typer.echo(f"  {note}", err=True)
    typer.echo(report.bundle.path)
