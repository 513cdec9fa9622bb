"""`tritone engine`: TensorRT engines of a bundle's ONNX graphs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritone.cli.shared.interrupts import interrupts

if TYPE_CHECKING:
    from tritone.bundle.bundle import Bundle
    from tritone.tensorrt.library import Tools
    from tritone.tensorrt.profile import Profile

RTX = (
    "these engines run with TensorRT for RTX alone, on RTX GPUs. For all other GPUs install TensorRT and build them "
    "there"
)


def engine(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or name of a shipped bundle.")],
    least: Annotated[
        list[str] | None,
        typer.Option(
            "--min", metavar="ROWSxSECONDS", help="Smallest size of a call, of one row, like 1x2s; default 1x0.5s."
        ),
    ] = None,
    usual: Annotated[
        list[str] | None,
        typer.Option("--opt", metavar="ROWSxSECONDS", help="Usual size, to choose kernels for; default 8x7s."),
    ] = None,
    most: Annotated[
        list[str] | None,
        typer.Option("--max", metavar="ROWSxSECONDS", help="Largest size, to allocate memory for; default 32x30s."),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, fp16 or both; the bundle needs ONNX graphs in them.")] = "fp32",
    roles: Annotated[str | None, typer.Option(help="Roles of the graphs, like encoder,decoder. Default: all.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of a new bundle with the engines. Default: they are added to BUNDLE.")
    ] = None,
    workspace_mib: Annotated[
        int | None, typer.Option(min=1, help="Memory that kernels may use. Default: TensorRT's choice.")
    ] = None,
    timing_cache: Annotated[
        Path | None, typer.Option(help="File of kernel timings. Default: in the user's cache folder.")
    ] = None,
    level: Annotated[
        int | None, typer.Option(min=0, max=5, help="Effort of the search for kernels. Default: TensorRT's, 3.")
    ] = None,
) -> None:
    """Build TensorRT engines of a bundle's ONNX graphs.

    They are for the GPU of this machine, and are added to the bundle for `tritone build --runtime tensorrt`. Give
    --min, --opt and --max several times for several profiles of sizes.
    """
    from tritone.bundle.bundle import Bundle
    from tritone.cli.export.options import names
    from tritone.storage import parse
    from tritone.tensorrt import build_engines

    if output is None and parse(bundle) is not None:
        raise typer.BadParameter(f"{bundle} is in storage, where nothing is added: give --output, a folder here")
    try:
        profiles = _profiles(least or [], usual or [], most or [])
        opened = Bundle.open(bundle)
        opened.verify()
        tools = announced_tools()
        with interrupts():
            built = build_engines(
                opened,
                profiles=profiles,
                precisions=names(precision),  # type: ignore[arg-type]  # checked there
                roles=None if roles is None else names(roles),  # type: ignore[arg-type]  # checked there
                output=output,
                tools=tools,
                workspace_mib=workspace_mib,
                timing_cache=timing_cache,
                level=level,
                progress=_progress,
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    print_engines(built, tools)
    typer.echo(built.path)


def announced_tools() -> "Tools":
    """What builds engines here; says what was found."""
    from tritone.tensorrt.library import find_tools

    tools = find_tools()
    where = f"{tools.gpu.name}, compute capability {tools.gpu.capability}" if tools.gpu else "no GPU here"
    typer.echo(f"{tools.title}; {where}", err=True)
    return tools


def print_engines(bundle: "Bundle", tools: "Tools") -> None:
    """Print which engines a bundle has."""
    for artifact in bundle.manifest.artifacts:
        if artifact.engine is not None:
            size = bundle.file(artifact.files[0]).stat().st_size / 1e6
            typer.echo(f"  {artifact.files[0]}: {size:.2f} MB, for {'; '.join(artifact.engine.profiles)}", err=True)
    if tools.name == "tensorrt-rtx":
        typer.echo(f"note: {RTX}", err=True)


def _profiles(least: list[str], usual: list[str], most: list[str]) -> "list[Profile]":
    from tritone.tensorrt.profile import DEFAULT, Profile

    count = max(len(least), len(usual), len(most), 1)
    given = [
        sizes or [str(default)]
        for sizes, default in ((least, DEFAULT.least), (usual, DEFAULT.usual), (most, DEFAULT.most))
    ]
    if {len(sizes) for sizes in given} != {count}:
        raise ValueError(
            f"each profile has a --min, an --opt and a --max; got {len(least)}, {len(usual)} and {len(most)} of them"
        )
    return [Profile.parse(*sizes) for sizes in zip(*given, strict=True)]


def _progress(step: str) -> None:
    typer.echo(f"{step} ...", err=True)
