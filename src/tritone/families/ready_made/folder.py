"""Which files of a folder are a model, and in which precisions.

    encoder-epoch-99-avg-1.onnx, encoder-epoch-99-avg-1.int8.onnx, decoder-..., joiner-..., tokens.txt
        ->  ModelFiles(kind "transducer", {precision: {part: path}}, tokens)

A folder may hold several models, distinguished by what their names have in common ("-epoch-99-avg-1-chunk-16-left-64").
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tritone.bundle.manifest import Precision
from tritone.errors import ExportError

Part = Literal["encoder", "decoder", "joiner", "model"]

NAME = re.compile(r"(encoder|decoder|joiner|model|ctc)((?:[-_.].*?)??)(?:\.(int8|fp16))?\.onnx")
TRANSDUCER: tuple[Part, ...] = ("encoder", "decoder", "joiner")
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
"""What files may compute in, the best first."""
MAX_FILES = 10_000
KNOWN = (
    "encoder*.onnx, decoder*.onnx and joiner*.onnx of a transducer, or model*.onnx or ctc*.onnx of a CTC model; "
    "suffixes .int8 and .fp16 name precisions"
)


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model.

    `graphs`: for each precision, the best first, a file for every part. A part that was not written in a precision is
    there in another one. Of punctuation models it is empty.
    """

    kind: Literal["transducer", "ctc", "punctuation"]
    variant: str
    graphs: Mapping[Precision, Mapping[Part, Path]]
    tokens: Path


def find_model(
    folder: Path,
    *,
    variant: str | None = None,
    precisions: Sequence[Precision] | None = None,
    tokens: Path | None = None,
) -> ModelFiles:
    """Find the model in a folder.

    Args:
        folder: is not searched below its first level.
        variant: what the names of the wanted model's files have after `encoder`, `model` ...; needed where there are
            several.
        precisions: those wanted; by default all in which there is an encoder.
        tokens: the token table, if it is not the folder's tokens.txt.

    Raises:
        ExportError: there is no model, more than one, or none in a precision that was asked for.
        ValueError: a precision is unknown or given twice.
    """
    if precisions is not None and (
        not precisions or len(set(precisions)) < len(precisions) or not set(precisions) <= set(get_args(Precision))
    ):
        raise ValueError(
            f"expected each precision once, of {', '.join(PRECISIONS)}; got {', '.join(precisions) or 'none'}"
        )
    found = by_variant(folder)
    complete = {name: parts for name, parts in found.items() if "model" in parts or set(TRANSDUCER) <= set(parts)}
    chosen = _choose(folder, found, complete, variant)
    parts = complete[chosen]
    kind: Literal["transducer", "ctc"] = "ctc" if "model" in parts else "transducer"
    needed: tuple[Part, ...] = ("model",) if kind == "ctc" else TRANSDUCER
    held = [each for each in PRECISIONS if each in parts[needed[0]]]
    if missing := [each for each in precisions or () if each not in held]:
        raise ExportError(
            f"{folder} has no {needed[0]} in {', '.join(missing)}, only in {', '.join(held)}. Choose of these with "
            "--precision."
        )
    graphs = {
        precision: {part: parts[part].get(precision) or best(parts[part]) for part in needed}
        for precision in precisions or held
    }
    table = tokens or folder / "tokens.txt"
    if not table.is_file():
        raise ExportError(f"there is no token table {table}; name the model's tokens.txt with --tokens")
    return ModelFiles(kind, chosen, graphs, table)


def encoder_of_pair(folder: Path) -> Path | None:
    """The encoder of the first model that has a decoder and no joiner, with its weights in files of their own or not;
    None if there is no such model. Raises `ExportError` if the folder cannot be read."""
    pairs = (parts for parts in by_variant(folder).values() if set(parts) == {"encoder", "decoder"})
    return next((best(parts["encoder"]) for parts in pairs), None)


Parts = dict[Part, dict[Precision, Path]]


def by_variant(folder: Path) -> dict[str, Parts]:
    found: dict[str, Parts] = {}
    try:
        for count, path in enumerate(folder.iterdir()):
            if count == MAX_FILES:
                raise ExportError(f"{folder} has more than {MAX_FILES} files; it is not the folder of a model")
            match = NAME.fullmatch(path.name)
            if match and path.is_file():
                part: Part = "model" if match[1] in ("model", "ctc") else match[1]  # type: ignore[assignment]
                precision: Precision = match[3] or "fp32"  # type: ignore[assignment]
                found.setdefault(match[2], {}).setdefault(part, {})[precision] = path
    except OSError as error:
        raise ExportError(f"cannot read the folder {folder}: {error.strerror}") from error
    return dict(sorted(found.items()))


def _choose(folder: Path, found: Mapping[str, Parts], complete: Mapping[str, Parts], variant: str | None) -> str:
    if not found:
        raise ExportError(f"{folder} holds no model: it needs {KNOWN}")
    if variant is not None:
        if variant not in complete:
            raise ExportError(f"{folder} has no model {variant!r}; it has {listed(complete or found)}")
        return variant
    if not complete:
        lacks = [
            f"{name!r} has {', '.join(parts)} and no {', '.join(part for part in TRANSDUCER if part not in parts)}"
            for name, parts in found.items()
        ]
        raise ExportError(
            f"{folder} holds no whole model that can be imported: {'; '.join(lacks[:5])}. Transducers have all three; "
            "models with an attention decoder, such as Canary, cannot be imported, Whisper's files are called "
            "NAME-encoder.onnx, NAME-decoder.onnx and NAME-tokens.txt, and Moonshine's preprocess.onnx, encode.onnx, "
            "uncached_decode.onnx and cached_decode.onnx."
        )
    if len(complete) > 1:
        raise ExportError(f"{folder} holds several models, choose one with --variant: {listed(complete)}")
    return next(iter(complete))


def listed(variants: Mapping[str, object]) -> str:
    return ", ".join(map(repr, list(variants)[:10]))


def best(files: Mapping[Precision, Path]) -> Path:
    return next(files[precision] for precision in PRECISIONS if precision in files)
