"""`tritone build`: bundles to a Triton model repository."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.cli.shared.described_options import takes_options
from tritone.pipelines.embed_options import EmbedFields
from tritone.pipelines.kinds import compile_search
from tritone.repository import ModelOptions, build_repository, compiled_searches
from tritone.repository.build import Modes
from tritone.repository.ensemble import TensorNames
from tritone.repository.instances import Device
from tritone.search.fields import described
from tritone.search.options import MODEL_PARAMETERS, used_by
from tritone.server.layout import Acoustic, Layout, ensemble_options

DEFAULTS = ModelOptions()
WINDOWS = described(EmbedFields)


@takes_options([*MODEL_PARAMETERS.values(), *WINDOWS.values()], before="layout", with_defaults=True)
def build(
    bundles: Annotated[list[str], typer.Argument(metavar="BUNDLE", help="Bundle folders or names of shipped bundles.")],
    output: Annotated[Path, typer.Option(help="The repository folder; models already in it stay.")],
    name: Annotated[
        list[str] | None,
        typer.Option(help="Model name, once for each bundle; the bundle's own if not given."),
    ] = None,
    mode: Annotated[
        Modes,
        typer.Option(help="Models: NAME offline, NAME-streaming streaming. With streaming only, --name is exact."),
    ] = "both",
    instances: Annotated[int, typer.Option(help="Model processes (on each GPU).")] = DEFAULTS.instances,
    device: Annotated[Device, typer.Option(help="Where the models run.")] = DEFAULTS.device,
    gpus: Annotated[str, typer.Option(help="With --device gpu: indices like 0,1; every GPU if not given.")] = "",
    runtime: Annotated[
        str, typer.Option(help="onnxruntime, torch, torchscript or tensorrt; the bundle's first that can if not given.")
    ] = DEFAULTS.runtime,
    precision: Annotated[
        str, typer.Option(help="fp32, fp16, bf16 or int8; the bundle's first if not given.")
    ] = DEFAULTS.precision,
    threads: Annotated[int, typer.Option(help="CPU threads of an instance; 0 shares the cores.")] = DEFAULTS.threads,
    max_batch_size: Annotated[int, typer.Option(help="Most requests in one call.")] = DEFAULTS.max_batch_size,
    preferred_batch_sizes: Annotated[str, typer.Option(help="Batch sizes worth waiting for, like 8,16.")] = "",
    queue_delay_ms: Annotated[float, typer.Option(help="Longest wait for a batch to fill.")] = DEFAULTS.queue_delay_ms,
    queue_limit: Annotated[
        int,
        typer.Option(help="Offline requests that may wait, further ones are refused; 0: no limit. Use 2 instances."),
    ] = DEFAULTS.queue_limit,
    queue_timeout_ms: Annotated[
        float,
        typer.Option(help="Refuse an offline request that waited this long; 0: never. Use 2 instances."),
    ] = DEFAULTS.queue_timeout_ms,
    max_audio_s: Annotated[
        float, typer.Option(help="Longest audio of one request, in seconds.")
    ] = DEFAULTS.max_audio_s,
    max_streams: Annotated[int, typer.Option(help="Streams open at once in a streaming model.")] = DEFAULTS.max_streams,
    stream_idle_timeout_s: Annotated[
        float, typer.Option(help="Close a stream that sends nothing for this long, in seconds.")
    ] = DEFAULTS.stream_idle_timeout_s,
    layout: Annotated[
        Layout,
        typer.Option(
            help="fused: one model for whole utterances. ensemble: NAME of NAME-features, NAME-acoustic and "
            "NAME-decoder, which takes a bundle exported with --stages."
        ),
    ] = "fused",
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE=COUNT[@PLACE]",
            help="Ensemble: processes of a stage, such as acoustic=2@0,1 or decoder=4@cpu; as --instances says if not "
            "given, and the decoder on the CPU.",
        ),
    ] = None,
    acoustic: Annotated[
        Acoustic | None,
        typer.Option(
            help="Ensemble: what runs the network, Triton's native backend for its runtime, or python, our own. "
            "Default: native if a tritonserver with that backend is found here."
        ),
    ] = None,
    tensors: Annotated[
        TensorNames,
        typer.Option(
            help="Ensemble: names of tensors, triton (WAV to TRANSCRIPTS) or jasper (AUDIO_SIGNAL to TRANSCRIPT, the "
            "class ids)."
        ),
    ] = "triton",
    link: Annotated[bool, typer.Option("--link", help="Link to the bundles instead of copying them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace model folders that Tritone did not write.")] = False,
    **behaviour: Any,
) -> None:
    """Turn bundles into a Triton model repository.

    Streams have endpoints if one of the three --endpoint options is given; the others then have the value in brackets,
    and inf switches one off.
    """
    try:
        options = ModelOptions(
            instances=instances,
            device=device,
            gpus=_numbers(gpus),
            runtime=runtime,
            precision=precision,
            threads=threads,
            max_batch_size=max_batch_size,
            preferred_batch_sizes=_numbers(preferred_batch_sizes),
            queue_delay_ms=queue_delay_ms,
            queue_limit=queue_limit,
            queue_timeout_ms=queue_timeout_ms,
            max_audio_s=max_audio_s,
            max_streams=max_streams,
            stream_idle_timeout_s=stream_idle_timeout_s,
            **behaviour,
        )
        stages = ensemble_options(
            bundles,
            options,
            layout,
            stages=stage or (),
            acoustic=acoustic,
            tensors=tensors,
            streaming=mode == "streaming",
        )
        built = build_repository(
            bundles, output, names=name or None, modes=mode, options=options, layout=stages, link=link, force=force
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    idle = [f"--{name}" for name in ("lm", "hotwords") if behaviour[name]]
    if idle and options.search == "greedy":
        typer.echo(
            f"note: greedy search does not look at {' and '.join(idle)}; requests that ask for another search will. "
            f"--search {used_by(['lm'])} uses it for all.",
            err=True,
        )
    if searches := sorted(compiled_searches(output)):
        typer.echo("compiling the search, which the first server would do otherwise ...", err=True)
        for kind, way in searches:
            compile_search(kind, way)
    for model in built:
        typer.echo(f"{model.name}\t{model.mode}\t{model.path}")
    typer.echo(f"Serve it with: tritone serve {output}", err=True)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"expected numbers separated by commas, like 0,1; got {text!r}") from None
