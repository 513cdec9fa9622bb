"""`tritone engine`: TensorRT engines of a bundle's ONNX graphs, or of one ONNX file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritone.cli.shared.interrupts import interrupts
from tritone.cli.shared.outputs import check_outputs
from tritone.errors import MissingDependencyError
from tritone.installing import pip_install

if TYPE_CHECKING:
    from tritone.bundle.bundle import Bundle
    from tritone.tensorrt.library import Tools
    from tritone.tensorrt.profile import Profile
    from tritone.tensorrt.shaped import ShapeProfile

RTX = (
    "these engines run with TensorRT for RTX alone, on RTX GPUs. For all other GPUs install TensorRT and build them "
    "there"
)


def engine(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="Bundle folder, name of a shipped bundle, or an .onnx file.")
    ],
    least: Annotated[
        list[str] | None,
        typer.Option(
            "--min",
            metavar="SIZE",
            help="Smallest size of a call. Of speech ROWSxSECONDS of one row, like 1x2s; default 1x0.5s. Of any other "
            "graph shapes of the inputs that vary, like input_ids:1x1,mask:1x1, or 1x1 for all with two axes.",
        ),
    ] = None,
    usual: Annotated[
        list[str] | None,
        typer.Option("--opt", metavar="SIZE", help="Usual size, to choose kernels for; default 8x7s."),
    ] = None,
    most: Annotated[
        list[str] | None,
        typer.Option("--max", metavar="SIZE", help="Largest size, to allocate memory for; default 32x30s."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, fp16 or both; the bundle needs ONNX graphs in them. Default: fp32.")
    ] = None,
    roles: Annotated[str | None, typer.Option(help="Roles of the graphs, like encoder,decoder. Default: all.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a new bundle with the engines; of an .onnx file the plan to write. Default: they are added "
            "to BUNDLE, or the plan lies beside the file."
        ),
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
    """Build TensorRT engines of a bundle, or of an ONNX file.

    They are for the GPU of this machine, and are added to the bundle for `tritone build --runtime tensorrt`. Give
    --min, --opt and --max several times for several profiles of sizes. An ONNX file becomes a plan in the precision
    that it has (`tritone convert --to fp16` makes another), and the trtexec command that does the same is printed.
    """
    from tritone.bundle.bundle import Bundle
    from tritone.cli.export.options import names
    from tritone.storage import parse
    from tritone.tensorrt import build_engines

    if output is None and parse(bundle) is not None:
        raise typer.BadParameter(f"{bundle} is in storage, where nothing is added: give --output, a folder here")
    sizes = (least or [], usual or [], most or [])
    try:
        if bundle.endswith(".onnx") and Path(bundle).is_file():
            if precision is not None or roles is not None:
                raise ValueError("--precision and --roles are for bundles; an .onnx file is one graph")
            _build_file(Path(bundle), output, sizes, workspace_mib, timing_cache, level)
            return
        opened = Bundle.open(bundle)
        opened.verify()
        profiles = _profiles(opened, *sizes)
        tools = announced_tools()
        with interrupts():
            built = build_engines(
                opened,
                profiles=profiles,
                precisions=names(precision or "fp32"),  # type: ignore[arg-type]  # checked there
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


def _build_file(
    graph: Path,
    output: Path | None,
    sizes: tuple[list[str], list[str], list[str]],
    workspace_mib: int | None,
    timing_cache: Path | None,
    level: int | None,
) -> None:
    plan = output or graph.with_suffix(".plan")
    check_outputs([plan], [graph])
    try:
        from tritone.tensorrt.single import build_engine
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"building engines needs {error.name}, which is not installed: {pip_install('import')}"
        ) from error
    from tritone.tensorrt.shaped import ShapeProfile

    profiles = [ShapeProfile.parse(*each) for each in _triples(*sizes)]
    tools = announced_tools()
    with interrupts():
        build_engine(
            graph,
            plan,
            tools=tools,
            profiles=profiles,
            workspace_mib=workspace_mib,
            timing_cache=timing_cache,
            level=level,
            progress=lambda step: typer.echo(step, err=True),
        )
    if tools.name == "tensorrt-rtx":
        typer.echo(f"note: {RTX}", err=True)
    typer.echo(plan)


def _profiles(
    bundle: "Bundle", least: list[str], usual: list[str], most: list[str]
) -> "list[Profile] | list[ShapeProfile] | None":
    from tritone.tensorrt.profile import DEFAULT, Profile
    from tritone.tensorrt.shaped import ShapeProfile

    if not (least or usual or most):
        return None
    if not bundle.manifest.is_of_audio:
        return [ShapeProfile.parse(*each) for each in _triples(least, usual, most)]
    defaults = (str(DEFAULT.least), str(DEFAULT.usual), str(DEFAULT.most))
    return [Profile.parse(*sizes) for sizes in _triples(least, usual, most, defaults)]


def _triples(
    least: list[str], usual: list[str], most: list[str], defaults: tuple[str, ...] = ()
) -> list[tuple[str, str, str]]:
    """The sizes of each profile; `defaults` for those that are given for none."""
    count = max(len(least), len(usual), len(most))
    given = [sizes or [default] for sizes, default in zip((least, usual, most), defaults or ("",) * 3, strict=True)]
    if count and ({len(sizes) for sizes in given} != {count} or [""] in given):
        raise ValueError(
            f"each profile has a --min, an --opt and a --max; got {len(least)}, {len(usual)} and {len(most)} of them"
        )
    return list(zip(*given, strict=True)) if count else []


def _progress(step: str) -> None:
    typer.echo(f"{step} ...", err=True)
