"""What a caller may choose of NeMo's export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tritone.families.export.options import Option, RecognizerOptions

Head = Literal["transducer", "ctc"]


@dataclass(frozen=True, kw_only=True)
class NemoOptions(RecognizerOptions):
    """NeMo's archive, and what to make of it; the rest see `ExportOptions`."""

    archive: Path  # the command's argument
    head: Annotated[
        Head | None,
        Option("transducer (RNNT or TDT) or ctc. Default: the transducer, if the model has one."),
    ] = None
