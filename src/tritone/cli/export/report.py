"""What `tritone export` commands have in common: lists of names in, and the report of an export out."""

from typing import TYPE_CHECKING, NoReturn

import typer

from tritone.errors import MissingDependencyError

if TYPE_CHECKING:
    from tritone.families.export.report import ExportReport

STORAGES = ("fp32", "fp16", "int8")


def names(text: str) -> tuple[str, ...]:
    """The parts of `a,b`."""
    return tuple(part.strip() for part in text.split(","))


def checked_storage(weights: str) -> str:
    """A way to store weights; a usage error for anything else."""
    if weights not in STORAGES:
        raise typer.BadParameter(f"{weights!r} is not fp32, fp16 or int8", param_hint="--weights")
    return weights


def progress(step: str) -> None:
    """Say what is done next."""
    typer.echo(f"{step} ...", err=True)


def refuse(error: ModuleNotFoundError) -> NoReturn:
    """Say what to install."""
    raise MissingDependencyError(
        f"exporting needs {error.name}, which is not installed: pip install 'tritone[export]' "
        "(in a checkout: '.[export]')"
    ) from error


def print_report(report: "ExportReport", unit: str) -> None:
    """Print how an export went, and on stdout where the bundle is; `unit` is of the differences."""
    typer.echo(
        f"{report.bundle.path}: {report.parameters / 1e6:.2f} M parameters, {report.bytes / 1e6:.2f} MB", err=True
    )
    for graph, difference in report.differences.items():
        typer.echo(f"  {graph}: largest difference from the torch network {difference:.2e} ({unit})", err=True)
    for graph, drift in report.drifts.items():
        typer.echo(f"  {graph} on audio, against float32: {drift}", err=True)
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(report.bundle.path)
