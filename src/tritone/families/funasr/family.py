"""FunASR: SenseVoice, Paraformers and CT-Transformer."""

from tritone.families.family import Checkpoint, Family, Seen


def _recognise(seen: Seen) -> Checkpoint | None:
    if seen.has("config.yaml", "model.pt", "am.mvn"):
        files = seen.some("config.yaml", "model.pt", "am.mvn", "*.bpe.model", "tokens.json", "seg_dict")
        return Checkpoint(what="a model of FunASR", arguments={"folder": seen.path}, files=files)
    if seen.has("config.yaml", "model.pt", "tokens.json"):
        files = seen.some("config.yaml", "model.pt", "tokens.json", "jieba_usr_dict")
        return Checkpoint(
            what="a punctuation model of FunASR", arguments={"folder": seen.path}, files=files, int8=False
        )
    return None


FAMILY = Family(
    name="funasr",
    package=__package__,
    what="Export a model of FunASR, SenseVoice-Small, a Paraformer, for streams too, or CT-Transformer.",
    options="options:FunasrOptions",
    export="export:export_funasr",
    recognise=_recognise,
    reader="ready_made:reader_of",
    layout="config.yaml with model.pt and am.mvn (FunASR)",
    pickles=("*.pt",),
    int8=True,
    examples=(
        "tritone export funasr SenseVoiceSmall --output my-model",
        "tritone export funasr paraformer-large --precision fp32,int8 --output my-model",
    ),
    page="docs/models/export-funasr.md",
)
