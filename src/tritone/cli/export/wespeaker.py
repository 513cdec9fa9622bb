"""`tritone export wespeaker`: a trained speaker model, or a ready-made ONNX file of one, becomes a bundle."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.cli.export.engines import plan_runtimes
from tritone.cli.export.options import CheckAudio, Force, Name, Output, Precision, Runtimes, Stages, Weights
from tritone.cli.export.report import checked_storage, names, print_report, progress, refuse
from tritone.errors import MissingDependencyError

CHECKPOINT, CONFIG = "avg_model.pt", "config.yaml"  # in folders that upstream publishes


def wespeaker(
    output: Output,
    checkpoint: Annotated[
        Path | None, typer.Option(help="WeSpeaker's avg_model.pt, or any of its checkpoints.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="WeSpeaker's config.yaml.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder with avg_model.pt and config.yaml, in place of --checkpoint and --config."),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(help="Ready-made ONNX file, feats to embs, in place of a checkpoint. Needs no torch."),
    ] = None,
    mean_vec: Annotated[
        Path | None, typer.Option(help="mean_vec.npy: a vector that the graph subtracts from every embedding.")
    ] = None,
    window: Annotated[
        str, typer.Option(help="Window of the features: hamming, or povey for weights of 3D-Speaker.")
    ] = "hamming",
    sample_scale: Annotated[
        float,
        typer.Option(help="What samples in [-1, 1] are multiplied with first; 1 for weights of 3D-Speaker."),
    ] = 32768.0,
    threshold: Annotated[
        float | None,
        typer.Option(min=-1, max=1, help="Cosine above which two voices are one speaker's; kept in the bundle."),
    ] = None,
    stages: Stages = False,
    name: Name = None,
    weights: Weights = "fp32",
    runtimes: Runtimes = "onnxruntime",
    precision: Precision = "fp32",
    check_audio: CheckAudio = None,
    max_drift: Annotated[
        float | None,
        typer.Option(min=0, help="How far such a graph may turn embeddings, as mean of 1 - cosine. Default: 0.01."),
    ] = None,
    force: Force = False,
) -> None:
    """Export a ResNet, ECAPA-TDNN or CAM++, waveform in; or import the ONNX file of any model of WeSpeaker."""
    if model is not None:
        if checkpoint is not None or config is not None or onnx is not None:
            raise typer.BadParameter(
                "the folder has checkpoint and config; leave out --checkpoint, --config and --onnx",
                param_hint="--model",
            )
        checkpoint, config = model / CHECKPOINT, model / CONFIG
    shared: dict[str, Any] = {
        "output": output,
        "config": config,
        "mean_vec": mean_vec,
        "window": window,
        "sample_scale": sample_scale,
        "threshold": threshold,
        "name": name,
        "progress": progress,
    }
    if onnx is not None:
        of_checkpoints = {
            "--checkpoint": checkpoint is not None,
            "--stages": stages,
            "--weights": weights != "fp32",
            "--precision": precision != "fp32",
            "--check-audio": check_audio is not None,
            "--max-drift": max_drift is not None,
            "--force": force,
        }
        _import(onnx, [option for option, given in of_checkpoints.items() if given], runtimes, shared)
        return
    if checkpoint is None or config is None:
        raise typer.BadParameter("give --checkpoint and --config, or a --model folder with both, or an --onnx file")
    try:
        from tritone.families.wespeaker.export import export_wespeaker
    except ModuleNotFoundError as error:
        refuse(error)
    try:
        planned = plan_runtimes(names(runtimes), names(precision))
        report = export_wespeaker(
            **shared,
            checkpoint=checkpoint,
            stages=stages,
            weight_storage=checked_storage(weights),  # type: ignore[arg-type]
            runtimes=planned.runtimes,  # type: ignore[arg-type]
            precisions=names(precision),  # type: ignore[arg-type]
            check_audio=check_audio,
            max_drift=max_drift,
            force=force,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    print_report(report, "of the size of embeddings")
    planned.build_engines(report.bundle)


def _import(onnx: Path, unfit: list[str], runtimes: str, shared: dict[str, Any]) -> None:
    if unfit:
        raise typer.BadParameter(f"{', '.join(unfit)} is for checkpoints; an ONNX file is taken as it is")
    try:
        from tritone.families.wespeaker.onnx_model import import_wespeaker
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"importing needs {error.name}, which is not installed: pip install 'tritone[import]' "
            "(in a checkout: '.[import]')"
        ) from error
    try:
        planned = plan_runtimes(names(runtimes), ("fp32",))
        if others := [each for each in planned.runtimes if each != "onnxruntime"]:
            raise ValueError(f"an ONNX file is for onnxruntime and tensorrt, not for {', '.join(others)}")
        report = import_wespeaker(model=onnx, **shared)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    size = report.bundle.manifest.encoder.output_dim
    typer.echo(f"{report.bundle.path}: embeddings of {size} numbers, {report.bytes / 1e6:.2f} MB", err=True)
    typer.echo(f"  largest difference from the original {report.difference:.2e} (of the size of embeddings)", err=True)
    typer.echo(report.bundle.path)
    planned.build_engines(report.bundle)
