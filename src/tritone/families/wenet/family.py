"""WeNet: U2 and U2++ models."""

from pathlib import Path

from tritone.errors import BundleError
from tritone.families.family import Checkpoint, Family, Seen

CONFIG, TOKENS, CMVN = "train.yaml", ("units.txt", "lang_char.txt", "words.txt", "dict.txt"), "global_cmvn"


def _recognise(seen: Seen) -> Checkpoint | None:
    if seen.is_folder:
        weights = seen.some("final.pt") or seen.some("avg*.pt") or seen.some("*.pt")
        if not weights or not seen.has(CONFIG):
            return None
        if not (tokens := seen.some(*TOKENS)):
            raise BundleError(f"{seen.path} is a model of WeNet without its tokens: {TOKENS[0]} is missing")
        return _checkpoint(weights[0], tokens[0])
    if not any(word.startswith("ctc.ctc_lo.") for word in seen.words):
        return None
    if missing := [name for name in (CONFIG, TOKENS[0]) if not (seen.folder / name).is_file()]:
        raise BundleError(f"{seen.path} is a model of WeNet; {' and '.join(missing)} must lie beside it")
    return _checkpoint(seen.path, seen.folder / TOKENS[0])


def _checkpoint(weights: Path, tokens: Path) -> Checkpoint:
    arguments = {"checkpoint": weights, "config": weights.with_name(CONFIG), "tokens": tokens}
    if (cmvn := weights.with_name(CMVN)).is_file():
        arguments["cmvn"] = cmvn
    return Checkpoint(what="a U2 or U2++ model of WeNet", arguments=arguments, files=[*arguments.values()])


FAMILY = Family(
    name="wenet",
    package=__package__,
    what="Export a WeNet U2 or U2++ model: encoder, CTC head and attention decoder, waveform in.",
    options="options:WenetOptions",
    export="export:export_wenet",
    recognise=_recognise,
    layout=f"{CONFIG} with final.pt (WeNet)",
    pickles=("*.pt",),
    int8=True,
    examples=(
        "tritone export wenet --checkpoint final.pt --config train.yaml --tokens units.txt --output my-model",
        "tritone export wenet --checkpoint final.pt --config train.yaml --tokens units.txt --output m --streaming",
    ),
    page="docs/models/export-wenet.md",
)
