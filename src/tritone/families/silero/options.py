"""What a caller may choose of the export of silero-vad's detector."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import BundleOptions
from tritone.options.fields import option


@dataclass(frozen=True, kw_only=True)
class SileroOptions(BundleOptions):
    """The file, and which of its networks; the rest see `BundleOptions`."""

    file: Path | None = option(
        None,
        "The file silero_vad.onnx. Default: that of the installed package silero-vad.",
        argument=True,
        metavar="[FILE.onnx]",
    )
    sample_rate: int = option(16000, "Of the audio, in Hz: 16000 or 8000; the file has a network for each.")
