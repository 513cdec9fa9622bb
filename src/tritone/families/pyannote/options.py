"""What a caller may choose of the export of a segmentation network of pyannote.audio."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import ExportOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class PyannoteOptions(ExportOptions):
    """Upstream's file; the rest see `ExportOptions`."""

    checkpoint: Path = option(REQUIRED, "pytorch_model.bin of a segmentation model, such as segmentation-3.0.")

    def __post_init__(self) -> None:
        if "int8" in self.precisions:
            raise ValueError(
                "int8 is for products of matrices, and this network is an LSTM: take bf16, or store the weights as int8"
            )
        if self.stages:
            raise ValueError("the network takes waveforms and has no features to be served apart; leave stages out")
        super().__post_init__()
