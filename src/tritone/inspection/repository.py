"""The models of any repository, whoever wrote it, read from their configurations."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from tritone.errors import BundleError, OperatorError
from tritone.paths import open_file
from tritone.repository.config import from_text
from tritone.repository.models import is_ours
from tritone.repository.native import natives

CONFIG = "config.pbtxt"
MAX_CONFIG_BYTES = 2**22


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model of a repository. `batch`: the largest, in words. `tensors`: (input or output, name, type, dims).

    `steps`: of an ensemble, (model, its inputs and outputs by name, each with the ensemble's tensor).
    """

    name: str
    versions: tuple[str, ...]
    runs_in: str
    batch: str
    maker: str
    tensors: tuple[tuple[str, str, str, tuple[int, ...]], ...] = ()
    steps: tuple[tuple[str, Mapping[str, str], Mapping[str, str]], ...] = ()
    notes: tuple[str, ...] = ()


def read_models(path: Path, only: str | None = None) -> list[Model]:
    """Read all models of a repository, or one.

    Raises:
        BundleError: the folder holds no model.
        OperatorError: a configuration cannot be read.
    """
    folders = [each for each in sorted(path.iterdir()) if each.is_dir() and only in (None, each.name)]
    found = [_model(each) for each in folders if (each / CONFIG).is_file() or _versions(each)]
    if not found:
        raise BundleError(
            f"{path} is neither a bundle nor a model repository: it has no manifest.json, and no folder in it has a "
            f"{CONFIG} or a version"
        )
    return found


def _model(folder: Path) -> Model:
    versions = _versions(folder)
    notes = [] if versions else [f"{folder.name} has no version folder such as 1: Triton refuses it"]
    outside = sorted(
        str(path.relative_to(folder))
        for path in (folder, *folder.glob("*"), *folder.glob("*/*"))
        if path.is_symlink() and not path.resolve().is_relative_to(folder.parent.resolve())
    )
    notes += [f"{folder.name}/{name} is a link to something outside of the repository" for name in outside]
    if not (folder / CONFIG).is_file():
        known = {each.file: each.name for each in natives().values()} | {"model.py": "python"}
        file = next((file for file in known if versions and (folder / versions[-1] / file).exists()), "")
        return Model(
            name=folder.name,
            versions=versions,
            runs_in=known.get(file, "unknown"),
            batch="what Triton finds out",
            maker="somebody else",
            notes=(*notes, f"{folder.name} has no {CONFIG}: Triton makes one of its file, if it can"),
        )
    config = _config(folder / CONFIG)
    if config.name not in ("", folder.name):
        notes.append(f"{folder.name}: its {CONFIG} has the name {config.name!r}, Triton refuses it")
    tensors = [("input", each) for each in config.input] + [("output", each) for each in config.output]
    return Model(
        name=folder.name,
        versions=versions,
        runs_in=config.backend or config.platform or "unknown",
        batch=str(config.max_batch_size) if config.max_batch_size else "none: tensors have no axis of rows",
        maker="tritone" if is_ours(folder) else "somebody else",
        tensors=tuple(
            (side, each.name, pb.DataType.Name(each.data_type).removeprefix("TYPE_"), tuple(each.dims))
            for side, each in tensors
        ),
        steps=tuple(
            (step.model_name, dict(step.input_map), dict(step.output_map)) for step in config.ensemble_scheduling.step
        ),
        notes=tuple(notes),
    )


def _config(path: Path) -> Any:
    try:
        with open_file(path) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise OperatorError(f"{path} has more than {MAX_CONFIG_BYTES} bytes, which no configuration has")
        return from_text(content.decode())
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror}") from error
    except (OperatorError, UnicodeDecodeError) as error:
        raise OperatorError(f"{path}: {error}") from error


def _versions(folder: Path) -> tuple[str, ...]:
    numbers = [each.name for each in folder.iterdir() if each.name.isdecimal() and each.is_dir()]
    return tuple(sorted(numbers, key=int))
