"""What a caller may choose of the export of SpeechBrain's ECAPA-TDNN."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tritone.families.export.options import ConvolutionOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class SpeechbrainOptions(ConvolutionOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`. `max_drift` is of 1 - cosine."""

    usual_drift: ClassVar[float] = 0.01  # as of other speaker models

    checkpoint: Path = option(REQUIRED, "SpeechBrain's embedding_model.ckpt, or its folder.")
    config: Path | None = option(None, "SpeechBrain's hyperparams.yaml. Default: the one beside the checkpoint.")
    mean_vec: Path | None = option(
        None, "mean_var_norm_emb.ckpt: a mean that the graph subtracts from embeddings; upstream verifies without it."
    )
    threshold: float | None = option(
        None, "Cosine above which voices are the same speaker's; kept in the bundle.", least=-1, most=1
    )
    max_drift: float | None = option(
        None, "Limit on the rotation of embeddings, as mean of 1 - cosine. Default: 0.01.", least=0
    )
