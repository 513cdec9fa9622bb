"""`tritone export FAMILY`: a trained checkpoint becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export_engines import plan_runtimes
from tritone.cli.export_icefall import icefall
from tritone.cli.export_jasper import jasper
from tritone.cli.export_report import checked_storage, names, print_report, progress, refuse
from tritone.cli.export_sherpa_onnx import sherpa_onnx

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def export() -> None:
    """Turn a trained checkpoint into a bundle. One command per upstream toolkit."""


app.command("icefall")(icefall)
app.command("jasper")(jasper)
app.command("sherpa-onnx")(sherpa_onnx)


@app.command()
def wenet(
    checkpoint: Annotated[Path, typer.Option(help="WeNet's final.pt: the bare state dict.")],
    config: Annotated[Path, typer.Option(help="WeNet's train.yaml, of either config generation.")],
    tokens: Annotated[Path, typer.Option(help="WeNet's units.txt: one 'token id' per line.")],
    output: Annotated[Path, typer.Option(help="Folder of the bundle. An older bundle there is replaced.")],
    cmvn: Annotated[
        Path | None, typer.Option(help="global_cmvn, when it is neither in the checkpoint nor beside it.")
    ] = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="Export a streaming graph too.")] = False,
    stages: Annotated[
        bool,
        typer.Option("--stages", help="Export features and network apart too, to be served as models of their own."),
    ] = False,
    chunk_size: Annotated[
        int, typer.Option(help="Encoder frames a streaming step (16 frames = 640 ms at 40 ms).")
    ] = 16,
    left_chunks: Annotated[int, typer.Option(help="Past chunks a streaming step may attend to; -1 for all.")] = 5,
    name: Annotated[str | None, typer.Option(help="Name of the model. Default: the output folder's name.")] = None,
    tail_padding_ms: Annotated[
        float,
        typer.Option(
            min=0, help="Silence that serving appends to every utterance, for audio cut right at the end of a word."
        ),
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
        typer.Option(
            help="What the graphs compute in, one or several: fp32, fp16, int8 (onnxruntime alone), bf16 (all others)."
        ),
    ] = "fp32",
    decoder: Annotated[
        bool, typer.Option("--decoder/--no-decoder", help="Export the attention decoder, if the model has one.")
    ] = True,
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
