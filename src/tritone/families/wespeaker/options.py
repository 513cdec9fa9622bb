"""What a caller may choose of WeSpeaker's export."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tritone.families.export.options import ConvolutionOptions
from tritone.families.wespeaker.config import Window
from tritone.families.wespeaker.family import CONFIG, WEIGHTS
from tritone.options.fields import option

FOR_CHECKPOINTS = frozenset(
    {"checkpoint", "stages", "weight_storage", "precisions", "check_audio", "max_drift", "force", "lenient", "check"}
)
"""Options that imports of ONNX files do not have."""


@dataclass(frozen=True, kw_only=True)
class WespeakerOptions(ConvolutionOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`. `max_drift` is of 1 - cosine."""

    usual_drift: ClassVar[float] = 0.01  # docs/models/export-wespeaker.md has what models show

    checkpoint: Path | None = option(
        None, "WeSpeaker's avg_model.pt, or any of its checkpoints; pyannote.audio's; a CAM++ of 3D-Speaker."
    )
    config: Path | None = option(None, "WeSpeaker's config.yaml; those of pyannote.audio and 3D-Speaker need none.")
    mean_vec: Path | None = option(None, "mean_vec.npy: a vector that the graph subtracts from every embedding.")
    window: Window | None = option(
        None, "Window of the features: hamming or povey. Default: hamming, povey for weights of 3D-Speaker."
    )
    sample_scale: float | None = option(
        None, "Factor for samples in [-1, 1]. Default: 32768, 1 for weights of 3D-Speaker."
    )
    threshold: float | None = option(
        None, "Cosine above which voices are the same speaker's; kept in the bundle.", least=-1, most=1
    )
    max_drift: float | None = option(
        None, "Limit on the rotation of embeddings, as mean of 1 - cosine. Default: 0.01.", least=0
    )
    model: Path | None = option(
        None, "Folder with avg_model.pt and config.yaml, in place of --checkpoint and --config."
    )
    onnx: Path | None = option(None, "Ready-made ONNX file, feats to embs, in place of a checkpoint. Needs no torch.")

    def __post_init__(self) -> None:
        if self.model is not None and (self.onnx or self.checkpoint or self.config):
            raise ValueError(
                "the folder has checkpoint and config; leave out --checkpoint, --config and --onnx beside --model"
            )
        if self.onnx is None and self.checkpoint is None and self.model is None:
            raise ValueError("give --checkpoint and --config, or a --model folder with both, or an --onnx file")
        super().__post_init__()

    @property
    def files(self) -> tuple[Path, Path | None]:
        """The checkpoint, and its config."""
        if self.model is not None:
            return self.model / WEIGHTS, self.model / CONFIG
        assert self.checkpoint is not None
        return self.checkpoint, self.config
