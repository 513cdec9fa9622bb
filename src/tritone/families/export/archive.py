"""Reading .nemo archives: a tar, compressed or not, of model_config.yaml, model_weights.ckpt and other files.

An archive may come from a stranger. Its members are read, never unpacked under names of its own; sizes are limited,
those of compressed archives by what comes out of them.
"""

import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tritone.errors import ExportError
from tritone.yaml_text import read_yaml

ARCHIVE_SUFFIX = ".nemo"
CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
MAX_MEMBERS = 1000
MAX_ARCHIVE_BYTES = 16 * 2**30  # with all that lies before a member
MAX_BYTES = {CONFIG: 16 * 2**20, WEIGHTS: 8 * 2**30}
MAX_OTHER_BYTES = 64 * 2**20  # of a tokenizer
BLOCK_BYTES = 2**20


@contextmanager
def open_weights(path: Path) -> Iterator[IO[bytes]]:
    """The weights of an archive as a file that can be read anywhere.

    Raises:
        ExportError: it is no such archive, or too large.
    """
    with open_member(path, WEIGHTS) as file, tempfile.TemporaryFile() as copy:
        while block := file.read(BLOCK_BYTES):
            copy.write(block)
        copy.seek(0)
        yield copy


def read_config(path: Path) -> dict[str, Any]:
    """The settings in the config of an archive.

    Raises:
        ExportError: it is no such archive, or its config is none.
    """
    with open_member(path, CONFIG) as file:
        content = read_yaml(file.read(), f"config {path}, {CONFIG}", ExportError)
    if not isinstance(content, dict):
        raise ExportError(f"{path}, {CONFIG}: expected settings (key: value), found {type(content).__name__}")
    return content


@contextmanager
def open_member(path: Path, wanted: str) -> Iterator[IO[bytes]]:
    """A file of an archive, to be read once, from its start.

    Raises:
        ExportError: it is no such archive, or too large, or has no such file.
    """
    most = MAX_BYTES.get(wanted, MAX_OTHER_BYTES)
    try:
        with tarfile.open(path, "r:*") as archive:
            for count, member in enumerate(archive):
                if count >= MAX_MEMBERS or member.offset_data + member.size > MAX_ARCHIVE_BYTES:
                    raise ExportError(f"{path} is too large for a model: limits are {MAX_MEMBERS} files and 16 GiB")
                if not member.isfile() or PurePosixPath(member.name).parts != (wanted,):
                    continue
                if member.size > most:
                    raise ExportError(f"{path}: {wanted} has {member.size} bytes, at most {most} are read")
                file = archive.extractfile(member)
                assert file is not None
                yield file
                return
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise ExportError(f"{path} is no archive that can be read ({type(error).__name__}: {error})") from error
    raise ExportError(f"{path} holds no {wanted}: is it the archive of a model?")
