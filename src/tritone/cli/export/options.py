"""Options that several `tritone export` commands have, each with its name and its help; a command adds the default."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Output: TypeAlias = Annotated[Path, typer.Option(help="Folder of the bundle. An older bundle there is replaced.")]
Name: TypeAlias = Annotated[str | None, typer.Option(help="Name of the model. Default: the output folder's name.")]
Stages: TypeAlias = Annotated[
    bool, typer.Option("--stages", help="Export features and network apart too, to be served as models of their own.")
]
TailPadding: TypeAlias = Annotated[float, typer.Option(min=0, help="Silence that serving appends to every utterance.")]
TailPaddingForWords: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0, help="Silence that serving appends to every utterance, for audio cut right at the end of a word."
    ),
]
Weights: TypeAlias = Annotated[
    str, typer.Option(help="Storage of the weights: fp32, fp16 or int8. They are widened to fp32 when loaded.")
]
Runtimes: TypeAlias = Annotated[
    str,
    typer.Option(
        help="What to write graphs for: onnxruntime, torch, torchscript, tensorrt or several; the first is the default."
    ),
]
PrecisionWithInt8: TypeAlias = Annotated[
    str,
    typer.Option(
        help="What the graphs compute in, one or several: fp32, fp16, int8 (onnxruntime alone), bf16 (torch and "
        "torchscript)."
    ),
]
Precision: TypeAlias = Annotated[
    str, typer.Option(help="What the graphs compute in, one or several: fp32, fp16, bf16 (torch and torchscript).")
]
CheckAudio: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Folder of audio files or wav.scp to check graphs with that do not compute in fp32. Default: the clips of "
        "the demo."
    ),
]
MaxDrift: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0, help="Largest share of probability, 0 to 1, that such a graph may move per frame. Default: 0.05."
    ),
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Write such a graph even if it moves more.")]
