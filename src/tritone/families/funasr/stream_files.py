"""The files of a Paraformer for streams in a folder of sherpa-onnx."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tritone.errors import ExportError
from tritone.families.onnx.source import read_metadata
from tritone.families.ready_made.folder import best, by_variant, listed

STREAM_KEY = "decoder_num_blocks"  # in the metadata of a Paraformer for streams


@dataclass(frozen=True)
class StreamFiles:
    """The files of a Paraformer for streams. `int8`: whether matrices are stored so, in one of them at least."""

    encoder: Path
    decoder: Path
    tokens: Path

    @property
    def int8(self) -> bool:
        return any(".int8" in path.name for path in (self.encoder, self.decoder))


def find_streams(folder: Path) -> StreamFiles | None:
    """The files of a Paraformer for streams in a folder, those in float32 before those in int8; None if it holds none.

    Raises:
        ExportError: there are several, the tokens are missing, or a file is damaged.
    """
    found = {
        name: (best(parts["encoder"]), best(parts["decoder"]))
        for name, parts in by_variant(folder).items()
        if {"encoder", "decoder"} <= set(parts) and not {"joiner", "model"} & set(parts)
    }
    found = {name: each for name, each in found.items() if STREAM_KEY in read_metadata(each[0])}
    if not found:
        return None
    if len(found) > 1:
        raise ExportError(f"{folder} holds several Paraformers, {listed(found)}: put each in a folder of its own")
    [(encoder, decoder)] = found.values()
    if not (tokens := folder / "tokens.txt").is_file():
        raise ExportError(f"{folder} holds a Paraformer of sherpa-onnx without tokens.txt")
    return StreamFiles(encoder, decoder, tokens)


def is_for_streams(metadata: Mapping[str, str]) -> bool:
    """Is the encoder of a pair of encoder and decoder with this metadata one of these?"""
    return STREAM_KEY in metadata
