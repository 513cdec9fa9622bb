"""WeSpeaker: ResNets, ECAPA-TDNN and CAM++, also in files of pyannote.audio and 3D-Speaker, and ONNX files of any."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Seen

WEIGHTS, CONFIG = "avg_model.pt", "config.yaml"
CAMPPLUS = "campplus*.bin"  # of 3D-Speaker


def _recognise(seen: Seen) -> Checkpoint | None:
    if seen.is_folder:
        weights = seen.some(WEIGHTS, "model_*.pt")
        return _checkpoint(weights[0]) if weights and seen.has(CONFIG) else None
    path, words, has_config = seen.path, seen.words, (seen.folder / CONFIG).is_file()
    if {"pyannote.audio", "resnet.seg_1.weight"} <= words:
        return _checkpoint(path, "a speaker model of pyannote.audio, a ResNet of WeSpeaker")
    if "xvector.tdnn.linear.weight" in words and "projection.weight" not in words:
        is_other = seen.is_like(CAMPPLUS) or not has_config
        return _checkpoint(path, "a CAM++ of 3D-Speaker") if is_other else _checkpoint(path)
    if not any(word.startswith(("projection.weight", "seg_1.")) for word in words):
        return None
    if not has_config:
        raise BundleError(f"{path} is a speaker model of WeSpeaker; {CONFIG} must lie beside it")
    return _checkpoint(path)


def _checkpoint(weights: Path, alone: str = "") -> Checkpoint:
    """`alone`: what it is, if it needs no config."""
    arguments = {"checkpoint": weights} if alone else {"checkpoint": weights, "config": weights.with_name(CONFIG)}
    return Checkpoint(what=alone or "a speaker model of WeSpeaker", arguments=arguments, files=[*arguments.values()])


def _export(given: Mapping[str, Any]) -> str:
    return "export:export_wespeaker" if given.get("onnx") is None else "onnx_model:export_onnx_model"


FAMILY = Family(
    name="wespeaker",
    package=__package__,
    what="Export a ResNet, ECAPA-TDNN or CAM++, waveform in; or import the ONNX file of any model of WeSpeaker.",
    options="options:WespeakerOptions",
    export=_export,
    recognise=_recognise,
    layout=f"{CONFIG} with {WEIGHTS} (WeSpeaker)",
    pickles=("*.pt", CAMPPLUS, "pytorch_model*.bin"),
    unit="of the size of embeddings",
    examples=(
        "tritone export wespeaker --model voxceleb_resnet34 --output my-speaker",
        "tritone export wespeaker --checkpoint avg_model.pt --config config.yaml --output my-speaker",
    ),
    page="docs/models/export-wespeaker.md",
)
