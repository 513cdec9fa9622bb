"""What a caller may choose of icefall's export."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tritone.families.export.options import Option, RecognizerOptions

Average = Literal["mean", "running"]
Head = Literal["transducer", "ctc"]

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

    checkpoint: Annotated[
        Path | Sequence[Path], Option("pretrained.pt, epoch-N.pt or checkpoint-ITER.pt; several are averaged.")
    ]
    tokens: Annotated[
        Path | None, Option("tokens.txt: one 'token id' per line; or a folder that holds it, such as data/lang_char.")
    ] = None
    bpe_model: Annotated[Path | None, Option("bpe.model of sentencepiece, in place of tokens.txt.")] = None
    average: Annotated[
        Average | None,
        Option(
            "How to average: 'mean' of the weights (upstream's --avg), or 'running', the mean of all weights from "
            "the one file to the other (--use-averaged-model). Default: mean, if there are several files."
        ),
    ] = None
    head: Annotated[Head | None, Option("transducer or ctc. Default: the transducer, if the model has one.")] = None
    causal: Annotated[
        bool | None,
        Option(
            "Whether a conformer was trained with causal convolution; its tensors do not show it. Default: no.",
            names=("--causal/--no-causal",),
        ),
    ] = None
    num_heads: Annotated[
        Sequence[int] | None,
        Option(
            "Heads of each stack of a zipformer, such as 4,4,4,8,4,4, if it was trained with another --pos-head-dim "
            "than 4."
        ),
    ] = None
    start_context: Annotated[
        Sequence[int] | None, Option("Token ids before the first token, newest last; -1 is none. Default: -1,…,-1,0.")
    ] = None
    streaming: Annotated[bool, Option("Export a streaming encoder too.")] = False
    chunk_size: Annotated[
        int | None,
        Option(
            "Encoder frames a streaming step, of 40 ms. Upstream counts a zipformer's in frames of 20 ms: its 32 is "
            "16 here. Default: 16, of a zipformer 8."
        ),
    ] = None
    left_context: Annotated[int | None, Option("Past encoder frames a step may attend to, of 40 ms. Default: 64.")] = (
        None
    )
    right_context: Annotated[
        int | None, Option("Future encoder frames a step of a conformer waits for, of 40 ms. Default: 0.")
    ] = None

    @property
    def checkpoints(self) -> list[Path]:
        """The files to read."""
        return [self.checkpoint] if isinstance(self.checkpoint, Path) else list(self.checkpoint)
