"""`tritone export silero`: silero-vad's ONNX file becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.options import Values, with_options
from tritone.cli.export.run import function_of, print_report, progress, usage_errors
from tritone.families.export.options import RecognizerOptions


@with_options(RecognizerOptions, only=("output", "name"))
def silero(
    values: Values,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.onnx]", help="The file silero_vad.onnx. Default: that of the installed package silero-vad."
        ),
    ] = None,
    sample_rate: Annotated[
        int, typer.Option(help="Of the audio, in Hz: 16000 or 8000; the file has a network for each.")
    ] = 16000,
) -> None:
    """Export the voice activity detector of silero-vad, version 5 or 6. Needs no torch."""
    run = function_of("silero.export", "export_silero", "import")
    with usage_errors():
        report = run(**values, file=file, sample_rate=sample_rate, progress=progress)
    print_report(report, "probability", "the original")
