"""What all `tritone export` commands do: call a family's export, print its report, and build engines."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tritone.cli.export.engines import plan_runtimes, progress
from tritone.cli.export.options import Values
from tritone.families.family import Family


def export(family: Family, values: Values) -> None:
    """Run the export of a family, print its report and where its bundle is, and build engines if they are asked for."""
    run = family.exporter(values)
    with usage_errors():
        planned = plan_runtimes(values["runtimes"], values["precisions"]) if "runtimes" in values else None
        given = values if planned is None else {**values, "runtimes": planned.runtimes}
        report = run(**given, progress=progress)
    for line in report.lines(family.unit, family.original.format(**values)):
        typer.echo(line, err=True)
    typer.echo(report.path)
    if planned is not None and planned.engines:
        planned.build_engines(report.bundle)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what a function raises for bad arguments into usage errors."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
