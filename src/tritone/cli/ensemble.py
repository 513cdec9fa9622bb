"""`tritone ensemble`: a file that wires bundles and functions becomes an ensemble in a repository."""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.build import try_models
from tritone.cli.shared.inspection_printer import printable

if TYPE_CHECKING:
    from tritone.pipelines.wiring.spec import EnsembleSpec
    from tritone.pipelines.wiring.wires import Wiring


def ensemble(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC.yaml", help="The steps and their wires; see docs/serving/ensemble.md.")
    ],
    output: Annotated[
        Path | None, typer.Option(help="The repository folder; models already in it stay. Without it, only check.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where models run for which the file says nothing: cpu or gpu.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace model folders that Tritone did not write.")] = False,
    overcommit: Annotated[
        bool, typer.Option("--overcommit", help="Build also what needs more memory than this machine has.")
    ] = False,
    trial: Annotated[
        bool | None,
        typer.Option(
            "--trial/--no-trial",
            help="Load the models in a Triton before they are put into the repository. Default: if there is one here.",
        ),
    ] = None,
) -> None:
    """Wire bundles and Python functions into a Triton ensemble.

    Names, types and sizes along the wires are checked before anything is written. Functions that the file names are
    imported, which runs code of their modules.
    """
    from tritone.pipelines.wiring.spec import read_spec
    from tritone.pipelines.wiring.wires import wire
    from tritone.prepare.steps import bundles_of
    from tritone.repository.config import ModelOptions
    from tritone.repository.wired import build_ensemble

    read = read_spec(spec)
    with tempfile.TemporaryDirectory(prefix="tritone-ensemble-") as made:
        bundles = bundles_of(read, spec.parent, Path(made))
        try:
            options = ModelOptions(device=device)  # type: ignore[arg-type]  # checked there
            wiring = wire(read, bundles, options.max_batch_size)
            _show(read, wiring)
            if output is None:
                typer.echo("the wires fit; nothing was written (--output REPO writes the models)", err=True)
                return
            built, _ = build_ensemble(
                read,
                bundles,
                output,
                options=options,
                force=force,
                overcommit=overcommit,
                check=partial(try_models, trial=trial, every=True),
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    for model in built:
        typer.echo(f"{model.name}\t{model.mode}\t{model.path}")
    typer.echo(f"Serve it with: tritone serve {output}", err=True)


def _show(spec: "EnsembleSpec", wiring: "Wiring") -> None:
    console = Console(soft_wrap=True, highlight=False, stderr=True)
    wires = Table("step", "input", "from", box=None)
    for name in wiring.order:
        for key, reference in spec.steps[name].inputs.items():
            wires.add_row(*map(printable, (name, key, reference)))
    for name, reference in spec.outputs.items():
        wires.add_row("", printable(name), printable(reference))
    tensors = Table("", "name", "type", "dims of a row", box=None)
    for side, each in [("input", each) for each in wiring.inputs] + [("output", each) for each in wiring.outputs]:
        tensors.add_row(side, *map(printable, (each.name, each.type, str(list(each.dims)))))
    console.print(wires, "", tensors)
    rows = f"up to {wiring.max_batch_size} rows in a request" if wiring.max_batch_size else "no axis of rows"
    console.print(f"{rows}{'; it answers many times' if wiring.decoupled else ''}")
    for note in wiring.notes:
        console.print(printable(f"note: {note}"))
