"""sherpa-onnx: folders of ready-made ONNX files."""

from tritone.families.family import Checkpoint, Family, Seen

ENDS = ("onnx", "weights", "data")  # of graphs, and of files that weights lie in beside them


def _recognise(seen: Seen) -> Checkpoint | None:
    def said(what: str, *patterns: str, extra: str = "") -> Checkpoint:
        return Checkpoint(what=what, arguments={"folder": seen.path}, files=seen.some(*patterns), extra=extra)

    if seen.some("encoder*.onnx", "model*.onnx", "ctc*.onnx") and seen.has("tokens.txt"):
        pair = seen.some("encoder*.onnx") and seen.some("decoder*.onnx")
        streams = pair and not seen.some("joiner*.onnx", "model*.onnx")  # whose weights are read
        extra = "export" if streams else ""
        return said("a ready-made model of sherpa-onnx", *(f"*.{end}" for end in ENDS), "tokens.txt", extra=extra)
    if seen.some("model.onnx", "model.int8.onnx") and seen.has("tokens.json"):
        return said("a punctuation model of sherpa-onnx", "model.onnx", "model.int8.onnx")
    return None


FAMILY = Family(
    name="sherpa-onnx",
    package=__package__,
    what="Import a model in sherpa-onnx's layout: transducers and CTC models, NeMo's too, Whisper, Moonshine.\n\n"
    "None but Moonshine needs torch.",
    options="options:SherpaOnnxOptions",
    export="export:export_sherpa_onnx",
    recognise=_recognise,
    order=55,
    layout="encoder.onnx with tokens.txt (sherpa-onnx)",
    unit="of the size of results",
    original="the original",
    examples=(
        "tritone export sherpa-onnx folder --output my-model",
        "tritone export sherpa-onnx folder --precision int8 --output my-model",
    ),
    page="docs/models/import-sherpa-onnx.md",
)
