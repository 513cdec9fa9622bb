"""Jasper and QuartzNet: checkpoints of NVIDIA's DeepLearningExamples, and archives of NeMo's."""

from collections.abc import Mapping

from tritone.families.family import Checkpoint, Family, Seen


def _recognise(seen: Seen) -> Checkpoint | None:
    if seen.is_like("*.nemo"):
        encoder = (seen.archived_settings("model_config.yaml") or {}).get("encoder")
        if not isinstance(encoder, Mapping) or "jasper" not in encoder:
            return None
        return Checkpoint(what="a Jasper or QuartzNet of NeMo", arguments={"checkpoint": seen.path}, files=[seen.path])
    if not {"state_dict", "ema_state_dict"} <= seen.words:
        return None
    configs = [*seen.folder.glob("*.yaml"), *seen.folder.glob("*.yml")]
    if len(configs) != 1:
        return None
    return Checkpoint(
        what="a Jasper or QuartzNet of NVIDIA's DeepLearningExamples",
        arguments={"checkpoint": seen.path, "config": configs[0]},
        files=[seen.path, configs[0]],
    )


FAMILY = Family(
    name="jasper",
    package=__package__,
    what="Export a Jasper or QuartzNet of NVIDIA's DeepLearningExamples, waveform in.",
    options="options:JasperOptions",
    export="export:export_jasper",
    recognise=_recognise,
    order=10,
    pickles=("*.nemo", "*.pt"),
    examples=(
        "tritone export jasper --checkpoint jasper.pt --config jasper.yaml --output my-jasper",
        "tritone export jasper --checkpoint model.nemo --output my-jasper",
    ),
    page="docs/models/export-jasper.md",
)
