"""One model's folder of a repository: what is in it, and writing it.

NAME/   config.pbtxt   1/model.py, 1/bundle/..., 1/search/...   warmup/...      a model that we run
NAME/   config.pbtxt   1/model.onnx, 1/weights.bin                              one that Triton's own backend runs
NAME/   config.pbtxt   1/                                                       an ensemble
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritone.bundle.bundle import MANIFEST, Bundle
from tritone.bundle.manifest import Artifact
from tritone.kinds import Mode, Stage
from tritone.repository.config import ModelOptions, to_text, warmup_files
from tritone.repository.search_files import DRAFT, copy_files

VERSION = "1"
CONFIG = "config.pbtxt"
SHIM = '"""Written by `tritone build`."""\n\nfrom tritone.backend.{module} import TritonPythonModel\n'


def versions_of(folder: Path) -> list[Path]:
    """The version folders of a model, the newest first."""
    found = [path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


@dataclass(frozen=True)
class BuiltModel:
    """A model of a repository: its name, how it is served or which stage of an ensemble it is, its folder."""

    name: str
    mode: Mode | Stage
    path: Path


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A model's folder, to be written.

    `mode`: see `BuiltModel`. `module`: of `tritone.backend`, which runs it; None if it is not ours to run. `bundle`:
    what it runs. `artifacts`: those of the bundle that it needs, None for all. `search`: the options whose files it
    reads. `files`: others that it has, by their names. `version`: the folder of all these. `beside`, `written`: files
    beside `config.pbtxt`, by their names: those that exist, and others by their content. `stand_in`: the same
    model, run by us, for trying it where Triton's own backend is not at hand.
    """

    name: str
    mode: Mode | Stage
    config: Any
    module: str | None = None
    bundle: Bundle | None = None
    artifacts: tuple[Artifact, ...] | None = None
    search: ModelOptions | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    version: str = VERSION
    beside: Mapping[str, Path] = field(default_factory=dict)
    written: Mapping[str, bytes] = field(default_factory=dict)
    stand_in: "ModelFolder | None" = None


class FolderWriter:
    """Writes the folders of models. What several of them have is on the disk once, as far as its file system can."""

    def __init__(self, *, link: bool) -> None:
        """`link`: point at bundles and at what models search with, instead of copying them."""
        self._link = link
        self._written: dict[Path, Path] = {}

    def write(self, model: ModelFolder, folder: Path) -> None:
        """Write a model to `folder`, which is made."""
        version = folder / model.version
        version.mkdir(parents=True)
        if model.search is not None:
            copy_files(model.search, version, link=self._link)
        (folder / CONFIG).write_text(to_text(model.config), encoding="utf-8")
        if samples := warmup_files(model.config):
            (folder / "warmup").mkdir()
            for name, content in samples.items():
                (folder / "warmup" / name).write_bytes(content)
        if model.module is not None:
            (version / "model.py").write_text(SHIM.format(module=model.module), encoding="utf-8")
        if model.bundle is not None:
            self._place_bundle(model.bundle, model.artifacts, version / "bundle")
        if model.search is not None and model.search.draft:
            self._place_bundle(Bundle.open(model.search.draft), None, version / DRAFT)
        for name, source in model.files.items():
            self._place(source, version / name)
        for name, source in model.beside.items():
            shutil.copyfile(source, folder / name)  # Triton follows no link out of a model's folder
        for name, content in model.written.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)

    def _place_bundle(self, bundle: Bundle, artifacts: tuple[Artifact, ...] | None, target: Path) -> None:
        if self._link:
            target.symlink_to(bundle.path.resolve(), target_is_directory=True)
            return
        if artifacts is None:
            chosen = bundle
        else:
            chosen = Bundle(bundle.path, bundle.manifest.model_copy(update={"artifacts": artifacts}))
        for name in chosen.files:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == MANIFEST and (artifacts is not None or bundle != Bundle.open(bundle.path)):
                path.write_text(chosen.manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
            else:
                self._place(bundle.file(name), path)

    def _place(self, source: Path, target: Path) -> None:
        """Link to a file, or copy it; another copy that was made before is the same file."""
        if self._link:
            target.symlink_to(source.resolve())
            return
        before = self._written.setdefault(source.resolve(), target)
        if before is not target:
            try:
                os.link(before, target)
                return
            except OSError:  # not every file system can
                pass
        shutil.copyfile(source, target)
