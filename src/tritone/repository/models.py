"""The models of a repository that Tritone wrote, and what they need.

A model is known to be ours by its `model.py`, or where it has none by a parameter in its `config.pbtxt`.
"""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2 as pb

from tritone.backend.settings import ENSEMBLE, GENERIC, STAGES, Settings
from tritone.bundle.bundle import Bundle
from tritone.errors import OperatorError, TritoneError
from tritone.kinds import kind_of
from tritone.pipelines.wire import PCM, WAV
from tritone.repository.config import BYTES_PER_SAMPLE, device_of, from_text, mode_of, parameter
from tritone.repository.folder import CONFIG, VERSION, BuiltModel, versions_of
from tritone.repository.instances import Device
from tritone.repository.native import natives
from tritone.repository.stored import served_versions
from tritone.search.options import SearchMode

MODEL_IN_SHIM = re.compile(r"^from tritone\.backend\.\w+ import TritonPythonModel", re.MULTILINE)
ITEM_BYTES = {pb.TYPE_FP32: 4, pb.TYPE_INT64: 8}


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
    if not any((folder / CONFIG).is_file() or versions_of(folder) for folder in folders):
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


def is_ours(folder: Path) -> bool:
    """Whether `folder` is a model that `tritone build` wrote."""
    if not (folder / CONFIG).is_file():
        return False
    shims = [shim for version in versions_of(folder) if (shim := version / "model.py").is_file()]
    if shims:
        (shim, *_) = shims
        return bool(MODEL_IN_SHIM.search(shim.read_text(encoding="utf-8", errors="replace")))
    try:
        config = _config(folder)
        return parameter(config, "stage") in (ENSEMBLE, *STAGES) or parameter(config, "kind") == GENERIC
    except (OperatorError, UnicodeDecodeError):
        return False


def version_folder(folder: Path) -> Path:
    """The folder of the newest version that a server loads of a model; of one without versions where it would be."""
    found = {int(path.name): path for path in versions_of(folder)}
    served = list(found)
    if len(found) > 1:
        with suppress(OSError, OperatorError, UnicodeDecodeError):  # Triton reports it when it loads the model
            served = list(served_versions(_config(folder), found))
    return found[max(served)] if served else folder / VERSION


def is_all_ours(path: str | Path) -> bool:
    """Whether every model of a repository was written by `tritone build`."""
    folders = [folder for folder in Path(path).iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    return all(is_ours(folder) for folder in folders)


def is_stage(folder: Path) -> bool:
    """Whether `folder` is a stage of an ensemble that `tritone build` wrote."""
    try:
        return is_ours(folder) and mode_of(_config(folder)) in STAGES
    except (OperatorError, UnicodeDecodeError):
        return False


def steps_of(folder: Path) -> set[str]:
    """The names of the models that `folder` is an ensemble of, ours or not; none if it is something else."""
    try:
        return {step.model_name for step in _config(folder).ensemble_scheduling.step}
    except (OSError, OperatorError, UnicodeDecodeError):
        return set()


def shared_memory_bytes(path: str | Path) -> int:
    """The shared memory that the models of a repository take when all their batches are full of the longest audio.

    Chunks of streams count as one second each. Models that we do not run, or cannot be read, count nothing.
    """
    total = 0
    for folder, config in _run_by_us(path):
        try:
            settings = _settings(config)
            a_second = _bytes_per_second(folder, config, settings)
        except (TritoneError, ValueError):  # Triton reports it when it loads the model
            continue
        seconds = 1.0 if mode_of(config) == "streaming" else settings.max_audio_s
        instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
        total += int(instances * config.max_batch_size * seconds * a_second)
    return total


def check_settings(path: str | Path) -> None:
    """Check what may be edited in the `config.pbtxt` of models that we run, before Triton reads it.

    Triton 2.51 ends by a signal, and names no reason, when a model refuses the request that warms it up.

    Raises:
        OperatorError: a file cannot be read, a setting cannot be, or a warm-up is longer than `max_audio_s`.
    """
    for folder in sorted(Path(path).iterdir()):
        if not is_ours(folder):
            continue
        try:
            config = _config(folder)
            if config.backend != "python":
                continue
            settings = _settings(config)
        except (OperatorError, ValueError) as error:  # text that is not UTF-8 is a ValueError
            raise OperatorError(f"{folder / CONFIG}: {error}. Correct it, or build the model again.") from error
        wav = settings.tensor_names[0]
        samples = [int(each.inputs[wav].dims[-1]) for each in config.model_warmup if wav in each.inputs]
        longest_s = max(samples, default=0) / settings.sample_rate if samples else 0.0
        if longest_s > settings.max_audio_s:
            raise OperatorError(
                f"{folder / CONFIG}: max_audio_s is {settings.max_audio_s:g}, but model_warmup sends {longest_s:g} s "
                f"of audio, which the model refuses. Set max_audio_s to at least {longest_s:g}, or remove model_warmup."
            )


def models_of(path: str | Path) -> Iterator[tuple[str, Any, Settings, Bundle]]:
    """The models of a repository that we run: name, configuration, settings and bundle.

    Those that cannot be read are left out: Triton reports them when it loads them.
    """
    for folder, config in _run_by_us(path):
        with suppress(TritoneError, ValueError):
            settings = _settings(config)
            yield folder.name, config, settings, _bundle(folder, settings)


def runtimes_of(path: str | Path) -> set[tuple[str, Device]]:
    """The runtimes that the models of a repository were built for, each with its device; "" for any of the bundle's.

    Models that we do not run, or cannot be read, count nothing.
    """
    return {(parameter(config, "runtime"), device_of(config)) for _, config in _run_by_us(path)}


def backends_of(path: str | Path) -> set[str]:
    """Triton's own backends that run graphs of models, ours or not, by the names of their folders."""
    platforms = {each.platform: each.name for each in natives().values()}
    wanted = {config.backend or platforms.get(config.platform, "") for _, config in _configs(path, of_others=True)}
    return wanted & set(platforms.values())


def features_of(path: str | Path) -> set[str]:
    """What models of a repository want of their server beside backends: `response_cache`, `rate_limiter`."""
    found = set()
    for _, config in _configs(path):
        if config.response_cache.enable:
            found.add("response_cache")
        if any(group.HasField("rate_limiter") for group in config.instance_group):
            found.add("rate_limiter")
    return found


def compiled_searches(path: str | Path) -> set[tuple[str, SearchMode]]:
    """How the models of a repository search unless asked otherwise, where that is compiled: kinds and ways to search.

    Models that do not search, are not ours, or cannot be read, count nothing.
    """
    found: set[tuple[str, SearchMode]] = set()
    for folder, config in _run_by_us(path):
        with suppress(TritoneError, ValueError):  # Triton reports it when it loads the model
            settings = _settings(config)
            kind = kind_of(_bundle(folder, settings))
            if mode_of(config) not in ("features", "acoustic") and kind.compiler(settings.search):
                found.add((kind.name, settings.search))
    return found


def _bytes_per_second(folder: Path, config: Any, settings: Settings) -> float:
    """Bytes that audio needs on its way into a model and, for a stage, out of it."""
    if mode_of(config) not in STAGES:
        return settings.sample_rate * BYTES_PER_SAMPLE  # 0 of a generic model, whose sizes are its clients' matter
    bundle = _bundle(folder, settings)
    manifest = bundle.manifest
    rates = {WAV: float(settings.sample_rate), "features": settings.sample_rate / manifest.features.frame_shift}
    rates[PCM] = 0.0  # sent in place of WAV
    rates |= dict.fromkeys(kind_of(bundle).whole_outputs, 0.0)
    return sum(
        rates.get(tensor.name, 1 / manifest.frame_s)
        * math.prod(np.abs(tensor.dims).tolist())
        * ITEM_BYTES.get(tensor.data_type, 4)
        for tensor in [*config.input, *config.output]
        if list(tensor.dims) != [1]
    )


def _run_by_us(path: str | Path) -> Iterator[tuple[Path, Any]]:
    return ((folder, config) for folder, config in _configs(path) if config.backend == "python")


def _configs(path: str | Path, *, of_others: bool = False) -> Iterator[tuple[Path, Any]]:
    for folder in sorted(Path(path).iterdir()):
        if is_ours(folder) or (of_others and (folder / CONFIG).is_file()):
            with suppress(OperatorError, UnicodeDecodeError):  # Triton reports it when it loads the model
                yield folder, _config(folder)


def _config(folder: Path) -> Any:
    return from_text((folder / CONFIG).read_text(encoding="utf-8"))


def _settings(config: Any) -> Settings:
    return Settings.from_parameters({key: value.string_value for key, value in config.parameters.items()})


def _bundle(folder: Path, settings: Settings) -> Bundle:
    return Bundle.open(version_folder(folder) / settings.bundle)
