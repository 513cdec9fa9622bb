"""What can be seen of somebody's file or folder before anything of it is loaded: names, configs, words of pickles.

Families recognise their models by it. Files may come from strangers: sizes are limited, a pickle's words are read
without loading it, and nothing of it runs.
"""

import json
import pickletools
import re
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from tritone.errors import BundleError, TritoneError
from tritone.paths import open_file
from tritone.yaml_text import read_yaml

MAX_CONFIG_BYTES = 16 * 2**20
MAX_PICKLE_BYTES = 64 * 2**20  # of names, types and sizes; tensors lie beside them
MAX_FILES = 10_000
MAX_MEMBERS = 1000
CONFIG = "config.json"  # of transformers and others
OF_FOLDERS = (CONFIG, "model.bin", "model.safetensors")  # files that mean their folder
BINARY = "pytorch_model.bin"  # of transformers with a config.json beside it, else a file of its own
TORCH = ("*.pt", "*.pth", "*.ckpt", "*.ts", "*.tar", BINARY)
"""Names of files of torch: pickles, archives of them, or programs."""
PREFIXES = re.compile(r"^((module|_orig_mod|base_model\.model|model)\.)+")  # of names that were saved as they trained


@dataclass(frozen=True)
class Seen:
    """A file or a folder; what is asked for is read once.

    Raises:
        BundleError: by each of its questions: what was asked for cannot be read.
    """

    path: Path

    @classmethod
    def of(cls, path: Path) -> "Seen":
        """What somebody means by a path: of some files it is the folder."""
        means_folder = path.name in OF_FOLDERS or (path.name == BINARY and (path.parent / CONFIG).is_file())
        return cls(path.parent if means_folder and not path.is_dir() else path)

    @cached_property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @property
    def folder(self) -> Path:
        """The folder, or the one that the file lies in."""
        return self.path if self.is_folder else self.path.parent

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What is in the folder, sorted; nothing of a file."""
        if not self.is_folder:
            return ()
        try:
            return tuple(sorted(each.name for each, _ in zip(self.path.iterdir(), range(MAX_FILES), strict=False)))
        except OSError as error:
            raise BundleError(f"cannot read the folder {self.path}: {error.strerror}") from error

    def some(self, *patterns: str) -> list[Path]:
        """What in the folder has a name like one of the patterns, by pattern and name."""
        return [self.path / each for pattern in patterns for each in self.names if fnmatchcase(each, pattern)]

    def has(self, *names: str) -> bool:
        """Does the folder hold all of these?"""
        return set(names) <= set(self.names)

    def is_like(self, *patterns: str) -> bool:
        """Is it a file with a name like one of the patterns?"""
        return not self.is_folder and any(fnmatchcase(self.path.name.lower(), each) for each in patterns)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The folder's config.json; empty if there is none."""
        if CONFIG not in self.names:
            return {}
        path = self.path / CONFIG
        try:
            with open_file(path) as file:
                content = json.loads(file.read(MAX_CONFIG_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise BundleError(f"{path} is not JSON that can be read: {str(error)[:200]}") from error
        if not isinstance(content, dict):
            raise BundleError(f"{path} should hold settings by name, it holds a {type(content).__name__}")
        return content

    def start(self, name: str, size: int) -> bytes:
        """The first bytes of a file of the folder; none where it cannot be read."""
        try:
            with open_file(self.path / name) as file:
                return file.read(size)
        except OSError:
            return b""

    def archived_settings(self, name: str) -> dict[str, Any] | None:
        """A file of settings in YAML in the tar archive that the file is; None if the archive has none of that name."""
        try:
            with tarfile.open(self.path, "r:*") as archive:
                for member, _ in zip(archive, range(MAX_MEMBERS), strict=False):
                    if member.isfile() and Path(member.name).parts == (name,):
                        file = archive.extractfile(member)
                        assert file is not None
                        content = file.read(MAX_CONFIG_BYTES)
                        break
                else:
                    return None
        except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
            raise BundleError(
                f"{self.path} is no archive that can be read ({type(error).__name__}: {error})"
            ) from error
        found = read_yaml(content, f"the config of {self.path}", BundleError)
        if not isinstance(found, dict):
            raise BundleError(f"the config of {self.path} should hold settings by name")
        return found

    @cached_property
    def members(self) -> Sequence[str]:
        """The names in the zip archive that the file is; none if it is none, as torch's older form."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return archive.namelist()
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
            return []

    @cached_property
    def is_program(self) -> bool:
        """Is it a file of torch.export or torch.jit, and no checkpoint?"""
        return self.is_script or self.is_exported

    @cached_property
    def is_script(self) -> bool:
        """Is it a TorchScript, whose code runs as soon as it is loaded?"""
        return any(name.partition("/")[2].startswith("code/") for name in self.members) and not self.is_exported

    @cached_property
    def is_exported(self) -> bool:
        """Is it a program of torch.export?"""
        return any(name.endswith("archive_format") for name in self.members)

    @cached_property
    def words(self) -> frozenset[str]:
        """The texts in a checkpoint of torch.save, names of tensors among them, without what training puts in front of
        them; nothing of other files."""
        is_expected = self.is_like(*TORCH, "*.bin")
        if self.is_folder or self.is_program or not (is_expected or _starts_as_pickle(self.path)):
            return frozenset()
        try:
            texts = [argument for _, argument, _ in self._operations() if isinstance(argument, str)]
        except TritoneError:
            raise
        except Exception as error:  # pickletools raises what comes, as unpickling does
            if not is_expected:
                return frozenset()
            raise BundleError(
                f"{self.path} is no checkpoint of torch, or is damaged ({type(error).__name__})"
            ) from error
        return frozenset(PREFIXES.sub("", text) for text in texts)

    def _operations(self) -> list[Any]:
        if self.members:
            with zipfile.ZipFile(self.path) as archive:
                name = next(each for each in self.members if each.endswith("data.pkl"))
                if archive.getinfo(name).file_size > MAX_PICKLE_BYTES:
                    raise BundleError(f"{self.path}: its pickle has more than {MAX_PICKLE_BYTES} bytes, which none has")
                return list(pickletools.genops(archive.read(name)))
        with open_file(self.path) as file:
            operations: list[Any] = []
            for _ in range(4):  # a magic number, a version, the machine, the content
                operations += pickletools.genops(file)
            return operations


def _starts_as_pickle(path: Path) -> bool:
    try:
        with open_file(path) as file:
            return file.read(2) in (b"PK", b"\x80\x02")
    except OSError:
        return False
