"""`tritone export wespeaker`: a trained speaker model, or a ready-made ONNX file of one, becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.engines import plan_runtimes
from tritone.cli.export.options import Values, flags_given, with_options
from tritone.cli.export.run import export, function_of, progress, usage_errors
from tritone.families.wespeaker.options import FOR_CHECKPOINTS, WespeakerOptions

CHECKPOINT, CONFIG = "avg_model.pt", "config.yaml"  # in folders that upstream publishes


@with_options(WespeakerOptions, optional=("checkpoint",))
def wespeaker(
    values: Values,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder with avg_model.pt and config.yaml, in place of --checkpoint and --config."),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(help="Ready-made ONNX file, feats to embs, in place of a checkpoint. Needs no torch."),
    ] = None,
) -> None:
    """Export a ResNet, ECAPA-TDNN or CAM++, waveform in; or import the ONNX file of any model of WeSpeaker."""
    if model is not None:
        if onnx is not None or values["checkpoint"] is not None or values["config"] is not None:
            raise typer.BadParameter(
                "the folder has checkpoint and config; leave out --checkpoint, --config and --onnx",
                param_hint="--model",
            )
        values |= {"checkpoint": model / CHECKPOINT, "config": model / CONFIG}
    if onnx is not None:
        _import(onnx, values)
    elif values["checkpoint"] is None:
        raise typer.BadParameter("give --checkpoint and --config, or a --model folder with both, or an --onnx file")
    else:
        export("wespeaker", values, "of the size of embeddings")


def _import(onnx: Path, values: Values) -> None:
    if unfit := flags_given(WespeakerOptions, values, FOR_CHECKPOINTS):
        raise typer.BadParameter(f"{', '.join(unfit)} is for checkpoints; an ONNX file is taken as it is")
    run = function_of("wespeaker.onnx_model", "import_wespeaker", "import")
    runtimes = values.pop("runtimes")
    shared = {name: value for name, value in values.items() if name not in FOR_CHECKPOINTS}
    with usage_errors():
        planned = plan_runtimes(runtimes, ("fp32",))
        if others := [each for each in planned.runtimes if each != "onnxruntime"]:
            raise ValueError(f"an ONNX file is for onnxruntime and tensorrt, not for {', '.join(others)}")
        report = run(model=onnx, **shared, progress=progress)
    size = report.bundle.manifest.encoder.output_dim
    typer.echo(f"{report.bundle.path}: embeddings of {size} numbers, {report.bytes / 1e6:.2f} MB", err=True)
    typer.echo(f"  largest difference from the original {report.difference:.2e} (of the size of embeddings)", err=True)
    typer.echo(report.bundle.path)
    planned.build_engines(report.bundle)
