"""Writing a Triton model repository from bundles.

    REPO/
      NAME/                config.pbtxt, 1/model.py, 1/bundle/...     whole utterances
      NAME-streaming/      config.pbtxt, 1/model.py, 1/bundle/...     chunk by chunk

A model is served offline under NAME and streaming under NAME-streaming; a streaming model that is built alone under a
name of its own has exactly that name, because clients of other deployments expect theirs. A repository needs
nothing outside its folder, unless its bundles are links: language models and hotwords are copied into it as well.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tritone.backend.settings import Mode, Settings
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.errors import BundleError, OperatorError, TritoneError
from tritone.pipelines.kinds import is_compiled
from tritone.pipelines.searching import roles_for
from tritone.repository.config import (
    Device,
    ModelOptions,
    device_of,
    from_text,
    mode_of,
    model_config,
    to_text,
    warmup_files,
)
from tritone.repository.search_files import check_files, check_search, copy_files
from tritone.search.options import SearchMode

VERSION = "1"
BYTES_PER_SAMPLE = 4
CONFIG = "config.pbtxt"
STREAMING_SUFFIX = "-streaming"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # a file name has at most 255 bytes
SHIM = '"""Written by `tritone build`."""\n\nfrom tritone.backend.{mode} import TritonPythonModel\n'
MODEL_IN_SHIM = re.compile(r"^from tritone\.backend\.\w+ import TritonPythonModel", re.MULTILINE)
ROLES: dict[Mode, Role] = {"offline": "encoder", "streaming": "streaming_encoder"}

Modes = Literal["offline", "streaming", "both"]


@dataclass(frozen=True)
class BuiltModel:
    """A model of a repository: its name, how it is served, its folder."""

    name: str
    mode: Mode
    path: Path


def build_repository(
    bundles: Sequence[str | Path],
    output: str | Path,
    *,
    names: Sequence[str] | None = None,
    modes: Modes = "both",
    options: ModelOptions | None = None,
    link: bool = False,
    force: bool = False,
) -> list[BuiltModel]:
    """Write the models of some bundles into a repository; other models in it stay as they are.

    Args:
        bundles: folders, or names of shipped bundles.
        output: the repository; made if it does not exist.
        names: one for each bundle; None takes them from the manifests. With `modes` "streaming" they are used as given.
        modes: "both" builds what each bundle has graphs for; the others insist.
        options: how to serve them, the same for all.
        link: point at the bundles instead of copying them.
        force: replace folders that Tritone did not write.

    Returns:
        The models written.

    Raises:
        BundleError: a bundle cannot be read, is damaged, or has no graph for a mode, a runtime or a precision that was
            asked for, no decoder for rescoring, or streams that cannot be cut as asked for.
        InputError: a hotword cannot be made of a bundle's tokens.
        OperatorError: the language model or the hotwords cannot be used, or something else is in the way at the output.
        ValueError: a name is unfit or used twice.
    """
    options = options or ModelOptions()
    opened = [Bundle.open(bundle) for bundle in bundles]
    if not opened:
        raise ValueError("no bundle given")
    for bundle in opened:
        bundle.verify()  # damage is told here, not by a server that does not start
    check_files(options, opened)
    if names is not None and len(names) != len(opened):
        raise ValueError(f"{len(opened)} bundles need as many names, got {len(names)}")
    suffix = "" if names is not None and modes == "streaming" else STREAMING_SUFFIX
    names = list(names) if names is not None else [bundle.manifest.name for bundle in opened]
    output = Path(output)
    plan = [
        (BuiltModel(name + (suffix if mode == "streaming" else ""), mode, Path()), bundle)
        for name, bundle in zip(names, opened, strict=True)
        for mode in _modes(bundle, modes)
    ]
    for model, bundle in plan:
        check_search(options, bundle, model.mode)
        for role in (ROLES[model.mode], *roles_for(bundle, options.search)):
            bundle.artifacts(role, options.runtime or None, options.precision or None)  # type: ignore[arg-type]
    _check_names([model.name for model, _ in plan], output, force)
    for bundle in opened:
        bundle.verify()  # a damaged file would be found only when the server starts, or never
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"cannot make the folder {output}: {error.strerror}. Choose another one.") from error
    built = []
    # Everything is written beside its place first: a failure leaves the repository as it was.
    with tempfile.TemporaryDirectory(prefix=".tritone-build-", dir=output) as folder:
        for model, bundle in plan:
            _write(Path(folder) / model.name, model, bundle, options, link)
        for model, _ in plan:
            path = output / model.name
            # No model is called like this: names start with a letter or a digit.
            _replace(Path(folder) / model.name, path, Path(folder) / f".old.{model.name}")
            built.append(BuiltModel(model.name, model.mode, path))
    return built


def read_repository(path: str | Path) -> list[BuiltModel]:
    """List the models of a repository that Tritone wrote.

    Raises:
        OperatorError: there is no such folder, it holds no model at all, or a `config.pbtxt` cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        raise OperatorError(f"{path} is not a folder. Make a repository with `tritone build BUNDLE --output {path}`.")
    if (path / "manifest.json").is_file():
        raise OperatorError(f"{path} is a bundle. Make a repository of it: `tritone build {path} --output REPO`.")
    if (path / CONFIG).is_file():
        raise OperatorError(f"{path} is a single model; the repository is the folder that holds it: {path.parent}")
    folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and not folder.name.startswith(".")]
    if not any((folder / CONFIG).is_file() or (folder / VERSION).is_dir() for folder in folders):
        raise OperatorError(f"{path} is not a model repository: no folder in it has a {CONFIG}. See `tritone build`.")
    models = []
    for folder in folders:
        if is_ours(folder):
            try:
                config = from_text((folder / CONFIG).read_text(encoding="utf-8"))
            except (OperatorError, UnicodeDecodeError) as error:
                raise OperatorError(f"{folder / CONFIG}: {error}") from error
            models.append(BuiltModel(folder.name, mode_of(config), folder))
    return models


def is_all_ours(path: str | Path) -> bool:
    """Whether every model of a repository was written by `tritone build`."""
    folders = [folder for folder in Path(path).iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    return all(is_ours(folder) for folder in folders)


def shared_memory_bytes(path: str | Path) -> int:
    """The shared memory that the models of a repository take when all their batches are full of the longest audio.

    Chunks of streams count as one second each. Models that are not ours, or cannot be read, count nothing.
    """
    total = 0
    for config in _configs(path):
        try:
            settings = Settings.from_parameters({key: value.string_value for key, value in config.parameters.items()})
        except ValueError:  # Triton tells about it when it loads the model
            continue
        seconds = settings.max_audio_s if mode_of(config) == "offline" else 1.0
        instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
        total += int(instances * config.max_batch_size * seconds * settings.sample_rate * BYTES_PER_SAMPLE)
    return total


def runtimes_of(path: str | Path) -> set[tuple[str, Device]]:
    """The runtimes that the models of a repository were built for, each with its device; "" for any of the bundle's.

    Models that are not ours, or cannot be read, count nothing.
    """
    return {(_parameter(config, "runtime"), device_of(config)) for config in _configs(path)}


def compiled_searches(path: str | Path) -> set[tuple[str, SearchMode]]:
    """How the models of a repository search unless told otherwise, where that is compiled: kinds and ways to search.

    Models that are not ours, or cannot be read, count nothing.
    """
    found: set[tuple[str, SearchMode]] = set()
    for folder in _folders(path):
        with suppress(TritoneError, ValueError):  # Triton tells about it when it loads the model
            config = _config(folder)
            settings = Settings.from_parameters({key: value.string_value for key, value in config.parameters.items()})
            kind = Bundle.open(folder / VERSION / settings.bundle).manifest.kind
            if is_compiled(kind, settings.search):
                found.add((kind, settings.search))
    return found


def _configs(path: str | Path) -> Iterator[Any]:
    for folder in _folders(path):
        with suppress(OperatorError):  # Triton tells about it when it loads the model
            yield _config(folder)


def _folders(path: str | Path) -> list[Path]:
    return [folder for folder in sorted(Path(path).iterdir()) if is_ours(folder)]


def _config(folder: Path) -> Any:
    return from_text((folder / CONFIG).read_text(encoding="utf-8"))


def _parameter(config: Any, name: str) -> str:
    return str(config.parameters[name].string_value) if name in config.parameters else ""


def is_ours(folder: Path) -> bool:
    """Whether `folder` is a model that `tritone build` wrote."""
    shim = folder / VERSION / "model.py"
    return (
        (folder / CONFIG).is_file()
        and shim.is_file()
        and bool(MODEL_IN_SHIM.search(shim.read_text(encoding="utf-8", errors="replace")))
    )


def _modes(bundle: Bundle, modes: Modes) -> list[Mode]:
    wanted: list[Mode] = ["offline", "streaming"] if modes == "both" else [modes]
    found = [mode for mode in wanted if bundle.has(ROLES[mode])]
    if found:
        return found
    if modes == "both":
        raise BundleError(f"{bundle.path} has no graph that could be served; export it again.")
    advice = " with --streaming" if modes == "streaming" else ""
    raise BundleError(f"{bundle.path} has no {modes} graph ({ROLES[modes]}). Export it again{advice}.")


def _check_names(names: Sequence[str], output: Path, force: bool) -> None:
    seen: set[str] = set()
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"model name {name[:220]!r}: up to 200 letters, digits, '.', '_' and '-' are allowed, the first a "
                "letter or digit. Choose one with --name."
            )
        if name in seen:
            raise ValueError(f"two models would be named {name!r}. Give each bundle a name of its own with --name.")
        seen.add(name)
        path = output / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise OperatorError(f"{path} is in the way: it is not a folder. Remove it, or choose another name.")
        if path.is_dir() and any(path.iterdir()) and not is_ours(path) and not force:
            raise OperatorError(f"{path} was not written by Tritone. Choose another name, or replace it with --force.")
    if output.exists() and not output.is_dir():
        raise OperatorError(f"{output} is not a folder.")
    if (output / "manifest.json").exists():
        raise OperatorError(f"{output} is a bundle; choose another folder for the repository.")


def _write(folder: Path, model: BuiltModel, bundle: Bundle, options: ModelOptions, link: bool) -> None:
    version = folder / VERSION
    version.mkdir(parents=True)
    files = copy_files(options, version, link=link)
    config = model_config(model.name, model.mode, options, sample_rate=bundle.manifest.sample_rate, files=files)
    (folder / CONFIG).write_text(to_text(config), encoding="utf-8")
    (folder / "warmup").mkdir()
    for name, content in warmup_files(config).items():
        (folder / "warmup" / name).write_bytes(content)
    (version / "model.py").write_text(SHIM.format(mode=model.mode), encoding="utf-8")
    if link:
        (version / "bundle").symlink_to(bundle.path.resolve(), target_is_directory=True)
        return
    for name in bundle.files:
        target = version / "bundle" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.file(name), target)


def _replace(new: Path, path: Path, old: Path) -> None:
    if path.exists():
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
