"""`tritone check-precision`: how far is one graph from another on real inputs?"""

import json
from typing import Annotated

import typer

from tritone.cli.shared.input_options import (
    Inputs,
    PixelScale,
    Rows,
    SampleRate,
    Tokenizer,
    drift_table,
    input_files,
)

SIDE = "Graph file (.onnx, .pt2, .ts) or bundle; ,role= ,runtime= ,precision= choose, ,device=cuda runs there."


def check_precision(
    first: Annotated[str, typer.Argument(metavar="A", help=f"What is right. {SIDE}", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help="What is compared with it.", show_default=False)],
    inputs: Inputs = None,
    tokenizer: Tokenizer = None,
    sample_rate: SampleRate = 16_000,
    pixel_scale: PixelScale = 255.0,
    rows: Rows = 1,
    max_difference: Annotated[float | None, typer.Option(min=0, help="Largest absolute difference.")] = None,
    max_mean: Annotated[float | None, typer.Option(min=0, help="Largest mean of absolute differences.")] = None,
    min_cosine: Annotated[float, typer.Option(min=-1, max=1, help="Least cosine of any row of an output.")] = 0.99,
    min_agreement: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Least share of equal top-1, or of equal values where they are not floats."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Run two graphs on the same inputs and print how far their outputs are apart.

    Exit code 0 if B keeps all limits, 1 if not. Numbers that become infinite or NaN in B break one always. Without
    --inputs both get inputs made from the shapes, which shows that B runs, and little of its precision.
    """
    from rich.console import Console

    from tritone.families.convert.check import Limits
    from tritone.families.convert.check import check_precision as check

    limits = Limits(
        max_difference=max_difference, max_mean=max_mean, min_cosine=min_cosine, min_agreement=min_agreement
    )
    files = input_files(inputs, rows, sample_rate, pixel_scale, tokenizer)
    if files is None:
        typer.echo("no --inputs: both get inputs made from the shapes", err=True)
    try:
        result = check(first, second, files, limits)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps(result.fields(), ensure_ascii=False))
    else:
        note = f"{result.calls} call{'s' * (result.calls != 1)}; differences of {second} from {first}"
        Console(highlight=False).print(drift_table(result.drift, note))
    for words in result.broken:
        typer.echo(f"beyond its limit: {words}", err=True)
    if result.broken:
        raise typer.Exit(1)
