"""How commands are given inputs for a graph: files, and how to read them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tritone.families.convert.calls import InputFiles
    from tritone.families.convert.drift import OutputDrift
    from tritone.report.table import Table

INPUTS = "Inputs: .npz with arrays by input name, audio, images, .txt with a text a line, or folders; repeatable."
Inputs = Annotated[list[Path] | None, typer.Option(metavar="PATH", help=INPUTS)]
Tokenizer = Annotated[
    Path | None, typer.Option(metavar="FILE", help="tokenizer.json, for texts that become token ids.")
]
SampleRate = Annotated[int, typer.Option(min=1000, help="Of audio, in Hz; other rates are resampled.")]
PixelScale = Annotated[float, typer.Option(help="Pixels are divided by it for graphs that take floats.")]
Rows = Annotated[int, typer.Option(min=1, help="Samples in one call, of audio, images and texts.")]


def input_files(
    paths: Sequence[Path] | None, rows: int, sample_rate: int, pixel_scale: float, tokenizer: Path | None
) -> "InputFiles | None":
    """What the options above say; None without paths. Raises `typer.BadParameter` if a number makes no sense."""
    from tritone.families.convert.calls import InputFiles

    if not paths:
        return None
    try:
        return InputFiles(paths=paths, rows=rows, sample_rate=sample_rate, pixel_scale=pixel_scale, tokenizer=tokenizer)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def drift_table(drift: "Sequence[OutputDrift]", note: str) -> "Table":
    """How far outputs are from those of another graph."""
    from tritone.report.table import Column, Table

    columns = [
        Column("name", "output"),
        Column("dtype", "type", spare=2),
        Column("values", "values", spare=1),
        Column("size", "RMS", spare=3),
        Column("largest", "largest change"),
        Column("mean", "mean change"),
        Column("cosine", "least cosine", digits=6),
        Column("agreement", "top-1 equal", scale=100, digits=2, unit="%"),
    ]
    rows = [
        {key: _significant(value) if key in ("largest", "mean") else value for key, value in vars(each).items()}
        for each in drift
    ]
    return Table("", columns, rows, note=note)


def _significant(value: float | None) -> str | None:
    """Three digits, however small."""
    return None if value is None else f"{value:.3g}"
