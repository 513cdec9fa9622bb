"""What a caller may choose of WeNet's export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tritone.families.export.options import Option, RecognizerOptions


@dataclass(frozen=True, kw_only=True)
class WenetOptions(RecognizerOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`.

    The streaming graph takes other chunk sizes and left chunks as well: these are what serving uses by default.
    """

    checkpoint: Annotated[Path, Option("WeNet's final.pt: the bare state dict.")]
    config: Annotated[Path, Option("WeNet's train.yaml, of either config generation.")]
    tokens: Annotated[Path, Option("WeNet's units.txt: one 'token id' per line; or a folder that holds it.")]
    cmvn: Annotated[Path | None, Option("global_cmvn, when it is neither in the checkpoint nor beside it.")] = None
    streaming: Annotated[bool, Option("Export a streaming graph too.")] = False
    chunk_size: Annotated[int, Option("Encoder frames a streaming step (16 frames = 640 ms at 40 ms).")] = 16
    left_chunks: Annotated[int, Option("Past chunks a streaming step may attend to; -1 for all.")] = 5
    decoder: Annotated[
        bool, Option("Export the attention decoder, if the model has one.", names=("--decoder/--no-decoder",))
    ] = True
