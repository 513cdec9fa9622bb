"""`tritone build`: bundles to a Triton model repository."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from tritone.backend.settings import GENERIC
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.errors import ServerSetupError
from tritone.kinds import compile_search
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.repository import ModelOptions, build_repository, compiled_searches
from tritone.repository.build import Modes
from tritone.repository.ensemble import TensorNames
from tritone.repository.folder import ModelFolder
from tritone.repository.generic import Platform
from tritone.repository.memory import facts
from tritone.repository.push import push
from tritone.repository.serving import ServingOptions
from tritone.search.options import MODEL_PARAMETERS, used_by
from tritone.server.installation import find_installation
from tritone.server.layout import Acoustic, Layout, ensemble_options
from tritone.server.trial import try_to_load
from tritone.storage import open_store, parse


@takes_option_classes(leave_out=("decoding",))
def build(
    context: typer.Context,
    *,
    bundles: Annotated[list[str], typer.Argument(metavar="BUNDLE", help="Bundle folders or names of shipped bundles.")],
    output: Annotated[
        Path,
        typer.Option(metavar="REPO", help="The repository: a folder, or s3://...; models already in it stay."),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(help="Model name, once for each bundle; the bundle's own if not given."),
    ] = None,
    mode: Annotated[
        Modes,
        typer.Option(help="Models: NAME offline, NAME-streaming streaming. With streaming only, --name is exact."),
    ] = "both",
    options: ModelOptions,
    decoding: Annotated[dict[str, Any], DecodingOptions],
    serving: ServingOptions,
    platform: Annotated[
        Platform,
        typer.Option(
            help="Generic: who runs the graph, Tritone or Triton's own backend for it (native: onnxruntime_onnx, "
            "pytorch_libtorch, tensorrt_plan), which NVIDIA's image has."
        ),
    ] = "tritone",
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
            help="Ensemble: processes of a stage: acoustic=2@0,1 or decoder=4@cpu; as --instances says if not "
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
    overcommit: Annotated[
        bool, typer.Option("--overcommit", help="Build also what needs more memory than this machine has.")
    ] = False,
    trial: Annotated[
        bool | None,
        typer.Option(
            "--trial/--no-trial",
            help="Load the models in a Triton before they are put into the repository. Default: generic models, if "
            "there is a tritonserver here.",
        ),
    ] = None,
) -> None:
    """Turn bundles into a Triton model repository.

    Streams have endpoints if one of the three --endpoint options is given; the others then have the value in brackets,
    and inf switches one off.
    """
    address = parse(output)
    if address is not None:  # built on this machine first, and pushed as a whole
        store = open_store(address)
        output = Path(context.with_resource(TemporaryDirectory(prefix="tritone-build-")), "repository")
    try:
        options = replace(options, decoding=json.dumps(decoding) if decoding else "")
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
            bundles,
            output,
            names=name or None,
            modes=mode,
            options=options,
            layout=stages,
            serving=serving,
            platform=platform,
            link=link,
            force=force,
            measure=True,
            overcommit=overcommit,
            check=partial(try_models, trial=trial),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    idle = [MODEL_PARAMETERS[name].flag for name in ("lm", "hotwords") if getattr(options, name)]
    if idle and options.search == "greedy":
        typer.echo(
            f"note: greedy search does not look at {' and '.join(idle)}; requests that ask for another search will. "
            f"--search {used_by(['lm'])} uses it for all.",
            err=True,
        )
    for kind, way in sorted(
        compiled_searches(output)
    ):  # so that the first server need not; it is logged where it takes long
        compile_search(kind, way)
    if address is not None:
        for done in push(output, store):
            typer.echo(f"{done.model}: version {done.version}, {done.outcome}", err=True)
    for model in built:
        typer.echo(f"{model.name}\t{model.mode}\t{model.path if address is None else address / model.name}")
    for line in facts(output, {model.name for model in built}):
        typer.echo(line, err=True)
    typer.echo(f"Serve it with: tritone serve {address or output}", err=True)


def try_models(folder: Path, models: Sequence[ModelFolder], *, trial: bool | None, every: bool = False) -> None:
    """Load models as `--trial` says; without it only generic ones, whose configurations are their users' own.

    Args:
        every: load the others too, since generic ones need them.
    """
    chosen = models if trial or every else [model for model in models if model.mode == GENERIC]
    if trial is False or not chosen:
        return
    if trial is None:
        try:
            find_installation()
        except ServerSetupError:
            typer.echo("note: not loaded for a check, since there is no tritonserver here; --trial wants one", err=True)
            return
    typer.echo(f"loading {', '.join(model.name for model in chosen)} in a Triton, for a check ...", err=True)
    for note in try_to_load(folder, chosen):
        typer.echo(f"note: {note}", err=True)
