"""The key of a server: who has it may use the APIs that Triton restricts, such as loading models.

    publish(key, ports)  ->  a file for each port     find_key(port)  ->  the key of a server on this machine

A server has a new key at each start. Its files are readable by the user who started it and nobody else, so that
commands of the same user find the key by themselves.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tritone.errors import ServerSetupError

HTTP_HEADER = "tritone-key"
GRPC_HEADER = f"triton-grpc-protocol-{HTTP_HEADER}"  # Triton adds the prefix to the names that it is given
VARIABLE = "TRITONE_KEY"


def new_key() -> str:
    """A key that cannot be guessed."""
    return secrets.token_urlsafe(24)


def find_key(port: int | None = None) -> str | None:
    """The key in the environment, else that of the server of this user on this machine that listens on `port`."""
    if key := os.environ.get(VARIABLE):
        return key
    if port is None:
        return None
    try:
        return key_file(port).read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError, ServerSetupError):
        return None


def key_file(port: int) -> Path:
    """Where the key of a server lies that listens on `port`; raises `ServerSetupError` as `publish` does."""
    return _file(runtime_folder(), port)


def publish(key: str, ports: Iterable[int]) -> list[Path]:
    """Write the key for this user's commands, once for each port; returns the files.

    Raises:
        ServerSetupError: the folder for such files belongs to somebody else, or cannot be written.
    """
    folder = runtime_folder()
    paths = [_file(folder, port) for port in ports]
    for path in paths:
        path.unlink(missing_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ServerSetupError(f"the server's key cannot be written to {path}: {error.strerror}") from error
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(key + "\n")
    return paths


def runtime_folder() -> Path:
    """The folder for what this user's commands should know of servers that run; no other user can look into it.

    Raises:
        ServerSetupError: it belongs to somebody else, or cannot be made.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "tritone" if runtime else Path(tempfile.gettempdir()) / f"tritone-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ServerSetupError(
            f"no folder for the server's key: {folder}: {error.strerror}. Set XDG_RUNTIME_DIR to a folder of yours."
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ServerSetupError(
            f"{folder} must be a folder that only this user can read, for the server's key. Remove it, or set "
            "XDG_RUNTIME_DIR to a folder of yours."
        )
    return folder


def _file(folder: Path, port: int) -> Path:
    return folder / f"{port}.key"
