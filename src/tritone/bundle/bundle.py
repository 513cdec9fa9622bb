"""Reading and writing bundles: folders that hold one exported model.

    name or path  ->  Bundle (manifest, vocabulary, graph files)
    BundleWriter  ->  a complete folder, or none at all

A bundle may come from a stranger: sizes are limited, and no name in its manifest can point outside its folder.
"""

import json
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tritone.bundle.manifest import (
    SCHEMA_VERSION,
    Artifact,
    Engine,
    Manifest,
    Precision,
    Role,
    Runtime,
    WeightStorage,
)
from tritone.bundle.part import WRONG_PART
from tritone.bundle.vocabulary import Vocabulary, write_tokens
from tritone.errors import BundleError
from tritone.later import later
from tritone.paths import has_scheme, local, sha256_of

if TYPE_CHECKING:
    from tritone import storage
else:
    storage = later("storage")

MANIFEST = "manifest.json"
MODEL_CARD = "README.md"  # people put one beside the manifest; nothing reads it
EVALUATION = "evaluation.json"  # and what was measured, see evaluation.py; both are of one export
MAX_MANIFEST_BYTES = 4 * 2**20
EXPORTED_WITH = {"streaming_encoder": "--streaming", "features": "--stages", "acoustic": "--stages"}
SHIPPED = Path(__file__).resolve().parent.parent / "bundles"  # package data


@dataclass(frozen=True)
class Bundle:
    """A checked bundle: its folder and its manifest."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path_or_name: str | os.PathLike[str]) -> "Bundle":
        """Open the bundle in a folder, in storage (s3://bucket/folder, see `storage/`), or a shipped one by its name.

        The manifest is validated, every file that it names must exist, and the token table is read. File contents are
        compared with their checksums only by `verify`.

        Raises:
            BundleError: nothing there, or what is there is damaged, incomplete or too new; the message names the field
                or the file.
            StorageError, StorageUnreachableError: it is in storage, and cannot be read there.
        """
        path = resolve(path_or_name)
        bundle = cls(path, _read_manifest(path / MANIFEST))
        for name in bundle.files:
            bundle.file(name)
        if bundle.manifest.vocabulary is not None:
            _ = bundle.vocabulary
        for part in bundle.manifest.parts:
            part.check_files(bundle.file)
        return bundle

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files of the bundle, relative to its folder, each once."""
        names = [MANIFEST]
        if self.manifest.vocabulary is not None:
            names.append(self.manifest.vocabulary.file)
        names += [name for part in self.manifest.parts for name in part.files]
        names += [name for artifact in self.manifest.artifacts for name in artifact.files]
        return tuple(dict.fromkeys(names))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The token table with its rules for writing text.

        Raises:
            BundleError: the model writes no text.
        """
        if self.manifest.vocabulary is None:
            raise BundleError(f"{self.path} is of kind {self.manifest.kind}: it has no tokens and writes no text.")
        return Vocabulary.read(self.file(self.manifest.vocabulary.file), self.manifest.vocabulary)

    def file(self, name: str) -> Path:
        """The path of a file that the manifest names.

        Raises:
            BundleError: the name leads out of the folder, or there is no such file.
        """
        pure = PurePosixPath(name)
        if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
            raise BundleError(f"{self.path}: the manifest names the file {name!r}; names must stay inside the bundle")
        path = self.path / pure
        if not os.path.isfile(path):  # Path.is_file raises on names that are too long
            raise BundleError(
                f"{self.path}: the file {name} is missing. Copy the whole bundle folder, or export it again."
            )
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise BundleError(f"{self.path}: the file {name} is a link to {path.resolve()}, outside the bundle")
        return path

    def has(self, role: Role) -> bool:
        """Is there a graph for this role?"""
        return any(artifact.role == role for artifact in self.manifest.artifacts)

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The runtimes that the bundle has graphs for, in the order of the manifest, each once."""
        return tuple(dict.fromkeys(artifact.runtime for artifact in self.manifest.artifacts))

    def artifacts(
        self, role: Role, runtime: Runtime | None = None, precision: Precision | None = None
    ) -> tuple[Artifact, ...]:
        """The graphs for a role, narrowed down to a runtime and a precision; in the order of the manifest.

        Raises:
            BundleError: there is none; the message says what the bundle holds and how to get what it does not.
        """
        found = tuple(
            artifact
            for artifact in self.manifest.artifacts
            if artifact.role == role and runtime in (None, artifact.runtime) and precision in (None, artifact.precision)
        )
        if found:
            return found
        held = [f"{a.role} ({a.runtime}, {a.precision})" for a in self.manifest.artifacts]
        wanted = ", ".join(each for each in (runtime, precision) if each)
        if not self.has(role):
            advice = f" Export the checkpoint with {EXPORTED_WITH[role]}." if role in EXPORTED_WITH else ""
            if role == "encoder" and self.has("streaming_encoder"):
                advice = " It is for streams alone, as with `tritone transcribe --streaming`."
        elif runtime == "python":
            advice = " It has no function of Python: leave the runtime open for it, in a command of its own."
        elif runtime == "tensorrt":
            advice = f" Build one with `tritone engine {self.path}{f' --precision {precision}' if precision else ''}`."
        elif runtime is not None and runtime not in self.runtimes:
            advice = f" Export the checkpoint with --runtimes {','.join((*self.runtimes, runtime))}."
        else:
            advice = f" Export the checkpoint with --runtimes torch --precision {precision}."
        raise BundleError(
            f"{self.path} has no graph for {role}{f' ({wanted})' if wanted else ''}; it holds "
            f"{', '.join(held) or 'no graphs at all'}.{advice}"
        )

    def artifact(self, role: Role, runtime: Runtime | None = None, precision: Precision | None = None) -> Path:
        """The path of the graph to open for a role: the first that `artifacts` gives; errors as there."""
        return self.file(self.artifacts(role, runtime, precision)[0].files[0])

    def num_bytes(self, artifact: Artifact) -> int:
        """The size of a graph with its weights, as it is stored."""
        return sum(self.file(name).stat().st_size for name in artifact.files)

    def verify(self) -> None:
        """Compare every graph file with its checksum.

        Raises:
            BundleError: a file is not the one that was exported; the message names it.
        """
        for artifact in self.manifest.artifacts:
            for name, expected in zip(artifact.files, artifact.sha256, strict=True):
                seen = sha256_of(self.file(name))
                if seen != expected.lower():
                    raise BundleError(
                        f"{self.path}: the file {name} was altered or damaged (sha256 is {seen}, the manifest says "
                        f"{expected}). Copy the bundle again, or export it again."
                    )


def shipped_bundles() -> dict[str, Path]:
    """The bundles that come with the package: name to folder."""
    if not SHIPPED.is_dir():
        return {}
    return {path.name: path for path in sorted(SHIPPED.iterdir()) if (path / MANIFEST).is_file()}


def known(what: str | os.PathLike[str]) -> Path | None:
    """The folder of a bundle on this machine, or of a shipped one by its name; None for whatever else somebody has."""
    if not has_scheme(what) and not os.path.exists(what):  # the methods of Path raise on names that are too long
        return shipped_bundles().get(os.fspath(what))
    path = Path(what)
    return path if os.path.isfile(path / MANIFEST) else None


def resolve(path_or_name: str | os.PathLike[str]) -> Path:
    """Find a bundle folder: an existing folder first, then a shipped bundle of this name; or a local copy from storage.

    Raises:
        BundleError: there is neither; the message lists the shipped names.
        StorageError, StorageUnreachableError: it is in storage, and cannot be read there.
    """
    if has_scheme(path_or_name) and (address := storage.parse(path_or_name)) is not None:
        return storage.fetch(address, first=MANIFEST, needed=_needed, check=_check_whole)
    path = local(path_or_name, BundleError)
    if os.path.isdir(path):  # the methods of Path raise on names that are too long
        return path
    shipped = shipped_bundles()
    name = os.fspath(path_or_name)
    if name in shipped:
        return shipped[name]
    if os.path.isfile(path):
        raise BundleError(f"{path} is a file; a bundle is a folder with a {MANIFEST}")
    names = ", ".join(shipped) or "none in this installation"
    raise BundleError(f"there is no bundle folder {name!r}, and no shipped bundle of that name (shipped: {names})")


def _needed(folder: Path) -> tuple[str, ...]:
    """The files of a bundle, of which `folder` has the manifest; nothing else that lies beside it is needed."""
    return Bundle(folder, _read_manifest(folder / MANIFEST)).files


def _check_whole(folder: Path) -> None:
    Bundle.open(folder).verify()


class BundleWriter:
    """Writes a bundle beside its place and moves it there when it is complete, so that a crash leaves no half bundle.

        with BundleWriter("model") as writer:
            export(writer.folder / "encoder.onnx")
            writer.write_tokens(tokens)
            bundle = writer.commit(Manifest(..., artifacts=(writer.artifact("encoder", "encoder.onnx"),)))

    An existing bundle at the target is replaced, together with its model card (README.md) and evaluation.json, which
    describe the old one; any other folder with content is refused.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        """Check the target and make the working `folder`.

        Raises:
            BundleError: the target exists and is not a bundle, or its parent cannot be written.
        """
        self.target = Path(os.path.abspath(local(target, BundleError)))
        _check_replaceable(self.target)
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))
        except OSError as error:
            raise BundleError(f"cannot write a bundle to {self.target}: {error.strerror}") from error

    def __enter__(self) -> "BundleWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # gone already after `commit`

    def write_tokens(self, tokens: list[str] | tuple[str, ...], name: str = "tokens.txt") -> None:
        """Write the token table; `tokens` are in the order of their ids."""
        write_tokens(self.folder / name, tokens)

    def artifact(
        self,
        role: Role,
        *files: str,
        runtime: Runtime = "onnxruntime",
        precision: Precision = "fp32",
        weight_storage: WeightStorage = "fp32",
        engine: Engine | None = None,
    ) -> Artifact:
        """Describe a graph whose `files` were written to `folder`, the one to open first; computes the checksums."""
        return Artifact(
            role=role,
            runtime=runtime,
            precision=precision,
            weight_storage=weight_storage,
            files=files,
            sha256=tuple(sha256_of(self.folder / name) for name in files),
            engine=engine,
        )

    def commit(self, manifest: Manifest) -> Bundle:
        """Write the manifest, check the whole bundle and move it to the target.

        Raises:
            BundleError: what was written is not a valid bundle, or the target became something else meanwhile.
        """
        (self.folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        Bundle.open(self.folder).verify()
        _check_replaceable(self.target)
        self.folder.chmod(0o777 & ~_umask())  # mkdtemp makes private folders
        if self.target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.old.", dir=self.target.parent))
            os.replace(self.target, old / "bundle")
            os.replace(self.folder, self.target)
            shutil.rmtree(old)
        else:
            os.replace(self.folder, self.target)
        return Bundle.open(self.target)


def _read_manifest(path: Path) -> Manifest:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end, nor would a link to /dev/zero
            raise BundleError(f"{path} is not a regular file")
        if status.st_size > MAX_MANIFEST_BYTES:
            raise BundleError(f"{path} has {status.st_size} bytes; a manifest has at most {MAX_MANIFEST_BYTES}")
        content: Any = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BundleError(
            f"{path.parent} is not a bundle: it has no {MANIFEST}. `tritone export` makes one; `tritone inspect "
            f"{path.parent}` says how."
        ) from error
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise BundleError(f"{path} is not valid JSON ({error}). Export the bundle again.") from error
    if not isinstance(content, dict):
        raise BundleError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BundleError(
            f"{path} has schema_version {version}; this Tritone reads up to {SCHEMA_VERSION}. "
            "Upgrade it with `pip install --upgrade tritone`."
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        faults = [f"{_place(e['loc'])}: {explain_fault(e)}" for e in error.errors()[:5]]
        more = f" (and {error.error_count() - 5} more)" if error.error_count() > 5 else ""
        raise BundleError(f"{path}: {'; '.join(faults)}{more}. Mend the field or export the bundle again.") from error


def _place(location: tuple[int | str, ...]) -> str:
    """Where a fault is, as files have it: there the parts of a kind stand beside the rest."""
    return ".".join(map(str, location[1:] if location[:1] == ("parts",) else location)) or "manifest"


def explain_fault(fault: Any) -> str:
    """What is wrong with a field, of one of the errors of a `pydantic.ValidationError`."""
    if fault["type"] == "missing":
        return "this field is required but absent"
    if fault["type"] == "extra_forbidden":
        return "unknown field"
    if fault["type"] == WRONG_PART:
        return str(fault["msg"])
    return f"{fault['msg']}, got {str(fault['input'])[:80]!r}"


def _check_replaceable(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise BundleError(f"{target} exists and is not a folder; name another output folder")
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    if not names:
        return
    try:
        foreign = names - {MODEL_CARD, EVALUATION, *Bundle(target, _read_manifest(target / MANIFEST)).files}
    except BundleError as error:
        raise BundleError(f"{target} has content and is not a bundle; name an empty or a new folder") from error
    if foreign:
        raise BundleError(
            f"{target} holds a bundle and other files ({', '.join(sorted(foreign)[:5])}), "
            "which replacing it would delete. Move them away, or name another folder."
        )


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
