"""What a caller may choose of icefall's export."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tritone.families.export.options import RecognizerOptions
from tritone.options.fields import REQUIRED, option

Average = Literal["mean", "running"]
Head = Literal["transducer", "ctc"]
Layout = Literal["bundle", "sherpa-onnx"]

FOR_BUNDLES = frozenset(
    {
        *("stages", "start_context", "name", "tail_padding_ms", "weight_storage", "runtimes", "precisions"),
        *("check_audio", "max_drift", "force", "lenient"),
    }
)
"""Options that folders of sherpa-onnx do not have."""


@dataclass(frozen=True, kw_only=True)
class IcefallOptions(RecognizerOptions):
    """Upstream's files, and what to make of them; the rest see `ExportOptions`.

    `checkpoint` is one file, or several to be averaged; `tokens` or `bpe_model` is needed. `num_heads`: of each stack
    of a zipformer, or one number for all. Sizes of the streaming encoder are in encoder frames (40 ms), whatever the
    network; None takes upstream's defaults.
    """

    checkpoint: Path | Sequence[Path] = option(
        REQUIRED, "pretrained.pt, epoch-N.pt or checkpoint-ITER.pt; several are averaged."
    )
    tokens: Path | None = option(
        None, "tokens.txt: one 'token id' per line; or a folder that holds it, such as data/lang_char."
    )
    bpe_model: Path | None = option(None, "bpe.model of sentencepiece, in place of tokens.txt.")
    average: Average | None = option(
        None,
        "How to average: 'mean' of the weights (upstream's --avg), or 'running', the mean of all weights from "
        "the one file to the other (--use-averaged-model). Default: mean, if there are several files.",
    )
    head: Head | None = option(None, "transducer or ctc. Default: the transducer, if the model has one.")
    causal: bool | None = option(
        None,
        "Whether a conformer was trained with causal convolution; its tensors do not show it. Default: no.",
        flags=("--causal/--no-causal",),
    )
    num_heads: Sequence[int] | None = option(
        None,
        "Heads of each stack of a zipformer, such as 4,4,4,8,4,4, if it was trained with another --pos-head-dim "
        "than 4.",
    )
    start_context: Sequence[int] | None = option(
        None, "Token ids before the first token, newest last; -1 is none. Default: -1,…,-1,0."
    )
    streaming: bool = option(False, "Export a streaming encoder too.")
    chunk_size: int | None = option(
        None,
        "Encoder frames a streaming step, of 40 ms. Upstream counts a zipformer's in frames of 20 ms: its 32 is "
        "16 here. Default: 16, of a zipformer 8.",
    )
    left_context: int | None = option(None, "Past encoder frames a step may attend to, of 40 ms. Default: 64.")
    right_context: int | None = option(
        None, "Future encoder frames a step of a conformer waits for, of 40 ms. Default: 0."
    )
    layout: Layout = option(
        "bundle",
        "What to write: bundle, or sherpa-onnx, a folder that sherpa-onnx reads, for streams with --streaming and else "
        "for whole utterances.",
    )

    @property
    def checkpoints(self) -> list[Path]:
        """The files to read."""
        return [self.checkpoint] if isinstance(self.checkpoint, Path) else list(self.checkpoint)
