"""Resemblyzer: its voice encoder."""

from tritone.families.family import Checkpoint, Family, Seen


def _recognise(seen: Seen) -> Checkpoint | None:
    if {"model_state", "similarity_weight", "lstm.weight_hh_l0"} <= seen.words:
        return Checkpoint(
            what="the voice encoder of Resemblyzer", arguments={"checkpoint": seen.path}, files=[seen.path]
        )
    return None


FAMILY = Family(
    name="resemblyzer",
    package=__package__,
    what="Export Resemblyzer's voice encoder, waveform in: an LSTM over parts of 1.6 s, and their mean.",
    options="options:ResemblyzerOptions",
    export="export:export_resemblyzer",
    recognise=_recognise,
    unit="of the size of embeddings",
    examples=(
        "tritone export resemblyzer --checkpoint pretrained.pt --output my-speaker",
        "tritone export resemblyzer --checkpoint pretrained.pt --output my-speaker --threshold 0.75",
    ),
    page="docs/models/export-resemblyzer.md",
)
