"""Running exported graphs: a folder for each runtime, of which a page alone is imported until a graph is opened."""

from pathlib import Path
from typing import Any

from tritone.errors import BundleError
from tritone.runtime.description import GraphDescription, TensorDescription
from tritone.runtime.device import cuda_index
from tritone.runtime.graph import EngineStamp, FunctionStamp, Graph, Slots, TensorSpec
from tritone.runtime.known import find, fitting, runtimes

__all__ = [
    "EngineStamp",
    "FunctionStamp",
    "Graph",
    "GraphDescription",
    "Slots",
    "TensorDescription",
    "TensorSpec",
    "describe_graph",
    "obstacle",
    "open_graph",
]


def open_graph(
    path: Path,
    device: str = "cpu",
    threads: int | None = None,
    *,
    split_calls: bool = True,
    runtime: str | None = None,
    engine: EngineStamp | None = None,
    function: FunctionStamp | None = None,
    packed: bool = True,
    quiet: bool = False,
) -> Graph:
    """Open an exported graph, with the runtime that its file name calls for or with one that was asked for.

    Arguments and errors as of `OnnxGraph` and `TorchGraph`.

    Args:
        runtime: one of `runtimes()`; None takes the file's own. What is in a bundle is opened by the one that its
            manifest says, or another that runs those graphs, so that no file runs as what nobody asked for.
        engine: what an engine was built with, as its manifest says; of no other graph.
        function: which function of a file of Python, as its manifest says; of no other graph.
        packed, quiet: as of `OnnxGraph`; of other graphs they say nothing.

    Raises:
        BundleError: the runtime that was asked for has other files.
        MissingDependencyError: the runtime is not installed.
        ValueError: no runtime that is here has such files.
    """
    chosen = fitting(path, runtime)
    chosen.require(path)
    stamps, hints = {"engine": engine, "function": function}, {"packed": packed, "quiet": quiet}
    given: dict[str, Any] = {name: value for name, value in stamps.items() if value is not None}
    given |= {name: value for name, value in hints.items() if name in chosen.takes}
    graph: Graph = chosen.look_up(chosen.graph)(path, device, threads, split_calls=split_calls, **given)
    return graph


def describe_graph(path: Path) -> GraphDescription:
    """What a graph's file says of itself; nothing of it is run. The file is known by its content, not by its name.

    Raises:
        BundleError: no runtime that is here has such files, or it is damaged.
        MissingDependencyError: files of torch are read with torch's types, and it is not installed.
    """
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    fit = [
        each
        for each in runtimes().values()
        if (each.describe and start.startswith(each.starts)) or (each.opaque and each.suffix == path.suffix)
    ]
    if not fit:
        raise BundleError(f"{path} is no file of a runtime that is here: {', '.join(runtimes())}")
    known = max(fit, key=lambda each: (bool(each.starts), each.suffix == path.suffix))
    if known.opaque:
        raise BundleError(f"{path} is {known.opaque}")
    if known.starts:
        known.require(path)
    try:
        found: GraphDescription = known.look_up(known.describe)(path)
    except BundleError as error:
        if path.suffix in {each.suffix for each in runtimes().values()}:
            raise
        here = ", ".join(runtimes())
        raise BundleError(f"{error} And no runtime that is here has files {path.suffix}: there is {here}.") from error
    return found


def obstacle(name: str, device: str) -> str | None:
    """Why a runtime cannot run on a device here, with the way out, or None if it can.

    Args:
        name: one of `runtimes()`; of any other it says that there is none.
        device: `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        ValueError: it is no device name.
    """
    on_cpu = cuda_index(device) is None
    if (runtime := find(name)) is None:
        return f"there is no such runtime here, but {', '.join(runtimes())}"
    if lack := runtime.lack:
        return f"it needs {lack}"
    if on_cpu:  # the CPU is always there, and a runtime takes its time to load
        return None if runtime.on_cpu else "it runs on NVIDIA GPUs alone: device cuda, or --device gpu"
    reason: str | None = runtime.look_up(runtime.obstacle)(device)
    return reason
