"""The models of an ensemble: bundles that are there, and bundles of its Python functions, made for it."""

from collections.abc import Mapping
from pathlib import Path

from tritone.bundle.bundle import Bundle, shipped_bundles
from tritone.errors import BundleError, ExportError, InputError, MissingDependencyError
from tritone.families.graphs.proposal import FUNCTION_ROWS
from tritone.families.known import family
from tritone.pipelines.wiring.spec import EnsembleSpec, Part


def bundles_of(spec: EnsembleSpec, folder: Path, made: Path) -> dict[str, Bundle]:
    """The bundle of each step and of each model that is called, by name.

    Args:
        folder: of the ensemble's file, from which paths count.
        made: where bundles of functions are written.

    Raises:
        InputError: a step has no usable bundle or function; the message names the step.
        MissingDependencyError: a function needs a package that is not here.
    """
    parts: Mapping[str, Part] = {**spec.models, **spec.steps}
    found = {}
    for name, part in parts.items():
        try:
            found[name] = _bundle(name, part, folder, made)
        except MissingDependencyError as error:
            raise MissingDependencyError(f"step {name}: {error}") from error
        except (BundleError, ExportError, ValueError) as error:
            raise InputError(f"step {name}: {error}") from error
    return found


def _bundle(name: str, part: Part, folder: Path, made: Path) -> Bundle:
    if part.python is not None:
        made_of: Bundle = family("python").exporter({})(
            target=part.python,
            folder=folder,
            output=made / name,
            max_batch_size=part.max_batch_size or FUNCTION_ROWS,
            include=[Path(each) for each in part.include],
            requirements=part.requirements,
        )
        return made_of
    path = folder / (part.bundle or "")
    bundle = Bundle.open(path if path.is_dir() or part.bundle not in shipped_bundles() else part.bundle)
    bundle.verify()
    return bundle
