"""What a caller may choose of FunASR's export."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import RecognizerOptions


@dataclass(frozen=True, kw_only=True)
class FunasrOptions(RecognizerOptions):
    """The model's folder; the rest see `ExportOptions`."""

    folder: Path  # the command's argument
