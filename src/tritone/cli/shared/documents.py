"""The documents that commands write: in which format, and whether to standard output, to a file, or to one for each."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from tritone.cli.shared.outputs import check_outputs
from tritone.formats import FORMATS, write
from tritone.paths import local, stored

if TYPE_CHECKING:
    from typing import Self

    from tritone.formats.documents import Document

FormatName = Literal["text", "json", "srt", "vtt", "ctm", "textgrid", "rttm", "audacity"]
HELD = "; ".join(f"{name}: {each.help}" for name, each in FORMATS.items() if name != "text")

OutputFormat = Annotated[FormatName, typer.Option("--format", help=f"What to write. {HELD}.")]
Output = Annotated[
    str | None,  # a path would lose the / at its end
    typer.Option(
        metavar="PATH",
        help="Write there and not to standard output: a file, or a folder (DIR/) in which each recording gets a file.",
    ),
]


class Documents:
    """Where the documents of recordings go. To be closed; may be used in a `with` statement."""

    def __init__(self, format: FormatName, output: str | None, paths: Sequence[str], ids: Sequence[str] = ()) -> None:
        """Take the recordings.

        Args:
            output: a file; a folder, which exists, ends with a slash, or is needed; None for standard output.
            paths: of the recordings, or their addresses.
            ids: what lists call them; without, they are called as their files are.

        Raises:
            typer.BadParameter: the format cannot hold so many recordings, or the output cannot be written.
        """
        self.data: TextIO | None = None
        """Where results go without `output`; None is stdout."""
        self.format = format
        self.names = list(ids) or names_of(paths)
        self._paths = paths
        self._file = None if output is None else local(output)
        self._folder: Path | None = None
        self._open: TextIO | None = None
        one_each = len(paths) > 1 and not (FORMATS[format].named or format == "text")
        if output is None or self._file is None:
            if one_each:
                raise typer.BadParameter(
                    f"--format {format} holds one recording and there are {len(paths)}: add --output DIR, in which "
                    "each gets a file"
                )
            return
        needed = one_each and self._file.suffix != FORMATS[format].suffix
        if self._file.is_dir() or output.endswith(os.sep) or needed:
            self._check_folder(self._file)
            self._folder = self._file
            return
        if one_each:
            raise typer.BadParameter(
                f"--output {output} is a file, --format {format} holds one recording and there are {len(paths)}; name "
                "a folder"
            )
        check_outputs([self._file], [Path(path) for path in paths if stored(path) is None])

    @property
    def one_each(self) -> bool:
        """Whether each recording has a file of its own."""
        return self._folder is not None

    def text(self, index: int, document: "Document", *, named: bool = False) -> str:
        """The document of a recording as text; raises `InputError` if the format cannot hold it.

        `named`: have the recording's path before each line, in the format "text" where one file is for all.
        """
        text = write(self.format, document, recording=self.names[index])
        if not named or self.format != "text" or self.one_each:
            return text
        return "".join(f"{self._paths[index]}\t{line}" for line in text.splitlines(keepends=True))

    def put(self, index: int, text: str) -> None:
        """Write a recording's document, of which `text` made the text."""
        if self._folder is not None:
            path = self._path(index, self._folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        elif self._file is not None:
            if self._open is None:
                self._open = self._file.open("w", encoding="utf-8", newline="\n")
            self._open.write(text)
            self._open.flush()
        else:
            typer.echo(text, nl=False, file=self.data)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _path(self, index: int, folder: Path) -> Path:
        return folder / f"{self.names[index]}{FORMATS[self.format].suffix}"

    def _check_folder(self, folder: Path) -> None:
        seen: dict[str, int] = {}
        for index, name in enumerate(self.names):
            parts = PurePath(name).parts
            if not parts or ".." in parts or PurePath(name).is_absolute() or "\0" in name:
                raise typer.BadParameter(f"the recording {name!r} names no file inside of --output {folder}; rename it")
            path = str(self._path(index, folder))
            if path in seen:
                raise typer.BadParameter(f"the recording {name!r} is there twice, and both would be written to {path}")
            seen[path] = index
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise typer.BadParameter(f"--output {folder} cannot be written: no permission, or a read-only file system")


def names_of(paths: Sequence[str]) -> list[str]:
    """What recordings are called: as their files, without suffix; with folders and suffix where names come twice."""
    names = [PurePath(path).stem for path in paths]
    if len(set(names)) == len(names):
        return names
    whole = [PurePath(path if stored(path) else os.path.abspath(path)) for path in paths]
    if all(stored(path) is None for path in paths):
        common = os.path.commonpath([path.parent for path in whole])
        whole = [path.relative_to(common) for path in whole]
    else:
        whole = [PurePath(*(part for part in path.parts if part != path.anchor)) for path in whole]
    names = [path.with_suffix("").as_posix() for path in whole]
    return names if len(set(names)) == len(names) else [path.as_posix() for path in whole]
