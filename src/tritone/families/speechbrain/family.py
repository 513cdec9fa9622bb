"""SpeechBrain: its ECAPA-TDNN, which embeds voices."""

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Seen

WEIGHTS, HYPERPARAMS = "embedding_model.ckpt", "hyperparams.yaml"
MARK = "asp.tdnn.conv.conv.weight"


def _recognise(seen: Seen) -> Checkpoint | None:
    if seen.is_folder:
        return _recognise(Seen(seen.path / WEIGHTS)) if seen.has(WEIGHTS) else None
    path, config = seen.path, seen.folder / HYPERPARAMS
    if path.name != WEIGHTS and MARK not in seen.words:
        return None
    if MARK not in seen.words:
        raise BundleError(
            f"{path} is a model of SpeechBrain's that is no ECAPA-TDNN, which alone can be exported of those that "
            "embed voices"
        )
    if not config.is_file():
        raise BundleError(f"{path} is an ECAPA-TDNN of SpeechBrain; {HYPERPARAMS} must lie beside it")
    arguments = {"checkpoint": path, "config": config}
    return Checkpoint(what="an ECAPA-TDNN of SpeechBrain", arguments=arguments, files=[*arguments.values()])


FAMILY = Family(
    name="speechbrain",
    package=__package__,
    what="Export an ECAPA-TDNN of SpeechBrain, waveform in.",
    options="options:SpeechbrainOptions",
    export="export:export_speechbrain",
    recognise=_recognise,
    layout=f"{HYPERPARAMS} with {WEIGHTS} (SpeechBrain)",
    pickles=("*.ckpt",),
    unit="of the size of embeddings",
    page="docs/models/export-speechbrain.md",
    examples=(
        "tritone export speechbrain --checkpoint spkrec-ecapa-voxceleb --output my-speaker",
        "tritone export speechbrain --checkpoint embedding_model.ckpt --output my-speaker --threshold 0.25",
    ),
)
