"""How commands are told of recordings: files, folders, and lists of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritone.audio.files import find_audio

if TYPE_CHECKING:
    from tritone.evaluate import Utterance

Manifests = Annotated[
    list[str] | None,
    typer.Option(
        "--manifest",
        metavar="FILE[,FILE...]",
        help="Recordings listed in JSON, as NeMo or NVIDIA's LibriSpeech scripts write it; repeatable.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where relative paths of lists start (the folder of the list if not given). Without a list: all audio in "
        "this folder, with the references beside it.",
    ),
]


def manifests_of(texts: Sequence[str] | None) -> list[Path]:
    """The files that `--manifest` names: one, several with commas between them, or the option again and again.

    Commas in a name are no trouble where there is a file of the whole name.
    """
    paths: list[Path] = []
    for text in texts or ():
        parts = [text] if Path(text).exists() else [part.strip() for part in text.split(",")]
        if not all(parts):
            raise typer.BadParameter(f"--manifest {text!r} has an empty name; write FILE or FILE,FILE")
        paths += map(Path, parts)
    return paths


def files_of(paths: Sequence[str | Path]) -> list[Path]:
    """These files, and of folders among them all audio in them; raises `AudioError` if a folder has none."""
    return [file for path in map(Path, paths) for file in (find_audio(path) if path.is_dir() else [path])]


def listed(manifest: Sequence[str] | None, data_dir: Path | None) -> "list[Utterance]":
    """The recordings of manifests, or else of a folder, with or without references; errors as of `read_utterances`."""
    from tritone.evaluate import read_utterances  # who names files alone need not wait for it

    return read_utterances(manifest=manifests_of(manifest), data_dir=data_dir, need_text=False)
