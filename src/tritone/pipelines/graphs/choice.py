"""Which of a bundle's graphs for a role is run: the first that was asked for and can run here.

bundle, role, runtime?, precision?, device  ->  artifact, opened graph
"""

from typing import Any, get_args

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Artifact, Precision, Role, Runtime
from tritone.errors import OperatorError
from tritone.pipelines.graphs.contract import check_graph
from tritone.runtime import Graph, obstacle, open_graph

UNASKED = "engines run only where they are asked for: runtime tensorrt"


def open_chosen(
    bundle: Bundle,
    role: Role,
    *,
    runtime: str | None = None,
    precision: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    split_calls: bool = True,
) -> tuple[Artifact, Graph]:
    """Choose a graph, open it and check it against the manifest.

    Args:
        runtime, precision: as in the manifest; None takes the first graph, in the manifest's order, whose runtime can
            run on the device. Engines of TensorRT are taken only where `runtime` says so.
        device, threads, split_calls: see `tritone.runtime.open_graph`.

    Raises:
        BundleError: the bundle has no such graph, or one that cannot be opened or does not fit its manifest.
        OperatorError: no runtime that the bundle has graphs for can run on the device; says why for each.
        ValueError: there is no such runtime, precision or device.
    """
    artifact = choose(bundle, role, runtime, precision, device)
    path = bundle.file(artifact.files[0])
    stamp: dict[str, Any] = {} if artifact.engine is None else {"engine": artifact.engine}
    graph = open_graph(path, device, threads, split_calls=split_calls, **stamp)
    check_graph(graph, bundle, role, path)
    return artifact, graph


def choose(bundle: Bundle, role: Role, runtime: str | None, precision: str | None, device: str) -> Artifact:
    """Choose a graph without opening it; see `open_chosen`."""
    check_names(runtime, precision)
    reasons: dict[str, str | None] = {}
    for artifact in bundle.artifacts(role, runtime, precision):  # type: ignore[arg-type]  # checked just now
        if artifact.runtime not in reasons:
            # A plan is code for a GPU, and runs where somebody has said so.
            unasked = artifact.runtime == "tensorrt" and runtime is None
            reasons[artifact.runtime] = UNASKED if unasked else obstacle(artifact.runtime, device)
        if reasons[artifact.runtime] is None:
            return artifact
    told = "; ".join(f"runtime {name}: {reason}" for name, reason in reasons.items())
    raise OperatorError(f"{bundle.path}, {role}: device {device} was asked for, but {told}.")


def check_names(runtime: str | None, precision: str | None) -> None:
    """Make sure that there are a runtime and a precision of these names; None is fine.

    Raises:
        ValueError: there are not.
    """
    for what, name, known in (("runtime", runtime, get_args(Runtime)), ("precision", precision, get_args(Precision))):
        if name is not None and name not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}, got {name!r}")
