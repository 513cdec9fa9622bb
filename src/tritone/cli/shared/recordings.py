"""How commands are given recordings: files, folders, and lists of them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritone.audio.files import SUFFIXES, AudioBlocks, find_audio, is_pipe
from tritone.cli.shared.what import notify
from tritone.errors import AudioError
from tritone.paths import stored
from tritone.systems.stored_audio import recordings_in

if TYPE_CHECKING:
    from tritone.corpus.dataset import Utterance

STDIN = "/dev/stdin"
CHECKED_S = 2.0  # for which recordings are opened ahead; lists may have any number of them

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="Audio or video of any format and rate; channels averaged. For folders all audio in them.",
    ),
]
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


def audio_of(paths: Sequence[str]) -> list[str]:
    """These files as they are written, and of folders among them, here or in object stores, all audio in them.

    For `-` the path of standard input.

    Raises:
        TritoneError: a folder has no audio, or cannot be listed.
    """
    found: list[str] = []
    for path in paths:
        if path == "-":
            found.append(STDIN)
        elif stored(path) is not None and Path(path).suffix.lower() not in SUFFIXES:
            found += recordings_in(path)
        elif Path(path).is_dir():
            found += map(str, find_audio(Path(path)))
        else:
            found.append(path)
    return found


def listed(
    wavscp: Path | None, manifest: Sequence[str] | None, data_dir: Path | None, *, need_audio: bool = True
) -> list["Utterance"]:
    """The recordings of lists, or of a data folder, here or in an object store; see `read_utterances`."""
    from tritone.corpus.dataset import Utterance, read_utterances  # files alone need not wait for it

    if wavscp is None and not manifest and data_dir is not None and (folder := stored(data_dir)) is not None:
        addresses = recordings_in(folder)
        return [Utterance(each.removeprefix(folder.rstrip("/") + "/"), Path(each)) for each in addresses]
    return read_utterances(
        wavscp=wavscp, manifest=manifests_of(manifest), data_dir=data_dir, need_text=False, need_audio=need_audio
    )


def named(
    files: list[str] | None,
    wavscp: Path | None,
    manifest: list[str] | None,
    data_dir: Path | None,
    *,
    model: str | None,
    doing: str = "transcribe",
    need_audio: bool = True,
) -> tuple[list[str], list[str]]:
    """The paths of all recordings that a command is given, and what lists call them; files have no such names.

    Files are taken as they were written, so that messages are in those words.

    Args:
        model: WHAT runs here, for `check_audio`.
        doing: what is done with recordings, for messages.
        need_audio: whether a list that names files which are not there is an error.

    Raises:
        typer.BadParameter: there are both files and a list, two lists, none at all, or a list among the files.
        TritoneError: as of `audio_of`, `listed` and `check_audio`.
    """
    check_one_list(wavscp, manifest)
    if files:
        if manifest or wavscp is not None or data_dir is not None:
            raise typer.BadParameter(
                "--wavscp, --manifest and --data-dir stand in place of files; give one or the other"
            )
        check_no_list(files)
        paths = audio_of(files)
        check_audio(paths, model)
        return paths, []
    if wavscp is None and not manifest and data_dir is None:
        raise typer.BadParameter(
            f"name what to {doing}: audio files or folders, or --wavscp, or --manifest, or --data-dir"
        )
    utterances = listed(wavscp, manifest, data_dir, need_audio=need_audio)
    paths = [path_of(each) for each in utterances]
    check_audio(paths, model)
    return paths, [each.id for each in utterances]


def check_audio(paths: Sequence[str | Path], model: str | None, *, every: bool = False) -> None:
    """Open recordings before a model is downloaded or exported for them, and say what cannot be read.

    Nothing is opened for a bundle, which is ready itself, nor what is elsewhere or in a pipe.

    Args:
        model: WHAT runs here; None where a server has the model.
        every: whether all recordings are needed, rather than each for a result of its own.

    Raises:
        AudioError: none of them can be read, or with `every` not all.
    """
    from tritone.prepare import is_bundle

    if model is None or is_bundle(model):
        return
    until, unread = time.monotonic() + CHECKED_S, 0
    for path in paths:
        if stored(path) is not None or is_pipe(path):
            continue
        try:
            AudioBlocks(path, 16000).close()
        except AudioError as error:
            unread += 1
            if every or unread == len(paths):
                raise
            notify(error)
        if time.monotonic() > until:
            return


def path_of(utterance: "Utterance") -> str:
    """The path or the address of its audio."""
    return stored(utterance.audio) or str(utterance.audio)


def check_one_list(wavscp: Path | None, manifest: Sequence[str] | None) -> None:
    """Raises `typer.BadParameter` if there are lists of two kinds."""
    if wavscp is not None and manifest:
        raise typer.BadParameter("give either --wavscp or --manifest")


def check_no_list(files: Sequence[str]) -> None:
    """Raises `typer.BadParameter` if lists of recordings are among audio files; names the option that takes them."""
    for path in files:
        suffix = Path(path).suffix.lower()
        option = "--wavscp" if suffix == ".scp" else "--manifest" if suffix in (".json", ".jsonl") else None
        if option is not None and "://" not in path and not Path(path).exists():
            raise typer.BadParameter(
                f"there is no {path}. A list of recordings is given as {option} FILE; --json takes none, --output does"
            )
        if option is not None:
            raise typer.BadParameter(f"{path} is a list of recordings and no audio; give it as {option} {path}")
