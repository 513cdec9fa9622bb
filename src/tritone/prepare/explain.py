"""What WHAT is, in words and tables, and the commands that `tritone serve WHAT` stands for. Nothing of it is run."""

import os
import shlex
from dataclasses import replace

from tritone.families.family import Checkpoint
from tritone.families.known import family, foreign, recognise
from tritone.inspection import Inspection, inspect_path
from tritone.installing import pip_install
from tritone.paths import local
from tritone.prepare.prepare import Identified, identify, is_repository, model_name
from tritone.repository.folder import CONFIG
from tritone.storage import parse

SERVE = "tritone serve repository"


def explain(what: str, *, trust: bool = False) -> Inspection:
    """Look at whatever `tritone serve` takes; see `inspect_path` for repositories, bundles and graphs.

    Raises:
        InputError, BundleError, OperatorError: as of `inspect_path` and `identify`.
    """
    if is_repository(what):
        return replace(inspect_path(what), commands=(shlex.join(["tritone", "serve", what]),))
    path = None if parse(what) is not None else local(what)
    if path is not None and os.path.exists(path) and (known := foreign(path)) is not None:
        return Inspection(what=f"{what}: {known.what}", facts={"needed": known.needed})
    if path is not None and os.path.isfile(path):
        found = Identified(what=what, checkpoint=recognise(path))
    elif path is not None and (path / CONFIG).is_file():
        return inspect_path(what)  # one model of a repository
    else:
        found = identify(what, trust=trust)
    if found.checkpoint is None:
        return replace(inspect_path(what), commands=_of_bundle(what))
    checkpoint = found.checkpoint
    if family(checkpoint.family).is_graph:
        return replace(inspect_path(checkpoint.arguments["model"]), commands=commands(found, checkpoint))
    return _of_checkpoint(found, checkpoint)


def commands(found: Identified, checkpoint: Checkpoint) -> tuple[str, ...]:
    """The full commands that serving a checkpoint on a CPU stands for."""
    name = model_name(found)
    if parse(found.what) is None and os.path.realpath(name) == os.path.realpath(found.what):
        name += "-bundle"  # not into the model's own folder
    options = {"precision": "fp32,int8", "lenient": ""} if checkpoint.int8 else {}
    return (checkpoint.command(name, **options), *_of_bundle(name))


def _of_bundle(bundle: str) -> tuple[str, ...]:
    return (shlex.join(["tritone", "build", bundle, "--output", "repository"]), SERVE)


def _of_checkpoint(found: Identified, checkpoint: Checkpoint) -> Inspection:
    size = sum(each.stat().st_size for each in checkpoint.files)
    facts = {
        "exported by": f"tritone export {checkpoint.family}",
        "needs": f"the extra {checkpoint.extra}: {pip_install(checkpoint.extra)}" if checkpoint.extra else "",
        "read": ", ".join(each.name for each in checkpoint.files),
        **found.origin,
    }
    return Inspection(
        what=f"{found.what}: {checkpoint.what}, {size / 1e6:.2f} MB",
        facts={name: value for name, value in facts.items() if value},
        commands=commands(found, checkpoint),
    )
