"""`tritone export tensorrt`: a bundle of a TensorRT plan of any use."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.generic import GenericFlags
from tritone.cli.export.run import usage_errors
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.repository.serving import ExportServing


@takes_option_classes(leave_out=("state", "control", "sample", "rename"))
def tensorrt(
    *,
    plan: Annotated[
        Path,
        typer.Argument(metavar="MODEL.plan", help="The plan, with MODEL.plan.json beside it."),
    ],
    flags: GenericFlags,
    precision: Annotated[str, typer.Option(help="What the plan computes in: fp32 or fp16, for the manifest.")] = "fp32",
    serving: ExportServing,
) -> None:
    """Make a bundle of a plan that `tritone engine MODEL.onnx` has built. It runs on the GPU it was built for alone.

    A bundle that runs elsewhere too comes from `tritone export onnx`; `tritone engine BUNDLE` adds a plan to it.
    """
    if plan.suffix != ".plan" or not plan.is_file():
        raise typer.BadParameter(f"{plan} is no .plan file; `tritone engine MODEL.onnx` builds one")
    if precision not in ("fp32", "fp16"):
        raise typer.BadParameter(f"{precision!r} is not fp32 or fp16", param_hint="--precision")
    from tritone.tensorrt.shaped import most_rows
    from tritone.tensorrt.single import read_description

    with usage_errors():
        engine, tensors = read_description(plan)
        axes = {name: axes for name, (_, axes) in tensors["inputs"].items()}
        rows = most_rows(engine.profiles, axes)
    flags.export("tensorrt", serving, plan=plan, engine=engine, **tensors, rows=rows, precision=precision)
