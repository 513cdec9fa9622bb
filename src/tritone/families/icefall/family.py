"""icefall: pruned stateless transducers and CTC models with a conformer or zipformer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Seen

BEST = "pretrained.pt"


def _recognise(seen: Seen) -> Checkpoint | None:
    if not seen.is_folder:
        is_one = any(word.startswith(("joiner.", "encoder_embed.")) for word in seen.words)
        return _checkpoint(seen.path) if is_one else None
    files = seen.some(BEST, "jit_script*.pt", "epoch-*.pt", "checkpoint-*.pt")
    if not files:
        return None
    chosen = files[0] if files[0].name == BEST else files[-1]
    # Others call theirs so, too.
    return None if chosen.name == BEST and _tokens(chosen) is None else _checkpoint(chosen)


def _tokens(path: Path) -> tuple[str, Path] | None:
    """The file of a model's tokens, and the option that takes it."""
    places = [path.parent, path.parent.parent / "data" / "lang_bpe_500", path.parent.parent]
    tables = [("tokens", "tokens.txt"), ("bpe_model", "bpe.model")]
    return next(((name, place / file) for place in places for name, file in tables if (place / file).is_file()), None)


def _checkpoint(path: Path) -> Checkpoint:
    if (table := _tokens(path)) is None:
        raise BundleError(f"{path} is a model of icefall; tokens.txt or bpe.model must lie beside it")
    option, tokens = table
    return Checkpoint(
        what="a conformer or zipformer of icefall",
        arguments={"checkpoint": path, option: tokens},
        files=[path, tokens],
    )


def _export(given: Mapping[str, Any]) -> str:
    return (
        "export:export_icefall" if given.get("layout", "bundle") == "bundle" else "sherpa_layout:export_sherpa_layout"
    )


FAMILY = Family(
    name="icefall",
    package=__package__,
    what="Export a conformer (pruned_transducer_stateless 2 to 5) or zipformer2, waveform in; tensors have its sizes.",
    options="options:IcefallOptions",
    export=_export,
    recognise=_recognise,
    order=60,
    layout=f"{BEST} with tokens.txt (icefall)",
    pickles=("*.pt",),
    int8=True,
    unit="log probability; vectors and logits of a transducer",
    first=("--checkpoint", "--tokens", "--output", "--streaming", "--precision"),
    examples=(
        "tritone export icefall --checkpoint pretrained.pt --tokens tokens.txt --output my-model",
        "tritone export icefall --checkpoint pretrained.pt --tokens tokens.txt --streaming --causal --output my-model",
    ),
    page="docs/models/export-icefall.md",
)
