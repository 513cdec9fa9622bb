"""The function of a bundle whose model is one of Python, as its runtime opens it."""

from pathlib import PurePosixPath

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact
from tritone.errors import BundleError
from tritone.kinds.generic.part import GenericPart
from tritone.runtime import FunctionStamp


def stamp_of(bundle: Bundle, artifact: Artifact) -> FunctionStamp:
    """The function of an artifact of runtime python. Modules are imported from the first folder of its file's name."""
    generic = bundle.manifest.part(GenericPart)
    python = generic.python
    folder, *parts = PurePosixPath(artifact.files[0]).with_suffix("").parts
    if python is None or not parts or not all(part.isidentifier() for part in parts):
        raise BundleError(
            f"{bundle.path}: the function's file {artifact.files[0]!r} must be a module in a folder of the bundle, "
            "such as python/steps.py. Export the function again."
        )
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    has_rows = bool(generic.max_batch_size)
    return FunctionStamp(bundle.path / folder, f"{module}:{python.function}", python.requirements, has_rows)
