"""`tritone export FAMILY`: a trained checkpoint becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.engines import plan_runtimes
from tritone.cli.export.icefall import icefall
from tritone.cli.export.jasper import jasper
from tritone.cli.export.options import (
    CheckAudio,
    Force,
    MaxDrift,
    Name,
    Output,
    Runtimes,
    Stages,
    TailPaddingForWords,
    Weights,
)
from tritone.cli.export.report import checked_storage, names, print_report, progress, refuse
from tritone.cli.export.sherpa_onnx import sherpa_onnx
from tritone.cli.export.wespeaker import wespeaker

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def export() -> None:
    """Turn a trained checkpoint into a bundle. One command per upstream toolkit."""


app.command("icefall")(icefall)
app.command("jasper")(jasper)
app.command("sherpa-onnx")(sherpa_onnx)
app.command("wespeaker")(wespeaker)


@app.command()
def wenet(
    checkpoint: Annotated[Path, typer.Option(help="WeNet's final.pt: the bare state dict.")],
    config: Annotated[Path, typer.Option(help="WeNet's train.yaml, of either config generation.")],
    tokens: Annotated[Path, typer.Option(help="WeNet's units.txt: one 'token id' per line.")],
    output: Output,
    cmvn: Annotated[
        Path | None, typer.Option(help="global_cmvn, when it is neither in the checkpoint nor beside it.")
    ] = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="Export a streaming graph too.")] = False,
    stages: Stages = False,
    chunk_size: Annotated[
        int, typer.Option(help="Encoder frames a streaming step (16 frames = 640 ms at 40 ms).")
    ] = 16,
    left_chunks: Annotated[int, typer.Option(help="Past chunks a streaming step may attend to; -1 for all.")] = 5,
    name: Name = None,
    tail_padding_ms: TailPaddingForWords = 0.0,
    weights: Weights = "fp32",
    runtimes: Runtimes = "onnxruntime",
    precision: Annotated[
        str,
        typer.Option(
            help="What the graphs compute in, one or several: fp32, fp16, int8 (onnxruntime alone), bf16 (all others)."
        ),
    ] = "fp32",
    decoder: Annotated[
        bool, typer.Option("--decoder/--no-decoder", help="Export the attention decoder, if the model has one.")
    ] = True,
    check_audio: CheckAudio = None,
    max_drift: MaxDrift = None,
    force: Force = False,
) -> None:
    """Export a WeNet U2 or U2++ model: encoder, CTC head and attention decoder, waveform in."""
    try:
        from tritone.families.wenet.export import export_wenet
    except ModuleNotFoundError as error:
        refuse(error)
    try:
        planned = plan_runtimes(names(runtimes), names(precision))
        report = export_wenet(
            checkpoint=checkpoint,
            config=config,
            tokens=tokens,
            output=output,
            cmvn=cmvn,
            streaming=streaming,
            stages=stages,
            chunk_size=chunk_size,
            left_chunks=left_chunks,
            name=name,
            tail_padding_ms=tail_padding_ms,
            progress=progress,
            weight_storage=checked_storage(weights),  # type: ignore[arg-type]
            runtimes=planned.runtimes,  # type: ignore[arg-type]
            precisions=names(precision),  # type: ignore[arg-type]
            decoder=decoder,
            check_audio=check_audio,
            force=force,
            max_drift=max_drift,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    print_report(report, "log probability")
    planned.build_engines(report.bundle)
