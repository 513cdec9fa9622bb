"""What a caller may choose of Murmur's export; the commands' options are made of it. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import RecognizerOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class MurmurOptions(RecognizerOptions):
    """The file, and what to make of it; the rest see `ExportOptions`."""

    checkpoint: Path = option(REQUIRED, "A file that Murmur's training wrote: sizes, tokens and tensors.")
    streaming: bool = option(False, "Export a streaming encoder too.")
    chunk_size: int = option(16, "Encoder frames of 40 ms a streaming step.", least=1, most=1000)
