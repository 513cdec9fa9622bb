"""The folder of a server's own files, and paths that survive the shell by which Triton starts processes of models.

    make_folder()               ->  a new folder of a plain path, in the first place that can have one
    plain_path(repository, folder)  ->  itself, or a link to it in the folder

Triton 2.51 starts a Python model by an unquoted shell command with paths in it: with a space in one no process comes
up and the server waits for ever, and what follows a semicolon is run.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tritone.errors import ServerSetupError
from tritone.paths import cache_folder

PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@%=:,-]*")
PREFIX = "tritone-server-"


def make_folder(places: Iterator[Path] | list[Path] | None = None) -> Path:
    """Make a folder of this user alone, whose path is plain.

    Args:
        places: where it may be, best first; None: the folder of temporary files, then those that systems have.

    Raises:
        ServerSetupError: it can be in none of them; the message says why.
    """
    reasons = []
    for place in usual_places() if places is None else places:
        if not PLAIN_PATH.fullmatch(str(place)):
            reasons.append(f"{place}: Triton's shell would take its path apart")
            continue
        try:
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
    seen = "\n".join(f"  {reason}" for reason in reasons)
    raise ServerSetupError(
        f"there is no place for the server's own files:\n{seen}\n"
        "Set TMPDIR to a folder that can be written, with a path of letters, digits and _ . - alone."
    )


def usual_places() -> Iterator[Path]:
    """Where temporary files may be, best first: where this user wants them, then where systems have them."""
    with suppress(FileNotFoundError):  # no folder of temporary files at all
        yield Path(tempfile.gettempdir())
    yield from (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
    with suppress(FileNotFoundError):  # a user without a home folder
        cache = cache_folder()
        with suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
        yield cache


def runs_programs(place: Path) -> bool:
    """Whether programs that lie there can be run: many systems forbid it for temporary files (noexec)."""
    with suppress(OSError):
        return not os.statvfs(place).f_flag & os.ST_NOEXEC
    return False


def plain_path(repository: Path, folder: Path) -> Path:
    """Give the path of a repository, or of a link to it in `folder` when its own is not plain."""
    path = repository.resolve()
    if PLAIN_PATH.fullmatch(str(path)):
        return path
    link = folder / "repository"
    link.symlink_to(path, target_is_directory=True)
    return link


def absolute_entries(value: str | None) -> list[str]:
    """The folders of a list such as PATH that do not depend on where one stands; an empty one means just that."""
    return [each for each in (value or "").split(os.pathsep) if os.path.isabs(each)]
