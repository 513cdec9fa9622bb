"""Whether models that a build has written can be loaded: a Triton of their own does it before they take their places.

    folder of models, ModelFolder of each  ->  notes on what could not be tried; or a ServerSetupError

What this machine lacks is replaced as far as possible: models for GPUs are loaded on the CPU, and models for a backend
that this Triton does not have by Tritone's own, so that Triton still reads everything else of their configurations.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from tritone.errors import ServerSetupError
from tritone.repository.config import device_of, parameter, to_text
from tritone.repository.folder import CONFIG, FolderWriter, ModelFolder
from tritone.server.checks import GPU
from tritone.server.installation import Installation, find_installation
from tritone.server.options import ServerOptions
from tritone.server.process import TritonServer

START_S = 600.0  # a large model may take minutes


def try_to_load(folder: Path, models: Sequence[ModelFolder], *, server: str | Path | None = None) -> list[str]:
    """Load models once, with one instance each, and end the server again.

    Args:
        folder: has a complete folder of each model.
        models: what was written there.
        server: path of tritonserver; None searches for it.

    Returns:
        What could not be tried as it will be served, and why; for people.

    Raises:
        ServerSetupError: Triton does not load a model; the message has its reason. Or there is no Triton here.
    """
    installation = find_installation(server)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tritone-trial-") as temporary:
        repository = Path(temporary)
        for model in models:
            _place(model, folder / model.name, repository, installation, notes)
        for model in models:
            steps = [step.model_name for step in model.config.ensemble_scheduling.step]
            if missing := [step for step in steps if not (repository / step).is_dir()]:
                notes.append(f"{model.name} was not loaded, since {', '.join(missing)} was not")
                shutil.rmtree(repository / model.name)
        if not any(repository.iterdir()):
            return notes
        options = ServerOptions.on_free_ports(
            log_level="error", start_timeout_s=START_S, drain_s=0, restart=False, overcommit=True
        )
        try:
            with TritonServer(repository, options, server=server):
                pass
        except ServerSetupError as error:
            raise ServerSetupError(
                f"Triton does not accept what was built, so nothing was written: {error}\n"
                "Change the options, or write it all the same with --no-trial."
            ) from error
    return notes


def _place(model: ModelFolder, written: Path, repository: Path, installation: Installation, notes: list[str]) -> None:
    target = repository / model.name
    backend = model.config.backend or "ensemble"
    if model.module is None and backend != "ensemble" and not installation.has_backend(backend):
        if model.stand_in is None:
            notes.append(f"{model.name} was not loaded: the Triton here has no backend {backend}")
            return
        notes.append(
            f"{model.name}: the Triton here has no backend {backend}, so Tritone's own backend loaded the model with "
            "the same configuration"
        )
        FolderWriter(link=True).write(model.stand_in, target)
        config = model.stand_in.config
    else:
        target.mkdir()
        for each in written.iterdir():  # the configuration may change, versions are what was written
            if each.is_dir() and each.name.isdigit():
                (target / each.name).symlink_to(each.resolve(), target_is_directory=True)
            elif each.is_dir():
                shutil.copytree(each, target / each.name)
            else:
                shutil.copyfile(each, target / each.name)
        config = model.config
    changed = _tried(config, model.name, notes)
    if changed is None:
        shutil.rmtree(target)
    else:
        (target / CONFIG).write_text(to_text(changed), encoding="utf-8")


def _tried(config: Any, name: str, notes: list[str]) -> Any:
    """The configuration to load: one instance, on the CPU where there is no GPU; None if that cannot be."""
    changed = pb.ModelConfig()
    changed.CopyFrom(config)
    lacks_gpu = device_of(config) == "gpu" and not GPU.exists()
    if lacks_gpu and (parameter(config, "runtime") == "tensorrt" or config.platform == "tensorrt_plan"):
        notes.append(f"{name} was not loaded: it is for a GPU, and there is none here")
        return None
    if lacks_gpu:
        notes.append(f"{name} was loaded on the CPU, since there is no GPU here")
    del changed.instance_group[1:]
    for group in changed.instance_group:
        group.count = 1
        if lacks_gpu:
            group.kind = pb.ModelInstanceGroup.KIND_CPU
            del group.gpus[:]
    return changed
