"""`tritone export jasper`: a trained Jasper or QuartzNet becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.engines import plan_runtimes
from tritone.cli.export.options import (
    CheckAudio,
    Force,
    MaxDrift,
    Name,
    Output,
    Precision,
    Runtimes,
    Stages,
    TailPadding,
    Weights,
)
from tritone.cli.export.report import checked_storage, names, print_report, progress, refuse


def jasper(
    checkpoint: Annotated[
        Path, typer.Option(help="Upstream's Jasper_…_checkpoint.pt, or a .nemo archive, which holds the config too.")
    ],
    output: Output,
    config: Annotated[Path | None, typer.Option(help="Upstream's config, a .yaml; needed but for .nemo.")] = None,
    ema: Annotated[
        bool, typer.Option("--ema/--no-ema", help="Take the averaged weights, if the checkpoint has them.")
    ] = True,
    masked: Annotated[
        bool | None,
        typer.Option(
            "--masked/--unmasked",
            help="Whether the network zeroes what is behind an utterance's end, or hears upstream's padding there. "
            "Default: as the config says (use_conv_masks).",
        ),
    ] = None,
    stages: Stages = False,
    name: Name = None,
    tail_padding_ms: TailPadding = 0.0,
    weights: Weights = "fp32",
    runtimes: Runtimes = "onnxruntime",
    precision: Precision = "fp32",
    check_audio: CheckAudio = None,
    max_drift: MaxDrift = None,
    force: Force = False,
) -> None:
    """Export a Jasper or QuartzNet of NVIDIA's DeepLearningExamples, waveform in."""
    try:
        from tritone.families.jasper.export import export_jasper
    except ModuleNotFoundError as error:
        refuse(error)
    try:
        planned = plan_runtimes(names(runtimes), names(precision))
        report = export_jasper(
            checkpoint=checkpoint,
            config=config,
            output=output,
            ema=ema,
            masked=masked,
            stages=stages,
            name=name,
            tail_padding_ms=tail_padding_ms,
            weight_storage=checked_storage(weights),  # type: ignore[arg-type]
            runtimes=planned.runtimes,  # type: ignore[arg-type]
            precisions=names(precision),  # type: ignore[arg-type]
            check_audio=check_audio,
            max_drift=max_drift,
            force=force,
            progress=progress,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    print_report(report, "log probability")
    planned.build_engines(report.bundle)
