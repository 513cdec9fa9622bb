"""What a caller may choose of Whisper's export."""

from dataclasses import dataclass
from pathlib import Path

from tritone.families.export.options import ExportOptions
from tritone.options.fields import REQUIRED, option


@dataclass(frozen=True, kw_only=True)
class WhisperOptions(ExportOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`."""

    checkpoint: Path = option(REQUIRED, "A folder of transformers, CTranslate2 or sherpa-onnx, or OpenAI's .pt file.")
    tokens: Path | None = option(
        None, "With a .pt: multilingual.tiktoken or gpt2.tiktoken, of the package openai-whisper (whisper/assets/)."
    )

    def __post_init__(self) -> None:
        if self.stages:
            raise ValueError(
                "features, encoder and decoder of Whisper are always graphs of their own; leave out --stages"
            )
        super().__post_init__()
