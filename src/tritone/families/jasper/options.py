"""What a caller may choose of Jasper's and QuartzNet's export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tritone.families.export.options import ConvolutionOptions, Option, RecognizerOptions


@dataclass(frozen=True, kw_only=True)
class JasperOptions(ConvolutionOptions, RecognizerOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`."""

    checkpoint: Annotated[
        Path, Option("Upstream's Jasper_…_checkpoint.pt, or a .nemo archive, which holds the config too.")
    ]
    config: Annotated[Path | None, Option("Upstream's config, a .yaml; optional with .nemo.")] = None
    ema: Annotated[bool, Option("Use the averaged weights, if the checkpoint has them.", names=("--ema/--no-ema",))] = (
        True
    )
    masked: Annotated[
        bool | None,
        Option(
            "Whether the network zeroes what is behind an utterance's end before each convolution, or hears "
            "upstream's padding there. Default: as the config says (use_conv_masks).",
            names=("--masked/--unmasked",),
        ),
    ] = None
