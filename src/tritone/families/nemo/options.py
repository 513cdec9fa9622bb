"""What a caller may choose of NeMo's export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tritone.families.export.options import RecognizerOptions
from tritone.options.fields import option

Head = Literal["transducer", "ctc"]


@dataclass(frozen=True, kw_only=True)
class NemoOptions(RecognizerOptions):
    """NeMo's archive or a folder of transformers, and what to make of it; the rest see `ExportOptions`."""

    archive: Path  # the command's argument
    head: Head | None = option(None, "transducer (RNNT or TDT) or ctc. Default: the transducer, if the model has one.")
