"""`tritone image`: container images of Tritone, built and run by docker or podman."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.images import TARGETS, ImageBuild, ServerRun, find_engine, shown
from tritone.images.build import find_checkout
from tritone.images.engine import replace_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tritone.images import Engine

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Wanted = Annotated[
    Literal["docker", "podman"] | None, typer.Option(help="If not given docker, or podman where that is not on PATH.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command line, and do not run it.")]


@app.callback()
def commands() -> None:
    """Build and run container images with docker or podman."""


@app.command()
@takes_option_classes()
def build(
    target: Annotated[str, typer.Argument(metavar="[TARGET]", help=f"One of {', '.join(TARGETS)}.")] = "server-slim",
    extra: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARG", help="Further arguments of docker or podman build.")
    ] = None,
    *,
    options: ImageBuild,
    context: Annotated[
        Path | None, typer.Option(help="Checkout of Tritone; if not given that of this command, or this folder.")
    ] = None,
    engine: Wanted = None,
    dry_run: DryRun = False,
) -> None:
    """Build an image from a checkout: server (for GPUs), server-slim (for CPUs), client, gateway or export."""
    checkout = find_checkout(context)
    _run(engine, dry_run, lambda each: options.command(each, target, checkout, extra or ()))


@app.command()
@takes_option_classes()
def run(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Model repository: a folder, or s3://....")],
    extra: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARG", help="Further arguments of `tritone serve`.")
    ] = None,
    *,
    options: ServerRun,
    engine: Wanted = None,
    dry_run: DryRun = False,
) -> None:
    """Serve a model repository in a container, as user 10001 on a read-only file system."""
    _run(engine, dry_run, lambda each: options.command(each, repo, extra or ()))


def _run(engine: "Engine | None", dry_run: bool, command_for: "Callable[[Engine], list[str]]") -> None:
    """Print the command of the engine here, and run it in place of this process."""
    try:
        command = command_for(find_engine(engine, installed=not dry_run))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(shown(command), err=not dry_run)
    if not dry_run:
        replace_process(command)
