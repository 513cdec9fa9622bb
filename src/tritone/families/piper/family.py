"""Piper: its voices."""

from tritone.families.family import Checkpoint, Family, Seen


def _recognise(seen: Seen) -> Checkpoint | None:
    config = seen.path.with_name(f"{seen.path.name}.json")
    if not seen.is_like("*.onnx") or not config.is_file():
        return None
    return Checkpoint(what="a voice of Piper", arguments={"voice": seen.path}, files=[seen.path, config])


FAMILY = Family(
    name="piper",
    package=__package__,
    what="Export a voice of Piper, which speaks texts. Needs the program espeak-ng (GPL 3), and no torch.",
    options="options:PiperOptions",
    export="export:export_piper",
    recognise=_recognise,
    order=30,
    extra="",
    unit="samples",
    original="the original",
    examples=(
        "tritone export piper en_US-joe-medium.onnx --output joe",
        "tritone export piper en_US-joe-medium.onnx --output joe --name voice",
    ),
    page="docs/models/export-piper.md",
)
