"""`tritone export onnx`, and what exports of generic models have in common: options of tensors, the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritone.cli.export.run import usage_errors
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.families.known import family
from tritone.repository.serving import ExportServing, checked

if TYPE_CHECKING:
    from tritone.families.graphs.proposal import Proposal


@dataclass(frozen=True, kw_only=True)
class GenericFlags:
    """The options that all exports of generic models have; None is not given."""

    output: Annotated[Path | None, typer.Option(help="Folder of the bundle. An older bundle there is replaced.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the model. Default: the output folder's name.")] = None
    max_batch_size: Annotated[
        int | None,
        typer.Option(help="Most rows of a call; 0: tensors have no batch axis. Default: 8 where the graph has one."),
    ] = None
    dims: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZES", help="Sizes of a tensor without its batch axis, like image=3,-1,-1; -1 is any."
        ),
    ] = None
    reshape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZES", help="What clients see in place of the graph's shape, like image=784."),
    ] = None
    layout: Annotated[
        list[str] | None, typer.Option("--axes", metavar="[NAME=]AXES", help="Axes of an image: nhwc or nchw.")
    ] = None
    labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[OUTPUT=]FILE", help="Names of an output's elements, one on each line, for classification."
        ),
    ] = None
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT=OUTPUT[:VALUE]",
            help="Sequences: an output that is an input of the next request; VALUE at the start, 0 if not given.",
        ),
    ] = None
    control: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=INPUT", help="Sequences: an input that says start, end, ready, or is the corrid."),
    ] = None
    sample: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZES", help="Sizes to try the graph with, and to warm it up with."),
    ] = None
    rename: Annotated[list[str] | None, typer.Option(metavar="NAME=NEW", help="Call an input or output otherwise.")] = (
        None
    )
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the table and write nothing.")] = False

    def export(self, source: str, serving: ExportServing, **more: Any) -> None:
        """Propose a bundle, show that, and write it.

        Args:
            source: what it is made of: the name of the family.
            more: arguments of that function.
        """
        from tritone.families.graphs.proposal import TensorOptions

        run = family(source).exporter({})
        if self.rename is not None:
            more["rename"] = pairs(self.rename, "--rename")
        with usage_errors():
            report = run(
                output=_target(self.output, self.dry_run),
                name=self.name or (None if self.output is None else self.output.resolve().name),  # in a dry run, too
                options=TensorOptions(
                    max_batch_size=self.max_batch_size,
                    dims=self.dims or (),
                    reshape=self.reshape or (),
                    layout=self.layout or (),
                    labels=self.labels or (),
                    states=self.state or (),
                    controls=self.control or (),
                    samples=self.sample or (),
                ),
                serving=checked(serving.given()),
                propose_only=lambda proposal: _show(proposal, to_stderr=not self.dry_run),
                **more,
            )
        _print_bundle(report, self.dry_run)


@takes_option_classes()
def onnx(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The graph; weights may lie beside it.")],
    flags: GenericFlags,
    opset: Annotated[int | None, typer.Option(min=1, help="Convert the graph to this opset.")] = None,
    serving: ExportServing,
) -> None:
    """Make a bundle of any ONNX graph. What is proposed of it is shown before anything is written."""
    flags.export("onnx", serving, model=model, opset=opset)


def _target(output: Path | None, dry_run: bool) -> Path | None:
    """Where to write; None writes nothing."""
    if output is None and not dry_run:
        raise typer.BadParameter("name where to write the bundle (--output DIR), or only look (--dry-run)")
    return None if dry_run else output


def _show(proposal: "Proposal", *, to_stderr: bool) -> None:
    """Print what is proposed."""
    for line in proposal.lines():
        typer.echo(line, err=to_stderr)


def _print_bundle(report: Any, dry_run: bool) -> None:
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
