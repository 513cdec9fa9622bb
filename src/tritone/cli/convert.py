"""`tritone convert`: an ONNX graph in another precision or opset, or for fixed shapes."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.shared.input_options import (
    INPUTS,
    Inputs,
    PixelScale,
    Rows,
    SampleRate,
    Tokenizer,
    drift_table,
    input_files,
)
from tritone.cli.shared.outputs import check_outputs
from tritone.errors import MissingDependencyError
from tritone.installing import pip_install


def convert(
    model: Annotated[Path, typer.Argument(metavar="ONNX", help="The graph; its weights lie beside it.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The graph to write.")],
    to: Annotated[
        str | None,
        typer.Option(metavar="PRECISION", help="fp16, int8-weights, int8-dynamic or int8-static. Default: as it is."),
    ] = None,
    calibration: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help=f"Of int8-static, to find ranges with. {INPUTS}")
    ] = None,
    opset: Annotated[int | None, typer.Option(help="Version of ONNX's operators, newer or older.")] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:8x128,...", help="Fixed shapes of the inputs; 8x128 alone is for all that have two axes."
        ),
    ] = None,
    keep_fp32: Annotated[
        str | None, typer.Option(metavar="OP,NODE", help="Types or names of nodes that stay in float32.")
    ] = None,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="int8-static for TensorRT: activations around 0.")
    ] = False,
    narrow_io: Annotated[
        bool, typer.Option("--narrow-io", help="fp16: inputs and outputs become float16 too.")
    ] = False,
    inputs: Inputs = None,
    tokenizer: Tokenizer = None,
    sample_rate: SampleRate = 16_000,
    pixel_scale: PixelScale = 255.0,
    rows: Rows = 1,
) -> None:
    """Convert an ONNX graph: precision, opset, fixed shapes.

    The result is run beside the original, on --inputs, else the calibration set, else inputs made from the shapes, and
    the drift of each output is printed. `tritone check-precision` compares later, with limits; `tritone engine` makes
    TensorRT engines.
    """
    check_outputs([output], [model])
    try:
        from tritone.families.convert.convert import convert_onnx
        from tritone.runtime.shapes import Shapes
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"converting graphs needs {error.name}, which is not installed: {pip_install('import')}"
        ) from error
    from rich.console import Console

    reading = (rows, sample_rate, pixel_scale, tokenizer)
    try:
        done = convert_onnx(
            model,
            output,
            target=to,  # type: ignore[arg-type]  # checked there
            opset=opset,
            shapes=None if shapes is None else Shapes.parse(shapes),
            calibration=input_files(calibration, *reading),
            inputs=input_files(inputs, *reading),
            keep=[part.strip() for part in keep_fp32.split(",")] if keep_fp32 else (),
            symmetric=symmetric,
            narrow_io=narrow_io,
            progress=lambda step: typer.echo(f"{step} ...", err=True),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    note = f"{done.calls} call{'s' * (done.calls != 1)}" + (
        "" if inputs else ", the calibration set" if calibration else ", inputs made from the shapes"
    )
    if not done.rounded:
        note += "; by onnxruntime on a CPU, which rounds the weights to fp16 and computes in float32"
    Console(stderr=True, highlight=False).print(drift_table(done.drift, note))
    opsets = f"opset {done.opset}" if done.opset == done.opset_before else f"opset {done.opset_before} → {done.opset}"
    typer.echo(f"{done.num_bytes_before / 1e6:.2f} MB → {done.num_bytes / 1e6:.2f} MB, {opsets}", err=True)
    typer.echo(done.path)
