"""What a caller may choose of the export of a classifier of ends of turns."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import BundleOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class SmartTurnOptions(BundleOptions):
    """The file; the rest see `BundleOptions`."""

    file: Path = option(REQUIRED, "The file, such as smart-turn-v3.2-cpu.onnx.", argument=True, metavar="FILE.onnx")
