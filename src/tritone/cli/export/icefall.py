"""`tritone export icefall`: a transducer or CTC model trained by icefall becomes a bundle."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.cli.export.engines import plan_runtimes
from tritone.cli.export.options import (
    CheckAudio,
    Force,
    MaxDrift,
    Name,
    Output,
    PrecisionWithInt8,
    Runtimes,
    Stages,
    TailPadding,
    Weights,
)
from tritone.cli.export.report import checked_storage, names, print_report, progress, refuse
from tritone.cli.export.sherpa_onnx import write_layout


def icefall(
    checkpoint: Annotated[
        list[Path],
        typer.Option(help="pretrained.pt, epoch-N.pt or checkpoint-ITER.pt; several are averaged."),
    ],
    output: Output,
    tokens: Annotated[Path | None, typer.Option(help="tokens.txt: one 'token id' per line.")] = None,
    bpe_model: Annotated[Path | None, typer.Option(help="bpe.model of sentencepiece, in place of tokens.txt.")] = None,
    average: Annotated[
        str | None,
        typer.Option(
            help="How to average: 'mean' of the weights (upstream's --avg), or 'running', the mean of all weights from "
            "the one file to the other (--use-averaged-model). Default: mean, if there are several files."
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="transducer or ctc. Default: the transducer, if the model has one.")
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--no-causal",
            help="Whether a conformer was trained with causal convolution: its tensors do not tell. Default: no.",
        ),
    ] = None,
    num_heads: Annotated[
        str | None,
        typer.Option(
            help="Heads of each stack of a zipformer, such as 4,4,4,8,4,4, if it was trained with another "
            "--pos-head-dim than 4."
        ),
    ] = None,
    start_context: Annotated[
        str | None,
        typer.Option(help="Token ids before the first token, newest last; -1 is none. Default: -1,…,-1,0."),
    ] = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="Export a streaming encoder too.")] = False,
    stages: Stages = False,
    chunk_size: Annotated[
        int | None,
        typer.Option(
            help="Frames a streaming step, of 40 ms in a conformer and of 20 ms in a zipformer, as upstream counts. "
            "Default: 16."
        ),
    ] = None,
    left_context: Annotated[
        int | None, typer.Option(help="Past frames a step may attend to. Default: 64, of a zipformer 128.")
    ] = None,
    right_context: Annotated[
        int | None, typer.Option(help="Future frames a step of a conformer waits for. Default: 0.")
    ] = None,
    name: Name = None,
    tail_padding_ms: TailPadding = 0.0,
    weights: Weights = "fp32",
    runtimes: Runtimes = "onnxruntime",
    precision: PrecisionWithInt8 = "fp32",
    check_audio: CheckAudio = None,
    max_drift: MaxDrift = None,
    force: Force = False,
    layout: Annotated[
        str,
        typer.Option(
            help="What to write: bundle, or sherpa-onnx, a folder that sherpa-onnx reads, for streams with --streaming "
            "and else for whole utterances."
        ),
    ] = "bundle",
) -> None:
    """Export a conformer (pruned_transducer_stateless 2 to 5) or zipformer2, waveform in; tensors tell its sizes."""
    try:
        from tritone.families.icefall.export import export_icefall
    except ModuleNotFoundError as error:
        refuse(error)
    if average not in (None, "mean", "running"):
        raise typer.BadParameter(f"{average!r} is not mean or running", param_hint="--average")
    if head not in (None, "transducer", "ctc"):
        raise typer.BadParameter(f"{head!r} is not transducer or ctc", param_hint="--head")
    network: dict[str, Any] = {
        "checkpoint": checkpoint,
        "output": output,
        "tokens": tokens,
        "bpe_model": bpe_model,
        "average": average,
        "head": head,
        "causal": causal,
        "num_heads": _numbers("--num-heads", num_heads),
        "streaming": streaming,
        "chunk_size": chunk_size,
        "left_context": left_context,
        "right_context": right_context,
    }
    if layout != "bundle":
        of_bundles = {
            "--stages": stages,
            "--start-context": start_context is not None,
            "--name": name is not None,
            "--tail-padding-ms": tail_padding_ms != 0,
            "--weights": weights != "fp32",
            "--runtimes": runtimes != "onnxruntime",
            "--precision": precision != "fp32",
            "--check-audio": check_audio is not None,
            "--max-drift": max_drift is not None,
            "--force": force,
        }
        write_layout(layout, [option for option, given in of_bundles.items() if given], network)
        return
    try:
        planned = plan_runtimes(names(runtimes), names(precision))
        report = export_icefall(
            **network,
            stages=stages,
            start_context=_numbers("--start-context", start_context),
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
    print_report(report, "log probability; vectors and logits of a transducer")
    planned.build_engines(report.bundle)


def _numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in names(text)]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} should be whole numbers, separated by commas", param_hint=option) from error
