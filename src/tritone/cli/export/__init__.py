"""`tritone export FAMILY`: a trained checkpoint, or any graph, becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.export.generic import onnx
from tritone.cli.export.options import Values, flags_given, with_options
from tritone.cli.export.piper import piper
from tritone.cli.export.python import python
from tritone.cli.export.run import export, function_of, progress, usage_errors
from tritone.cli.export.sherpa_onnx import sherpa_onnx
from tritone.cli.export.silero import silero
from tritone.cli.export.smart_turn import smart_turn
from tritone.cli.export.tensorrt import tensorrt
from tritone.cli.export.torch import torch_export, torchscript
from tritone.cli.export.wespeaker import wespeaker
from tritone.cli.shared.help import App
from tritone.families.funasr.options import FunasrOptions
from tritone.families.hf.options import HfOptions
from tritone.families.icefall.options import FOR_BUNDLES, IcefallOptions
from tritone.families.jasper.options import JasperOptions
from tritone.families.nemo.options import NemoOptions
from tritone.families.pyannote.options import PyannoteOptions
from tritone.families.resemblyzer.options import ResemblyzerOptions
from tritone.families.speechbrain.options import SpeechbrainOptions
from tritone.families.wenet.options import WenetOptions
from tritone.families.whisper.options import WhisperOptions

app = App(no_args_is_help=True)


@app.callback()
def commands() -> None:
    """Turn a trained checkpoint, or any model, into a bundle."""


@app.command()
@with_options(FunasrOptions)
def funasr(
    values: Values,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of FunASR: config.yaml, model.pt, am.mvn and the tokens.")
    ],
) -> None:
    """Export a model of FunASR, SenseVoice-Small, a Paraformer, for streams too, or CT-Transformer."""
    export("funasr", {**values, "folder": folder}, "log probability")


@app.command()
@with_options(HfOptions)
def hf(
    values: Values,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of transformers: config.json, model.safetensors, vocab.json, …"),
    ],
) -> None:
    """Export a model of transformers: wav2vec2, HuBERT, WavLM, W2v-BERT, Omnilingual ASR, LASR, Granite, Moonshine."""
    export("hf", {**values, "folder": folder}, "log probability")


@app.command()
@with_options(IcefallOptions)
def icefall(
    values: Values,
    layout: Annotated[
        str,
        typer.Option(
            help="What to write: bundle, or sherpa-onnx, a folder that sherpa-onnx reads, for streams with --streaming "
            "and else for whole utterances."
        ),
    ] = "bundle",
) -> None:
    """Export a conformer (pruned_transducer_stateless 2 to 5) or zipformer2, waveform in; tensors have its sizes."""
    if layout == "bundle":
        export("icefall", values, "log probability; vectors and logits of a transducer")
        return
    if layout != "sherpa-onnx":
        raise typer.BadParameter(f"{layout!r} is not bundle or sherpa-onnx", param_hint="--layout")
    if unfit := flags_given(IcefallOptions, values, FOR_BUNDLES):
        raise typer.BadParameter(f"{', '.join(unfit)} is for bundles, not for folders of sherpa-onnx")
    write = function_of("icefall.sherpa_layout", "export_sherpa_layout")
    with usage_errors():
        notes = write(**{name: value for name, value in values.items() if name not in FOR_BUNDLES}, progress=progress)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(values["output"])


@app.command()
@with_options(JasperOptions)
def jasper(values: Values) -> None:
    """Export a Jasper or QuartzNet of NVIDIA's DeepLearningExamples, waveform in."""
    export("jasper", values, "log probability")


@app.command()
@with_options(NemoOptions)
def nemo(
    values: Values,
    archive: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.nemo|FOLDER", help="NeMo's archive, or a folder of transformers (Parakeet, Nemotron, Canary)."
        ),
    ],
) -> None:
    """Export a FastConformer of NeMo (CTC, RNNT, TDT, hybrid), Canary or Nemotron-3-Diarization, waveform in."""
    export("nemo", values | {"archive": archive}, "(log) probability; vectors and logits of a transducer")


app.command()(onnx)
app.command()(piper)
app.command()(python)


@app.command()
@with_options(PyannoteOptions)
def pyannote(values: Values) -> None:
    """Export a segmentation network of pyannote.audio (segmentation-3.0): who talks in each frame of a window."""
    export("pyannote", values, "log probability", f"the network of {values['checkpoint'].name}")


@app.command()
@with_options(ResemblyzerOptions)
def resemblyzer(values: Values) -> None:
    """Export Resemblyzer's voice encoder, waveform in: an LSTM over parts of 1.6 s, and their mean."""
    export("resemblyzer", values, "of the size of embeddings")


app.command("torch-export")(torch_export)
app.command()(torchscript)
app.command("sherpa-onnx")(sherpa_onnx)
app.command()(silero)
app.command()(smart_turn)


@app.command()
@with_options(SpeechbrainOptions)
def speechbrain(values: Values) -> None:
    """Export an ECAPA-TDNN of SpeechBrain, waveform in."""
    export("speechbrain", values, "of the size of embeddings")


app.command()(tensorrt)
app.command()(wespeaker)


@app.command()
@with_options(WenetOptions)
def wenet(values: Values) -> None:
    """Export a WeNet U2 or U2++ model: encoder, CTC head and attention decoder, waveform in."""
    export("wenet", values, "log probability")


@app.command()
@with_options(WhisperOptions)
def whisper(values: Values) -> None:
    """Export a Whisper model: a folder of transformers, or a .pt of OpenAI's; features, encoder and decoder."""
    export("whisper", values, "share of the size of what is compared")
