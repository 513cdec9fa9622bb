"""What a caller may choose of the export of a voice of Piper."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import BundleOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class PiperOptions(BundleOptions):
    """The voice; the rest see `BundleOptions`."""

    voice: Path = option(
        REQUIRED, "The voice's graph; VOICE.onnx.json lies beside it.", argument=True, metavar="VOICE.onnx"
    )
