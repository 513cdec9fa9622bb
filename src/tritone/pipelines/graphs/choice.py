"""Which of a bundle's graphs for a role is run: the first that was asked for and can run here.

bundle, role, placement  ->  artifact, opened graph
"""

from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact, Role
from tritone.errors import OperatorError
from tritone.pipelines.graphs.contract import check_graph
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.runtime import Graph, obstacle, open_graph

UNASKED = "engines run only where they are asked for: runtime tensorrt"


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
    graph = open_graph(path, placement.device, placement.threads, split_calls=split_calls, **stamp)
    check_graph(graph, bundle, role, path)
    return artifact, graph


def choose(bundle: Bundle, role: Role, placement: Placement = ON_CPU) -> Artifact:
    """Choose a graph without opening it; raises what `open_chosen` raises for a graph that is not there."""
    runtime, precision, device = placement.runtime, placement.precision, placement.device
    reasons: dict[str, str | None] = {}
    for artifact in bundle.artifacts(role, runtime, precision):  # type: ignore[arg-type]  # checked by Placement
        if artifact.runtime not in reasons:
            # A plan is code for a GPU, and runs where somebody has said so.
            unasked = artifact.runtime == "tensorrt" and runtime is None
            reasons[artifact.runtime] = UNASKED if unasked else obstacle(artifact.runtime, device)
        if reasons[artifact.runtime] is None:
            return artifact
    told = "; ".join(f"runtime {name}: {reason}" for name, reason in reasons.items())
    raise OperatorError(f"{bundle.path}, {role}: device {device} was asked for, but {told}.")
