"""`tritone export onnx`, and what exports of generic models have in common: options of tensors, the table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.cli.export.run import function_of, usage_errors
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.repository.serving import ExportServing, checked

if TYPE_CHECKING:
    from tritone.families.generic.proposal import Proposal

Output = Annotated[Path | None, typer.Option(help="The bundle's folder; a bundle there is replaced.")]
Name = Annotated[str | None, typer.Option(help="Name of the model; the file's if not given.")]
MaxBatchSize = Annotated[
    int | None,
    typer.Option(help="Most rows of a call; 0: tensors have no batch axis. Default: 8 where the graph has one."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SIZES", help="Sizes of a tensor without its batch axis, like image=3,-1,-1; -1 is any."),
]
Reshape = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SIZES", help="What clients see in place of the graph's shape, like image=784."),
]
Format = Annotated[
    list[str] | None, typer.Option("--format", metavar="[NAME=]FORMAT", help="Axes of an image: nhwc or nchw.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option(metavar="[OUTPUT=]FILE", help="Names of an output's elements, one on each line, for classification."),
]
State = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUT=OUTPUT[:VALUE]",
        help="Sequences: an output that is an input of the next request; VALUE at the start, 0 if not given.",
    ),
]
Control = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND=INPUT", help="Sequences: an input that says start, end, ready, or is the corrid."),
]
Sample = Annotated[
    list[str] | None, typer.Option(metavar="NAME=SIZES", help="Sizes to try the graph with, and to warm it up with.")
]
Rename = Annotated[list[str] | None, typer.Option(metavar="NAME=NEW", help="Call an input or output otherwise.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the table and write nothing.")]


@takes_option_classes()
def onnx(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The graph; weights may lie beside it.")],
    output: Output = None,
    name: Name = None,
    max_batch_size: MaxBatchSize = None,
    dims: Dims = None,
    reshape: Reshape = None,
    layout: Format = None,
    labels: Labels = None,
    state: State = None,
    control: Control = None,
    sample: Sample = None,
    rename: Rename = None,
    opset: Annotated[int | None, typer.Option(min=1, help="Convert the graph to this opset.")] = None,
    serving: ExportServing,
    dry_run: DryRun = False,
) -> None:
    """Make a bundle of any ONNX graph. What is proposed of it is shown before anything is written."""
    run = function_of("generic.onnx", "export_onnx")
    given = function_of("generic.proposal", "TensorOptions")(
        max_batch_size=max_batch_size,
        dims=dims or (),
        reshape=reshape or (),
        layout=layout or (),
        labels=labels or (),
        states=state or (),
        controls=control or (),
        samples=sample or (),
    )
    with usage_errors():
        report = run(
            model=model,
            output=target(output, dry_run),
            name=name,
            options=given,
            rename=pairs(rename or (), "--rename"),
            opset=opset,
            serving=checked(serving.told()),
            propose_only=lambda proposal: show(proposal, to_stderr=not dry_run),
        )
    print_bundle(report, dry_run)


def target(output: Path | None, dry_run: bool) -> Path | None:
    """Where to write; None writes nothing."""
    if output is None and not dry_run:
        raise typer.BadParameter("say where to write the bundle (--output DIR), or only look (--dry-run)")
    return None if dry_run else output


def show(proposal: "Proposal", *, to_stderr: bool) -> None:
    """Print what is proposed."""
    for line in proposal.lines():
        typer.echo(line, err=to_stderr)


def print_bundle(report: Any, dry_run: bool) -> None:
    """Print where the bundle is."""
    if dry_run:
        typer.echo("nothing was written (--dry-run)", err=True)
        return
    typer.echo(f"{report.bundle.path}: {report.bytes / 1e6:.2f} MB", err=True)
    typer.echo(report.bundle.path)


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """OLD=NEW texts as a dictionary."""
    found = {}
    for text in texts:
        old, sign, new = text.rpartition("=")
        if not sign:
            raise typer.BadParameter(f"{text!r} is not NAME=NEW", param_hint=flag)
        found[old] = new
    return found
