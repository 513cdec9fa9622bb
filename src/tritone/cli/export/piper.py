"""`tritone export piper`: a voice of Piper becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.options import Values, with_options
from tritone.cli.export.run import function_of, print_report, progress, usage_errors
from tritone.families.export.options import RecognizerOptions


@with_options(RecognizerOptions, only=("output", "name"))
def piper(
    values: Values,
    voice: Annotated[
        Path, typer.Argument(metavar="VOICE.onnx", help="The voice's graph; VOICE.onnx.json lies beside it.")
    ],
) -> None:
    """Export a voice of Piper, which speaks texts. Needs the program espeak-ng (GPL 3), and no torch."""
    run = function_of("piper.export", "export_piper", "import")
    with usage_errors():
        report = run(**values, voice=voice, progress=progress)
    print_report(report, "samples", "the original")
