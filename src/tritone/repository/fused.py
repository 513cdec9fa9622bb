"""The usual layout: a bundle served offline, chunk by chunk, or for embeddings, is one model with everything in it."""

from tritone.backend.settings import Mode
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.pipelines.graphs.choice import asked_for
from tritone.pipelines.searching.base import roles_for
from tritone.repository.config import ModelOptions, model_config
from tritone.repository.folder import ModelFolder
from tritone.repository.search_files import places

ROLES: dict[Mode, Role] = {"offline": "encoder", "streaming": "streaming_encoder", "embedding": "encoder"}


def fused(name: str, mode: Mode, bundle: Bundle, options: ModelOptions) -> list[ModelFolder]:
    """The model of a bundle.

    Raises:
        BundleError: there is no graph for the mode, or for the runtime or the precision that was asked for.
        ValueError: the runtime does not run on the device.
    """
    if options.device == "cpu" and options.runtime == "tensorrt":
        raise ValueError("engines of TensorRT run on GPUs alone, but the device is cpu; say --device gpu")
    roles = () if mode == "embedding" else roles_for(bundle, options.search)
    for role in (ROLES[mode], *roles):
        found = bundle.artifacts(role, options.runtime or None, options.precision or None)  # type: ignore[arg-type]
        asked_for(found, options.runtime, bundle)
    manifest = bundle.manifest
    config = model_config(
        name,
        mode,
        options,
        sample_rate=manifest.sample_rate,
        files=places(options),
        dim=manifest.encoder.output_dim if mode == "embedding" else 0,
    )
    return [ModelFolder(name=name, mode=mode, config=config, module=mode, bundle=bundle, search=options)]
