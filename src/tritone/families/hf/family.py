"""transformers: models with CTC whose encoder takes waveforms."""

from tritone.families.family import Checkpoint, Family, Seen, saved_by_transformers

TYPES = (
    *("wav2vec2", "hubert", "wavlm", "data2vec-audio", "unispeech", "unispeech-sat"),
    *("wav2vec2-conformer", "wav2vec2-bert", "omniasr_ctc", "lasr_ctc", "granite_speech5_ctc"),
)


def _recognise(seen: Seen) -> Checkpoint | None:
    return saved_by_transformers(seen, TYPES, "folder")


FAMILY = Family(
    name="hf",
    package=__package__,
    what="Export a model of transformers: wav2vec2, HuBERT, WavLM, W2v-BERT, Omnilingual ASR, LASR, Granite.",
    options="options:HfOptions",
    export="export:export_hf",
    recognise=_recognise,
    order=20,
    types=TYPES,
    layout="config.json with model.safetensors (transformers) or model.bin (CTranslate2)",
    pickles=("pytorch_model*.bin",),
    int8=True,
    examples=(
        "tritone export hf wav2vec2-base-960h --output my-model",
        "tritone export hf mms-1b-all --language deu --output my-mms",
    ),
    page="docs/models/export-hf.md",
)
