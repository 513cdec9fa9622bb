"""Whisper: folders of transformers, CTranslate2 and sherpa-onnx, and OpenAI's own checkpoints."""

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Seen, saved_by_transformers

ENDS = ("onnx", "weights", "data")  # of graphs in sherpa-onnx's form, and of files that weights lie in beside them
BINARY = "model.bin"


def _recognise(seen: Seen) -> Checkpoint | None:
    if not seen.is_folder:
        return _of_openai(seen) if {"dims", "model_state_dict"} <= seen.words else None
    # CTranslate2 keeps the type of what it converted.
    if seen.has("config.json", BINARY) and (
        "model_type" not in seen.config or b"WhisperSpec" in seen.start(BINARY, 64)
    ):
        return Checkpoint(
            what="a Whisper model in a folder of CTranslate2, as faster-whisper reads it",
            arguments={"checkpoint": seen.path},
            files=seen.some("*.json", BINARY, "vocabulary.txt"),
            extra="",
        )
    if seen.some("*-encoder*.onnx") and seen.some("*-decoder*.onnx") and (table := seen.some("*-tokens.txt")):
        form = "" if seen.some("*-encoder.onnx") else ".int8"
        return Checkpoint(
            what="a Whisper model in a folder of sherpa-onnx",
            arguments={"checkpoint": seen.path},
            files=[*seen.some(*(f"*-{part}{form}.{end}" for part in ("encoder", "decoder") for end in ENDS)), *table],
            extra="",
        )
    return saved_by_transformers(seen, FAMILY.types, "checkpoint")


def _of_openai(seen: Seen) -> Checkpoint:
    tokens = next(iter(sorted(seen.folder.glob("*.tiktoken"))), None)
    if tokens is None:
        raise BundleError(
            f"{seen.path} is a Whisper of OpenAI's, which has no tokens: put multilingual.tiktoken or gpt2.tiktoken of "
            "the package openai-whisper (whisper/assets/) beside it, or use `tritone export whisper --tokens`"
        )
    arguments = {"checkpoint": seen.path, "tokens": tokens}
    return Checkpoint(what="a Whisper model of OpenAI's", arguments=arguments, files=[*arguments.values()])


FAMILY = Family(
    name="whisper",
    package=__package__,
    what="Export a Whisper model: a folder of transformers, or a .pt of OpenAI's; features, encoder and decoder.",
    options="options:WhisperOptions",
    export="export:export_whisper",
    recognise=_recognise,
    order=20,
    types=("whisper",),
    pickles=("*.pt", "pytorch_model*.bin"),
    weights=(BINARY,),
    int8=True,
    count="ctranslate2:count_numbers",
    unit="share of the size of what is compared",
    examples=(
        "tritone export whisper --checkpoint whisper-tiny --output my-whisper",
        "tritone export whisper --checkpoint tiny.pt --tokens multilingual.tiktoken --output my-whisper",
    ),
    page="docs/models/export-whisper.md",
)
