"""Paths of files and folders on this machine. Bundles and repositories elsewhere (s3://...) are those of `storage/`."""

import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import IO, Any, BinaryIO

from tritone.errors import InputError, OperatorError, TritoneError
from tritone.later import later

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
ADVICE = {
    errno.ENOSPC: "Free space on that disk (df -h shows how much there is), or choose a place on another one.",
    errno.EDQUOT: "Free some of what you keep on that disk, or choose a place on another one.",
    errno.EFBIG: "Choose a place on another disk.",
    errno.EROFS: "Choose a place that can be written.",
    errno.ENAMETOOLONG: "A name has at most 255 bytes, a path 4095. Choose a shorter one.",
}
"""What to do about errors of the system that any file may cause."""
CACHE = "TRITONE_CACHE"  # environment variable: the cache folder, where it is not the user's usual one
known = later("schemes")  # of storage, which imports this module; only paths with a scheme need them
OPEN_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
COLLAPSED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # what pathlib makes of it
# A copy of what a client sent, by the names of `tempfile`.
_RECORDING = re.compile(r"(['\"]?)(?:/[^\s/'\"]+)+/tritone-[a-z0-9_]{8}(?![\w/.-])\1")
# Paths with folders in them; parts of addresses, media types and the routes of HTTP are none.
_START = r"(?<![\w/.~%+-])(?:file://|~|\.{1,2})?(?!/(?:v\d+|health|metrics|page)\b)/(?!/)"
_QUOTED = re.compile(rf"""(?P<quote>['"`]){_START}[^'"`\n]{{0,999}}?/(?P<name>[^/'"`\n]+)/*(?P=quote)""")
_BARE = re.compile(rf"""{_START}(?:[^\s/'"`,;:()<>\[\]{{}}]+/)+(?P<name>[^\s/'"`,;:()<>\[\]{{}}]*)""")
_TOP = re.compile(rf"{_START}(?P<name>tmp|var|home|root|usr|opt|srv|mnt|media|etc|dev|proc|run)\b")
_RELATIVE = re.compile(r"(?<![\w/.:~%+-])(?:[\w.+-]+/){2,}(?P<name>[\w+-][\w.+-]*\.[A-Za-z]\w*)")


def without_paths(message: str) -> str:
    """An error's message for those beyond the server: of files of the server their names, and not where they lie."""
    message = _RECORDING.sub("the audio data", message.replace(f"{tempfile.gettempdir()}/", "/tmp/"))
    message = _QUOTED.sub(lambda found: f"{found['quote']}{found['name']}{found['quote']}", message)
    for pattern in (_BARE, _TOP, _RELATIVE):
        message = pattern.sub(lambda found: found["name"] or found[0].rstrip("/").rpartition("/")[2], message)
    return message


def local(path: str | os.PathLike[str], error: type[TritoneError] = InputError) -> Path:
    """The path, if it is one of this machine.

    Raises:
        TritoneError: it has a scheme, such as s3://bucket/folder; of the class `error`.
    """
    text = os.fspath(path)
    found = ADDRESS.match(text) or COLLAPSED.match(text)
    if found is None or os.path.isdir(f"{found[1]}:"):  # a folder may be called so
        return Path(path)
    raise error(not_supported(text, found[1]))


def stored(path: str | os.PathLike[str]) -> str | None:
    """The address of a file in a store that holds any files, such as s3://bucket/a.wav; None for all other paths.

    `pathlib` makes one slash of the two, which are put back.
    """
    text = os.fspath(path)
    found = COLLAPSED.match(text)
    if found is None or os.path.isdir(f"{found[1]}:"):
        return None
    scheme = known.scheme(found[1])
    return f"{scheme.name}://{text[found.end() :].lstrip('/')}" if scheme is not None and scheme.files else None


def has_scheme(path: str | os.PathLike[str]) -> bool:
    """Whether it may be an address, such as s3://bucket/folder, and is no path of this machine."""
    found = COLLAPSED.match(os.fspath(path))
    return found is not None and not os.path.isdir(f"{found[1]}:")  # a folder may be called so


def cache_folder() -> Path:
    """Tritone's cache folder of this user: `$TRITONE_CACHE`, or `tritone` in `$XDG_CACHE_HOME` or `~/.cache`.

    Raises:
        FileNotFoundError: none of these is set, and the user has no home folder, as in some containers.
    """
    if own := os.environ.get(CACHE):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tritone"
    try:
        return Path.home() / ".cache" / "tritone"
    except RuntimeError as error:
        raise FileNotFoundError(
            errno.ENOENT, f"this user has no home folder; set {CACHE} to a folder for caches"
        ) from error


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A file opened for reading; of pipes only those that this process has open, as a shell's `<(...)` is.

    Raises:
        OSError: it cannot be opened, or is another pipe, which might never have a writer, or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would wait for a writer
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) and os.fspath(path).startswith(OPEN_PIPES):
        os.set_blocking(descriptor, True)
    elif not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, "it is not a file (a pipe or a device?)", os.fspath(path))
    return os.fdopen(descriptor, "rb")


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain_text(content: bytes) -> str:
    """The text of a table or list as people's editors save it: UTF-8; a byte order mark and CRLF are taken off.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    return content.decode("utf-8-sig").replace("\r\n", "\n")


def lock_alone(file: "int | IO[Any]") -> bool:
    """Lock an open file for this process until it is closed; False if another process has it.

    Raises:
        OSError: its file system has no locks, as of some network folders.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def explained(error: OSError, doing: str) -> OperatorError:
    """An error of the system in words: what could not be done, why, and what to do."""
    reason = error.strerror or str(error)
    advice = ADVICE.get(error.errno or 0, "")
    return OperatorError(f"{doing}: {reason}. {advice}".rstrip())


def not_supported(text: str, scheme: str) -> str:
    """The message about a path with a scheme."""
    some = known.schemes().values()
    return (
        f"{text}: a path with the scheme {scheme}:// is not supported here. Bundles and repositories are read from "
        f"{known.listed(some)}; `tritone repo push` and `tritone repo pull` copy them; recordings by `tritone "
        f"transcribe` and `embed`, from {known.listed(each for each in some if each.files)}. Give a path on this "
        "machine for other files."
    )
