"""Smart Turn: classifiers of ends of turns."""

from tritone.families.family import Checkpoint, Family, Seen


def _recognise(seen: Seen) -> Checkpoint | None:
    if not seen.is_like("*.onnx") or "smart-turn" not in seen.path.name:
        return None
    return Checkpoint(what="a classifier of ends of turns", arguments={"file": seen.path}, files=[seen.path])


FAMILY = Family(
    name="smart-turn",
    package=__package__,
    what="Export Smart Turn v3, or another classifier of Whisper's features, waveform in. Needs no torch.",
    options="options:SmartTurnOptions",
    export="export:export_smart_turn",
    recognise=_recognise,
    installed="installed:installed_file",
    order=40,
    extra="",
    unit="probability",
    original="the original",
    examples=(
        "tritone export smart-turn smart-turn-v3.2-cpu.onnx --output turn",
        "tritone export smart-turn smart-turn-v3.2-gpu.onnx --output turn --name turns",
    ),
    page="docs/applications/turns.md",
)
