"""What all `tritone export` commands do: call a family's export, print its report, and build engines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from tritone.cli.export.engines import plan_runtimes, progress
from tritone.cli.export.options import Values
from tritone.errors import MissingDependencyError
from tritone.installing import pip_install

if TYPE_CHECKING:
    from tritone.families.export.report import ExportReport


def export(family: str, values: Values, unit: str, original: str = "the torch network") -> None:
    """Run the export of a family; `unit` is of the differences from `original` in its report."""
    run = function_of(f"{family}.export", f"export_{family}")
    with usage_errors():
        planned = plan_runtimes(values["runtimes"], values["precisions"])
        report = run(**{**values, "runtimes": planned.runtimes}, progress=progress)
    print_report(report, unit, original)
    planned.build_engines(report.bundle)


def function_of(module: str, name: str, extra: str = "export") -> Callable[..., Any]:
    """A function of the families, which need packages that are not always installed; the error says which."""
    try:
        function: Callable[..., Any] = getattr(import_module(f"tritone.families.{module}"), name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{extra}ing needs {error.name}, which is not installed: {pip_install(extra)}"
        ) from error
    return function


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what a function raises for bad arguments into usage errors."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def print_report(report: "ExportReport", unit: str, original: str = "the torch network") -> None:
    """Print how an export went, and on stdout where the bundle is; `unit` is of the differences from `original`."""
    typer.echo(
        f"{report.bundle.path}: {report.parameters / 1e6:.2f} M parameters, {report.bytes / 1e6:.2f} MB", err=True
    )
    for graph, difference in report.differences.items():
        typer.echo(f"  {graph}: largest difference from {original} {difference:.2e} ({unit})", err=True)
    for graph, drift in report.drifts.items():
        typer.echo(f"  {graph} on audio, against float32: {drift}", err=True)
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(report.bundle.path)
