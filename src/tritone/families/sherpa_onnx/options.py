"""What a caller may choose of the import of sherpa-onnx's folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritone.bundle.manifest import Precision
from tritone.families.export.options import BundleOptions, RecognizerOptions
from tritone.options.fields import REQUIRED, described, option

_TAIL = described(RecognizerOptions)["tail_padding_ms"]


@dataclass(frozen=True, kw_only=True)
class SherpaOnnxOptions(BundleOptions):
    """The folder, and which of its models; the rest see `BundleOptions`."""

    folder: Path = option(
        REQUIRED,
        "Folder with encoder*.onnx, decoder*.onnx, joiner*.onnx, or model*.onnx, and tokens.txt, or a Whisper or "
        "Moonshine",
        argument=True,
        metavar="DIR",
    )
    variant: str | None = option(
        None,
        "Which model, where the folder holds several: what its files' names have in common, such as "
        "-epoch-99-avg-1-chunk-16-left-64.",
    )
    precisions: Sequence[Precision] | None = option(
        None,
        "Files to take, one or several of fp32, fp16, int8; the first is the default. Default: all.",
        flags=("--precision",),
    )
    tokens: Path | None = option(None, "The token table. Default: tokens.txt of the folder.")
    tail_padding_ms: float = option(_TAIL.default, _TAIL.help, least=_TAIL.least)
