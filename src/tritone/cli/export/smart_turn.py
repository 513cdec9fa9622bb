"""`tritone export smart-turn`: a classifier of ends of turns becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.options import Values, with_options
from tritone.cli.export.run import function_of, print_report, progress, usage_errors
from tritone.families.export.options import RecognizerOptions


@with_options(RecognizerOptions, only=("output", "name"))
def smart_turn(
    values: Values,
    file: Annotated[Path, typer.Argument(metavar="FILE.onnx", help="The file, such as smart-turn-v3.2-cpu.onnx.")],
) -> None:
    """Export Smart Turn v3, or another classifier of Whisper's features, waveform in. Needs no torch."""
    run = function_of("smart_turn.export", "export_smart_turn", "import")
    with usage_errors():
        report = run(**values, file=file, progress=progress)
    print_report(report, "probability", "the original")
