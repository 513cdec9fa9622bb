"""NeMo: archives, and folders of transformers of its models."""

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Foreign, Seen, saved_by_transformers

CONFIG = "model_config.yaml"
TYPES = (
    *("parakeet_ctc", "parakeet_rnnt", "parakeet_tdt", "nemotron_asr_streaming", "nemotron3_5_asr"),
    *("nemotron3_diarization", "canary"),
)
UNREAD = {
    "SortformerEncLabelModel": ("Sortformer, which says who speaks when", "its transformer would be needed here"),
}
"""Models of NeMo that are not exported, by their class: what they are, and what would be needed."""


def _recognise(seen: Seen) -> Checkpoint | Foreign | None:
    if seen.is_folder:
        return saved_by_transformers(seen, TYPES, "archive", beside=("*.nemo",))
    if not seen.is_like("*.nemo"):
        return None
    config = seen.archived_settings(CONFIG)
    if config is None:
        raise BundleError(f"{seen.path} holds no {CONFIG}: it is no archive of NeMo's")
    if unread := UNREAD.get(str(config.get("target")).rpartition(".")[2]):
        return Foreign(f"an archive of NeMo: {unread[0]}", unread[1])
    return Checkpoint(what="a Conformer or FastConformer of NeMo", arguments={"archive": seen.path}, files=[seen.path])


FAMILY = Family(
    name="nemo",
    package=__package__,
    what="Export a FastConformer of NeMo (CTC, RNNT, TDT, hybrid), Canary or Nemotron-3-Diarization, waveform in.",
    options="options:NemoOptions",
    export="export:export_nemo",
    recognise=_recognise,
    reader="ready_made:reader_of",
    order=20,
    types=TYPES,
    layout="a .nemo file",
    pickles=("*.nemo", "pytorch_model*.bin"),
    int8=True,
    unit="(log) probability; vectors and logits of a transducer",
    examples=(
        "tritone export nemo model.nemo --output my-model",
        "tritone export nemo model.nemo --head ctc --output my-model",
    ),
    page="docs/models/export-nemo.md",
)
