"""silero-vad: a detector of voice activity."""

from tritone.families.family import Checkpoint, Family, Seen


def _recognise(seen: Seen) -> Checkpoint | None:
    if not seen.is_like("*.onnx") or "silero_vad" not in seen.path.name:
        return None
    return Checkpoint(what="a voice activity detector of silero", arguments={"file": seen.path}, files=[seen.path])


FAMILY = Family(
    name="silero",
    package=__package__,
    what="Export the voice activity detector of silero-vad, version 5 or 6. Needs no torch.",
    options="options:SileroOptions",
    export="export:export_silero",
    recognise=_recognise,
    installed="weights:installed_file",
    order=40,
    extra="",
    unit="probability",
    original="the original",
    examples=(
        "tritone export silero --output vad",
        "tritone export silero --output vad --sample-rate 8000",
    ),
    page="docs/applications/voice-activity.md",
)
