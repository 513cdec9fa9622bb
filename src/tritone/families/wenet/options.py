"""What a caller may choose of WeNet's export."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import RecognizerOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class WenetOptions(RecognizerOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`.

    The streaming graph takes other chunk sizes and left chunks as well: these are what serving uses by default.
    """

    checkpoint: Path = option(REQUIRED, "WeNet's final.pt: the bare state dict.")
    config: Path = option(REQUIRED, "WeNet's train.yaml, of either config generation.")
    tokens: Path = option(REQUIRED, "WeNet's units.txt: one 'token id' per line; or a folder that holds it.")
    cmvn: Path | None = option(None, "global_cmvn, when it is neither in the checkpoint nor beside it.")
    streaming: bool = option(False, "Export a streaming encoder too.")
    chunk_size: int = option(16, "Encoder frames a streaming step (16 frames = 640 ms at 40 ms).")
    left_chunks: int = option(5, "Past chunks a streaming step may attend to; -1 for all.")
    decoder: bool = option(
        True, "Export the attention decoder, if the model has one.", flags=("--decoder/--no-decoder",)
    )
