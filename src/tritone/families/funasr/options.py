"""What a caller may choose of FunASR's export."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import RecognizerOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class FunasrOptions(RecognizerOptions):
    """The model's folder; the rest see `ExportOptions`. Sizes are of a model for streams, in frames of 60 ms."""

    folder: Path = option(
        REQUIRED,
        "Folder of FunASR: config.yaml, model.pt, am.mvn and the tokens.",
        argument=True,
        metavar="DIR",
    )
    chunk_size: int | None = option(
        None, "Frames of 60 ms a streaming step, upstream's chunk_size[1]. Default: 10.", least=1, most=1000
    )
    right_context: int | None = option(
        None,
        "Frames that a streaming step waits for beyond its own, upstream's chunk_size[2]. Default: half of a chunk.",
        least=0,
        most=1000,
    )
    left_chunks: int | None = option(
        None,
        "Past chunks that the encoder looks at in streams, upstream's encoder_chunk_look_back. Default: 4.",
        least=0,
        most=1000,
    )
    decoder_left_chunks: int | None = option(
        None,
        "Past chunks that the decoder looks at in streams, upstream's decoder_chunk_look_back. Default: 1.",
        least=0,
        most=1000,
    )
