"""pyannote.audio: its segmentation network."""

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Seen

MARK = "pyannote-segmentation"  # in names of ONNX files of it, or of their folders


def _recognise(seen: Seen) -> Checkpoint | None:
    if seen.is_folder:
        graphs = (seen.path / "model.onnx", seen.path / "onnx" / "model.onnx")  # sherpa-onnx's folder, and the hub's
        graph = next((each for each in graphs if MARK in seen.path.name and each.is_file()), None)
        return None if graph is None else _recognise(Seen(graph))
    if seen.is_like("*.onnx") and any(MARK in part for part in seen.path.parts[-4:]):
        return Checkpoint(
            what="a segmentation network of pyannote.audio in ONNX",
            arguments={"checkpoint": seen.path},
            files=[seen.path],
        )
    if "pyannote.audio" not in seen.words or "resnet.seg_1.weight" in seen.words:  # a speaker model of another toolkit
        return None
    if {"sincnet.wav_norm1d.weight", "classifier.weight"} <= seen.words:
        return Checkpoint(
            what="a segmentation network of pyannote.audio", arguments={"checkpoint": seen.path}, files=[seen.path]
        )
    raise BundleError(
        f"{seen.path} is a model of pyannote.audio that is neither a segmentation network (PyanNet) nor one of "
        "WeSpeaker's ResNets, which can be exported"
    )


FAMILY = Family(
    name="pyannote",
    package=__package__,
    what="Export a segmentation network of pyannote.audio (segmentation-3.0): who talks in each frame of a window.",
    options="options:PyannoteOptions",
    export="export:export_pyannote",
    recognise=_recognise,
    order=10,
    pickles=("pytorch_model*.bin",),
    original="the network of {checkpoint.name}",
    examples=(
        "tritone export pyannote --checkpoint pytorch_model.bin --output segmentation",
        "tritone export pyannote --checkpoint pytorch_model.bin --output segmentation --runtimes onnxruntime,torch",
    ),
    page="docs/models/export-pyannote.md",
)
