"""Moonshine: folders of transformers and of sherpa-onnx."""

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Seen, saved_by_transformers

TYPES = ("moonshine",)
MERGED = ("encoder_model", "decoder_model_merged")  # the two files of later models


def _recognise(seen: Seen) -> Checkpoint | None:
    if seen.some("uncached_decode*.onnx") and seen.has("tokens.txt"):
        return Checkpoint(
            what="a Moonshine in a folder of sherpa-onnx",
            arguments={"folder": seen.path},
            files=seen.some("preprocess*.onnx", "*code.onnx", "*code.int8.onnx", "tokens.txt"),
            int8=False,
        )
    if not seen.has("config.json") and seen.some(f"{MERGED[0]}.onnx", f"{MERGED[0]}.ort"):
        raise BundleError(
            f"{seen.path} has {' and '.join(MERGED)}, the two files of later Moonshine models, which cannot be "
            "imported; take the model's folder of transformers (UsefulSensors on Hugging Face), which can be"
        )
    return saved_by_transformers(seen, TYPES, "folder")


FAMILY = Family(
    name="moonshine",
    package=__package__,
    what="Export a Moonshine: a folder of transformers, or the four graphs of sherpa-onnx; encoder and decoder.",
    options="options:MoonshineOptions",
    export="export:export_moonshine",
    recognise=_recognise,
    order=20,
    types=TYPES,
    pickles=("pytorch_model*.bin",),
    int8=True,
    unit="share of the size of what is compared",
    examples=(
        "tritone export moonshine moonshine-tiny --output my-model",
        "tritone export moonshine moonshine-tiny --precision fp32,int8 --output my-model",
    ),
    page="docs/models/export-attending.md",
)
