"""Models of a repository in storage, or on a disk: their versions, and which of them a server would load.

    NAME/config.pbtxt, NAME/...            the model's own files; its version policy names the versions that are served
    NAME/2/...                             version 2
    NAME/2/tritone.claim.json              who pushes this version, by its content; there from the start
    NAME/2/tritone.json                    list of its files with their checksums; there when all of them are
    NAME/2/tritone.model/...               what the model's own files were when it was pushed, to go back to it

Triton looks at no version that the policy does not name, so one that is half pushed is not loaded, and a version is
switched on, or off again, by one write of `config.pbtxt`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tritonclient.grpc import model_config_pb2 as pb

from tritone.errors import StorageError
from tritone.repository.config import from_text, to_text
from tritone.repository.folder import CONFIG
from tritone.storage import Entry, Store

INDEX, CLAIM, KEPT = "tritone.json", "tritone.claim.json", "tritone.model"
SOURCE = ".tritone-source"  # in a version that was pulled: what it was made of
OURS = (INDEX, CLAIM, SOURCE, f"{KEPT}/")  # names in a version that are not the model's
NUMBER = re.compile(r"[1-9][0-9]{0,17}")
MODEL_FILES = ("model.py", "model.onnx", "model.pt", "model.plan", "model.graphdef")
MAX_CONFIG_BYTES = 4 * 2**20
MAX_INDEX_BYTES = 64 * 2**20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # a file name has at most 255 bytes


class FileFacts(BaseModel):
    """Size in bytes and sha256 of a file."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Index(BaseModel):
    """The list of a version's files, as `tritone.json` has it.

    `files`: of the version. `model_files`: beside the versions, `config.pbtxt` not among them. `config`: the sha256 of
    the configuration without its version policy. `pushed_at`: time in UTC, ISO 8601.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    files: dict[str, FileFacts]
    model_files: dict[str, FileFacts]
    config: str
    pushed_at: str = ""
    tritone: str = ""

    @property
    def content(self) -> str:
        """What two pushes of the same have in common."""
        fields_shown = self.model_dump(include={"files", "model_files", "config"})
        return hashlib.sha256(json.dumps(fields_shown, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class StoredVersion:
    """A version of a model: its number, its files by their names in its folder, and its list if it has one."""

    number: int
    files: Mapping[str, Entry]
    index: Index | None = None

    @property
    def missing(self) -> list[str]:
        """The files that its list names and that are not there, or have another size."""
        if self.index is None:
            return []
        return [
            name
            for name, facts in self.index.files.items()
            if name not in self.files or self.files[name].size != facts.size
        ]

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there; one that `push` did not write is taken for complete."""
        return not self.missing if self.index is not None else CLAIM not in self.files

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return sum(entry.size for entry in self.files.values())


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A model: its own files by their names in its folder, its versions by number, and its configuration."""

    name: str
    files: Mapping[str, Entry]
    versions: Mapping[int, StoredVersion]
    text: str | None = field(default=None, repr=False)  # of config.pbtxt

    @cached_property
    def config(self) -> Any:
        """The configuration; raises `StorageError` if there is none, or it is not one."""
        if self.text is None:
            raise StorageError(f"model {self.name} has no {CONFIG}; it was not pushed to its end. Push it again")
        return from_text(self.text)

    @property
    def served(self) -> tuple[int, ...]:
        """The versions that a server loads; none without a configuration."""
        return () if self.text is None else served_versions(self.config, self.versions)

    def version(self, number: int) -> StoredVersion:
        """A version; raises `StorageError` if there is none of this number."""
        if number not in self.versions:
            have = ", ".join(map(str, sorted(self.versions))) or "none"
            raise StorageError(f"model {self.name} has no version {number}; it has {have}")
        return self.versions[number]


def served_versions(config: Any, numbers: Iterable[int]) -> tuple[int, ...]:
    """The versions that Triton loads of those that are there, by the policy of a configuration; in order."""
    there = sorted(numbers)
    policy = config.version_policy.WhichOneof("policy_choice")
    if policy == "all":
        return tuple(there)
    if policy == "specific":
        return tuple(number for number in there if number in config.version_policy.specific.versions)
    count = config.version_policy.latest.num_versions or 1
    return tuple(there[-count:])


def how_many(config: Any) -> int | None:
    """How many versions at once a policy means to serve; None for all."""
    policy = config.version_policy.WhichOneof("policy_choice")
    if policy == "all":
        return None
    if policy == "specific":
        return max(1, len(config.version_policy.specific.versions))
    return config.version_policy.latest.num_versions or 1


def serving(config: Any, numbers: Iterable[int]) -> str:
    """The text of a configuration whose policy names these versions and no others."""
    changed = pb.ModelConfig()
    changed.CopyFrom(config)
    changed.version_policy.Clear()
    changed.version_policy.specific.versions.extend(sorted(numbers))
    return str(to_text(changed))


def config_digest(config: Any) -> str:
    """The sha256 of a configuration without its version policy."""
    changed = pb.ModelConfig()
    changed.CopyFrom(config)
    changed.ClearField("version_policy")
    return hashlib.sha256(changed.SerializeToString(deterministic=True)).hexdigest()


def key_file(config: Any, files: Iterable[str]) -> str | None:
    """The file without which Triton cannot load a version; None if there is none, as for an ensemble."""
    names = set(files)
    wanted = [config.default_model_filename] if config.default_model_filename else list(MODEL_FILES)
    return next((name for name in wanted if name in names), None)


def read_models(store: Store, *, only: Iterable[str] = ()) -> dict[str, StoredModel]:
    """The models of a repository by name; `only` some of them.

    Raises:
        StorageError: a model's name is unfit, a configuration or a list of files is damaged, or it is a bundle.
    """
    folders: dict[str, dict[str, Entry]] = {}
    wanted = set(only)
    for entry in store.entries():
        name, slash, rest = entry.name.partition("/")
        if not slash:
            if name == "manifest.json":
                raise StorageError(f"{store.title} is a bundle, not a repository; `tritone build` makes one of it")
            continue
        if name.startswith("."):  # what is being written on a disk
            continue
        if not NAME.fullmatch(name):
            raise StorageError(
                f"{store.title}: {name[:200]!r} is no name of a model: letters, digits, '.', '_' and '-'"
            )
        folders.setdefault(name, {})[rest] = entry
    if missing := wanted - folders.keys():
        have = ", ".join(sorted(folders)) or "no models"
        raise StorageError(f"{store.title} has no model {', '.join(sorted(missing))}, but {have}")
    return {name: _model(store, name, folders[name]) for name in sorted(wanted or folders)}


def read_index(store: Store, name: str) -> Index | None:
    """A list of files; None if there is none. Raises `StorageError` if it is damaged."""
    content = store.read(name, MAX_INDEX_BYTES)
    if content is None:
        return None
    try:
        return Index.model_validate_json(content)
    except ValidationError as error:
        raise StorageError(
            f"{store.title}: {name} is damaged ({error.errors()[0]['msg']}). Push the model again"
        ) from error


def _model(store: Store, name: str, files: Mapping[str, Entry]) -> StoredModel:
    own: dict[str, Entry] = {}
    versions: dict[int, dict[str, Entry]] = {}
    for path, entry in files.items():
        folder, slash, rest = path.partition("/")
        if slash and NUMBER.fullmatch(folder):
            versions.setdefault(int(folder), {})[rest] = entry
        elif not folder.startswith("."):
            own[path] = entry
    text = None
    if CONFIG in own and (content := store.read(f"{name}/{CONFIG}", MAX_CONFIG_BYTES)) is not None:
        text = content.decode("utf-8", "replace")
    return StoredModel(
        name=name,
        files=own,
        versions={
            number: StoredVersion(
                number=number,
                files=found,
                index=read_index(store, f"{name}/{number}/{INDEX}") if INDEX in found else None,
            )
            for number, found in sorted(versions.items())
        },
        text=text,
    )
