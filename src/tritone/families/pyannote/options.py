"""What a caller may choose of the export of a segmentation network of pyannote.audio."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import ExportOptions
from tritone.options.fields import REQUIRED, option

MAX_WINDOW_S = 60.0
MAX_SPEAKERS = 16
WINDOW_S, SPEAKERS, AT_ONCE = 10.0, 3, 2  # of segmentation-3.0, for files that do not say


@dataclass(frozen=True, kw_only=True)
class PyannoteOptions(ExportOptions):
    """Upstream's file; the rest see `ExportOptions`."""

    checkpoint: Path = option(
        REQUIRED, "pytorch_model.bin of a segmentation model, such as segmentation-3.0; or an ONNX file of one."
    )

    def __post_init__(self) -> None:
        if "int8" in self.precisions:
            raise ValueError(
                "int8 is for products of matrices, and this network is an LSTM: take bf16, or store the weights as int8"
            )
        if self.stages:
            raise ValueError("the network takes waveforms and has no features to be served apart; leave stages out")
        super().__post_init__()
