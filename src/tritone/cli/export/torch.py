"""`tritone export torch-export` and `tritone export torchscript`: files of torch of any use become bundles."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.cli.export.generic import (
    Control,
    Dims,
    DryRun,
    Format,
    Labels,
    MaxBatchSize,
    Name,
    Output,
    Rename,
    Reshape,
    Sample,
    State,
    pairs,
    print_bundle,
    show,
    target,
)
from tritone.cli.export.run import function_of, usage_errors
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.repository.serving import ExportServing, checked


@takes_option_classes()
def torch_export(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL.pt2", help="A file of torch.export.save.")],
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
    serving: ExportServing,
    dry_run: DryRun = False,
) -> None:
    """Make a bundle of any program of torch.export. It is read as data, and only operators on Tritone's list run."""
    told = _tensors(max_batch_size, dims, reshape, layout, labels, state, control, sample)
    _run("torch_export", model, output, name, told, rename, serving, dry_run)


@takes_option_classes()
def torchscript(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL.pt", help="A file of torch.jit.save.")],
    output: Output = None,
    name: Name = None,
    max_batch_size: MaxBatchSize = None,
    dims: Dims = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="NAME=TYPE", help="Type of an input, such as INT64; FP32 if not given."),
    ] = None,
    reshape: Reshape = None,
    layout: Format = None,
    labels: Labels = None,
    state: State = None,
    control: Control = None,
    sample: Sample = None,
    rename: Rename = None,
    serving: ExportServing,
    dry_run: DryRun = False,
) -> None:
    """Make a bundle of any TorchScript. A script is a program: this loads and runs it, so do that with your own.

    A script says nothing of types and sizes: give those of its inputs with --type and --dims.
    """
    told = _tensors(max_batch_size, dims, reshape, layout, labels, state, control, sample)
    kinds = {"types": pairs(types or (), "--type")}
    _run("torchscript", model, output, name, told, rename, serving, dry_run, **kinds)


def _tensors(
    max_batch_size: int | None,
    dims: Sequence[str] | None,
    reshape: Sequence[str] | None,
    layout: Sequence[str] | None,
    labels: Sequence[str] | None,
    state: Sequence[str] | None,
    control: Sequence[str] | None,
    sample: Sequence[str] | None,
) -> Any:
    return function_of("generic.proposal", "TensorOptions")(
        max_batch_size=max_batch_size,
        dims=dims or (),
        reshape=reshape or (),
        layout=layout or (),
        labels=labels or (),
        states=state or (),
        controls=control or (),
        samples=sample or (),
    )


def _run(
    source: str,
    model: Path,
    output: Path | None,
    name: str | None,
    tensors: Any,
    rename: Sequence[str] | None,
    serving: ExportServing,
    dry_run: bool,
    **more: Any,
) -> None:
    run = function_of(f"generic.{source}", f"export_{source}")
    with usage_errors():
        report = run(
            model=model,
            output=target(output, dry_run),
            name=name,
            options=tensors,
            rename=pairs(rename or (), "--rename"),
            serving=checked(serving.told()),
            propose_only=lambda proposal: show(proposal, to_stderr=not dry_run),
            **more,
        )
    print_bundle(report, dry_run)
