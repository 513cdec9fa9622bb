"""How commands are told of recordings: files, folders, and lists of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tritone.audio.files import find_audio

WavScp = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Recordings in Kaldi's wav.scp: a line 'id path' for each; relative paths start from its folder.",
    ),
]
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


def check_one_list(wavscp: Path | None, manifest: Sequence[str] | None) -> None:
    """Raises `typer.BadParameter` if there are lists of two kinds."""
    if wavscp is not None and manifest:
        raise typer.BadParameter("give either --wavscp or --manifest")


def check_no_list(files: Sequence[str]) -> None:
    """Raises `typer.BadParameter` if lists of recordings are among audio files; names the option that takes them."""
    for path in files:
        suffix = Path(path).suffix.lower()
        option = "--wavscp" if suffix == ".scp" else "--manifest" if suffix in (".json", ".jsonl") else None
        if option is not None:
            raise typer.BadParameter(f"{path} is a list of recordings and no audio; give it as {option} {path}")
