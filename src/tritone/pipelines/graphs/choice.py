"""Which of a bundle's graphs for a role is run: the first that was asked for and can run here.

bundle, role, placement  ->  artifact, opened graph
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact, Role
from tritone.errors import BundleError, OperatorError
from tritone.later import later
from tritone.pipelines.graphs.contract import check_graph
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.runtime import Graph, obstacle, open_graph
from tritone.runtime.known import graphs_of, programs_of

if TYPE_CHECKING:
    from tritone.pipelines.generic import function
else:
    function = later("function")


def open_chosen(
    bundle: Bundle, role: Role, placement: Placement = ON_CPU, *, split_calls: bool = True
) -> tuple[Artifact, Graph]:
    """Choose a graph, open it and check it against the manifest.

    Args:
        split_calls: see `tritone.runtime.open_graph`.

    Raises:
        BundleError: the bundle has no such graph, or one that cannot be opened or does not fit its manifest.
        OperatorError: no runtime that the bundle has graphs for can run on the device; says why for each.
    """
    artifact = choose(bundle, role, placement)
    path = bundle.file(artifact.files[0])
    stamp: dict[str, Any] = {} if artifact.engine is None else {"engine": artifact.engine}
    if artifact.runtime == "python":
        stamp["function"] = function.stamp_of(bundle, artifact)
    runtime = placement.runtime or artifact.runtime
    graph = open_graph(path, placement.device, placement.threads, split_calls=split_calls, runtime=runtime, **stamp)
    check_graph(graph, bundle, role, path)
    return artifact, graph


def choose(bundle: Bundle, role: Role, placement: Placement = ON_CPU) -> Artifact:
    """Choose a graph without opening it; raises what `open_chosen` raises for a graph that is not there."""
    runtime, precision, device = placement.runtime, placement.precision, placement.device
    reasons: dict[str, str | None] = {}
    for artifact in candidates(bundle, role, runtime, precision):
        name = runtime or artifact.runtime
        if name not in reasons:
            unasked = runtime is None and _unasked(artifact)
            reasons[name] = unasked or obstacle(name, device)
        if reasons[name] is None:
            return artifact
    listed = "; ".join(f"runtime {name}: {reason}" for name, reason in reasons.items())
    raise OperatorError(f"{bundle.path}, {role}: device {device} was asked for, but {listed}.")


def candidates(
    bundle: Bundle, role: Role, runtime: str | None = None, precision: str | None = None
) -> tuple[Artifact, ...]:
    """The graphs of a bundle for a role that a runtime runs, in a precision; errors as of `Bundle.artifacts`.

    Args:
        runtime, precision: names that there are; None or empty takes any.
    """
    return bundle.artifacts(role, graphs_of(runtime or None), precision or None)  # type: ignore[arg-type]


def asked_for(found: Sequence[Artifact], runtime: str | None, bundle: Bundle) -> tuple[Artifact, ...]:
    """Those of some graphs of a bundle that may run here: programs (as engines are) if their runtime was named.

    Raises:
        BundleError: all of them are programs, and no runtime was named.
    """
    kept = tuple(artifact for artifact in found if runtime or not _unasked(artifact))
    if not kept:
        raise BundleError(f"{bundle.path}, {found[0].role}: {'; '.join(dict.fromkeys(map(_unasked, found)))}.")
    return kept


def _unasked(artifact: Artifact) -> str:
    """Why a graph is no default: it is code, and runs where somebody has said so; empty if it is data."""
    named, programs = artifact.runtime, programs_of(artifact.runtime)
    return f"{programs} run only where they are asked for: runtime {named} (--runtime {named})" if programs else ""
