"""What a caller may choose of the export of transformers' CTC models."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import RecognizerOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class HfOptions(RecognizerOptions):
    """The model's folder, and what to make of it; the rest see `ExportOptions`."""

    folder: Path = option(
        REQUIRED,
        "Folder of transformers: config.json, model.safetensors, vocab.json, …",
        argument=True,
        metavar="DIR",
    )
    language: str | None = option(
        None,
        "Language of a model with adapters for several (MMS), such as eng: its vocabulary and its adapter. "
        "Default: the one that the folder was saved with.",
    )
