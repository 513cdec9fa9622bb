"""The usual layout: a bundle served offline, chunk by chunk, or for embeddings, is one model with everything in it."""

from tritone.bundle.bundle import Bundle
from tritone.kinds import Mode, kind_of
from tritone.pipelines.graphs.choice import asked_for, candidates
from tritone.repository.config import ModelOptions, model_config
from tritone.repository.folder import ModelFolder
from tritone.repository.search_files import places


def fused(name: str, mode: Mode, bundle: Bundle, options: ModelOptions) -> list[ModelFolder]:
    """The model of a bundle.

    Raises:
        BundleError: there is no graph for the mode, or for the runtime or the precision that was asked for.
        ValueError: the runtime does not run on the device.
    """
    if options.device == "cpu" and options.runtime == "tensorrt":
        raise ValueError("engines of TensorRT run on GPUs alone, but the device is cpu; say --device gpu")
    kind = kind_of(bundle)
    for role in (kind.encoders[mode], *kind.roles(options.search)):
        found = candidates(bundle, role, options.runtime, options.precision)
        asked_for(found, options.runtime, bundle)
    config = model_config(name, mode, options, bundle, files=places(options))
    return [ModelFolder(name=name, mode=mode, config=config, module=mode, bundle=bundle, search=options)]
