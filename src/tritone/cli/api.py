"""`tritone api`: describe the HTTP interface of a repository's models, with samples that work."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def api(
    repo: Annotated[Path, typer.Argument(metavar="REPO", help="Model repository; any of Triton's, not only ours.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the descriptions.")] = Path("api"),
    url: Annotated[str, typer.Option(help="Where the models are served over HTTP.")] = "http://localhost:8000",
    model: Annotated[
        list[str] | None, typer.Option(help="Describe this model; may be repeated. All if not given.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the documents.")] = "Models on Triton",
) -> None:
    """Describe models for OpenAPI, Postman and curl.

    Each model has a sample as JSON and one with binary tensors; a model with labels, one that asks for classes.
    """
    from tritone.describe import described_models, write_descriptions
    from tritone.describe.models import DescribedTensor

    models = described_models(repo, model or ())

    def tensor_lines(tensors: tuple[DescribedTensor, ...]) -> str:
        return ", ".join(f"{each.name} {each.type}{list(each.shape)}" for each in tensors)

    table = Table("model", "use", "inputs", "outputs", box=None)
    for each in models:
        table.add_row(each.name, each.usage, tensor_lines(each.inputs), tensor_lines(each.outputs))
    written = write_descriptions(models, output, server=url, title=title)
    console = Console(soft_wrap=True, markup=False)
    console.print(table)
    shown = [str(path) for path in written if path.parent == output]
    console.print(f"Wrote {', '.join(shown)} and {len(written) - len(shown)} bodies.", highlight=False)
