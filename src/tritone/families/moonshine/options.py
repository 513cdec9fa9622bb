"""What a caller may choose of Moonshine's export."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import ExportOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class MoonshineOptions(ExportOptions):
    """The model's folder; the rest see `ExportOptions`."""

    folder: Path = option(
        REQUIRED,
        "Folder of transformers, or of sherpa-onnx: preprocess.onnx, encode.onnx, uncached_decode.onnx, …",
        argument=True,
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        if self.stages:
            raise ValueError("Moonshine has a graph for audio and one for text, and no others; leave out --stages")
        super().__post_init__()
