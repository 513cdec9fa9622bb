"""`tritone export jasper`: a trained Jasper or QuartzNet becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export_engines import plan_runtimes
from tritone.cli.export_report import checked_storage, names, print_report, progress, refuse


def jasper(
    checkpoint: Annotated[
        Path, typer.Option(help="Upstream's Jasper_…_checkpoint.pt, or a .nemo archive, which holds the config too.")
    ],
    output: Annotated[Path, typer.Option(help="Folder of the bundle. An older bundle there is replaced.")],
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
    stages: Annotated[
        bool,
        typer.Option("--stages", help="Export features and network apart too, to be served as models of their own."),
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the model. Default: the output folder's name.")] = None,
    tail_padding_ms: Annotated[
        float, typer.Option(min=0, help="Silence that serving appends to every utterance.")
    ] = 0.0,
    weights: Annotated[
        str, typer.Option(help="Storage of the weights: fp32, fp16 or int8. They are widened to fp32 when loaded.")
    ] = "fp32",
    runtimes: Annotated[
        str,
        typer.Option(
            help="What to write graphs for: onnxruntime, torch, torchscript, tensorrt or several; the first is the "
            "default."
        ),
    ] = "onnxruntime",
    precision: Annotated[
        str,
        typer.Option(help="What the graphs compute in, one or several: fp32, fp16, bf16 (torch and torchscript)."),
    ] = "fp32",
    check_audio: Annotated[
        Path | None,
        typer.Option(
            help="Folder of audio files or wav.scp to check graphs with that do not compute in fp32. Default: the "
            "clips of the demo."
        ),
    ] = None,
    max_drift: Annotated[
        float | None,
        typer.Option(
            min=0, help="Largest share of probability, 0 to 1, that such a graph may move per frame. Default: 0.05."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write such a graph even if it moves more.")] = False,
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
