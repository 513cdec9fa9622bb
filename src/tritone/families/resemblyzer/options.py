"""What a caller may choose of the export of Resemblyzer's voice encoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tritone.families.export.options import ExportOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class ResemblyzerOptions(ExportOptions):
    """Upstream's file, and what to make of it; the rest see `ExportOptions`. `max_drift` is of 1 - cosine."""

    usual_drift: ClassVar[float] = 0.01  # as of other speaker models

    checkpoint: Path = option(REQUIRED, "Resemblyzer's pretrained.pt, or another of its encoder's checkpoints.")
    threshold: float | None = option(
        None, "Cosine above which voices are the same speaker's; kept in the bundle.", least=-1, most=1
    )
    max_drift: float | None = option(
        None, "Limit on the rotation of embeddings, as mean of 1 - cosine. Default: 0.01.", least=0
    )

    def __post_init__(self) -> None:
        if "int8" in self.precisions:
            raise ValueError(
                "int8 is for products of matrices, and this network is an LSTM: take bf16, or store the weights as int8"
            )
        super().__post_init__()
