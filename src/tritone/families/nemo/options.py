"""What a caller may choose of NeMo's export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tritone.families.export.options import RecognizerOptions
from tritone.options.fields import REQUIRED, option

Head = Literal["transducer", "ctc"]


@dataclass(frozen=True, kw_only=True)
class NemoOptions(RecognizerOptions):
    """NeMo's archive or a folder of transformers, and what to make of it; the rest see `ExportOptions`."""

    archive: Path = option(
        REQUIRED,
        "NeMo's archive, or a folder of transformers (Parakeet, Nemotron, Canary).",
        argument=True,
        metavar="FILE.nemo|FOLDER",
    )
    head: Head | None = option(None, "transducer (RNNT or TDT) or ctc. Default: the transducer, if the model has one.")
    streaming: bool = option(False, "Export a streaming encoder too, of a model that was trained for streams.")
    chunk_size: int | None = option(
        None,
        "Encoder frames a streaming step, one of the sizes that the model was trained for; serving may choose another "
        "of them. Default: that of the model's first context.",
    )
