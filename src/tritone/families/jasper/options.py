"""What a caller may choose of Jasper's and QuartzNet's export."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import ConvolutionOptions, RecognizerOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class JasperOptions(ConvolutionOptions, RecognizerOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`."""

    checkpoint: Path = option(
        REQUIRED, "Upstream's Jasper_…_checkpoint.pt, or a .nemo archive, which holds the config too."
    )
    config: Path | None = option(None, "Upstream's config, a .yaml; optional with .nemo.")
    ema: bool = option(True, "Use the averaged weights, if the checkpoint has them.", flags=("--ema/--no-ema",))
    masked: bool | None = option(
        None,
        "Whether the network zeroes what is behind an utterance's end before each convolution, or uses "
        "upstream's padding there. Default: as the config says (use_conv_masks).",
        flags=("--masked/--unmasked",),
    )
