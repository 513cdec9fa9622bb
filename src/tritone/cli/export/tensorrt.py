"""`tritone export tensorrt`: a bundle of a TensorRT plan of any use."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.generic import (
    Dims,
    DryRun,
    Format,
    Labels,
    MaxBatchSize,
    Name,
    Output,
    Reshape,
    print_bundle,
    show,
    target,
)
from tritone.cli.export.run import function_of, usage_errors
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.repository.serving import ExportServing, checked


@takes_option_classes()
def tensorrt(
    *,
    plan: Annotated[
        Path,
        typer.Argument(metavar="MODEL.plan", help="The plan, with MODEL.plan.json beside it."),
    ],
    output: Output = None,
    name: Name = None,
    max_batch_size: MaxBatchSize = None,
    dims: Dims = None,
    reshape: Reshape = None,
    layout: Format = None,
    labels: Labels = None,
    precision: Annotated[str, typer.Option(help="What the plan computes in: fp32 or fp16, for the manifest.")] = "fp32",
    serving: ExportServing,
    dry_run: DryRun = False,
) -> None:
    """Make a bundle of a plan that `tritone engine MODEL.onnx` has built. It runs on the GPU it was built for alone.

    A bundle that runs elsewhere too comes from `tritone export onnx`; `tritone engine BUNDLE` adds a plan to it.
    """
    if plan.suffix != ".plan" or not plan.is_file():
        raise typer.BadParameter(f"{plan} is no .plan file; `tritone engine MODEL.onnx` builds one")
    if precision not in ("fp32", "fp16"):
        raise typer.BadParameter(f"{precision!r} is not fp32 or fp16", param_hint="--precision")
    run = function_of("generic.tensorrt", "export_tensorrt")
    options = function_of("generic.proposal", "TensorOptions")
    from tritone.tensorrt.shaped import most_rows
    from tritone.tensorrt.single import read_told

    with usage_errors():
        engine, tensors = read_told(plan)
        axes = {name: axes for name, (_, axes) in tensors["inputs"].items()}
        report = run(
            plan=plan,
            engine=engine,
            **tensors,
            rows=most_rows(engine.profiles, axes),
            output=target(output, dry_run),
            precision=precision,
            name=name,
            options=options(
                max_batch_size=max_batch_size,
                dims=dims or (),
                reshape=reshape or (),
                layout=layout or (),
                labels=labels or (),
            ),
            serving=checked(serving.told()),
            propose_only=lambda proposal: show(proposal, to_stderr=not dry_run),
        )
    print_bundle(report, dry_run)
