"""Running exported graphs: one module for each runtime, imported when a graph of its kind is opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tritone.errors import BundleError, MissingDependencyError
from tritone.installing import pip_install
from tritone.runtime.description import GraphDescription, TensorDescription
from tritone.runtime.device import cuda_index
from tritone.runtime.graph import EngineStamp, FunctionStamp, Graph, Slots, TensorSpec

__all__ = [
    "RUNTIMES",
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


@dataclass(frozen=True)
class Runtime:
    """Where a runtime is: our module, with the class of its graphs and a function `obstacle(device)`, and its package.

    `suffix`: of its files. `extra`: of Tritone that brings the package, if it is no dependency. `oldest`: its first
    version that will do. `on_cpu`: whether it runs there, too. `named`: whether it runs files of another runtime, so
    that it is used only where it is asked for by name. `programs`: what its files are, if they are code that the
    runtime executes; they are opened only where the runtime is asked for by name.
    """

    module: str
    graph: str
    suffix: str
    package: str
    extra: str = ""
    oldest: tuple[int, ...] = ()
    on_cpu: bool = True
    named: bool = False
    programs: str = ""


RUNTIMES: Mapping[str, Runtime] = {
    "onnxruntime": Runtime("tritone.runtime.onnx.graph", "OnnxGraph", ".onnx", "onnxruntime"),
    "openvino": Runtime(
        "tritone.runtime.openvino.graph",
        "OpenVinoGraph",
        ".onnx",
        "openvino",
        "openvino",
        (2025, 4),
        named=True,
    ),
    "torch": Runtime("tritone.runtime.torch.graph", "TorchGraph", ".pt2", "torch", "torch", (2, 11)),
    "torchscript": Runtime(
        "tritone.runtime.torch.script",
        "ScriptGraph",
        ".ts",
        "torch",
        "torch",
        (2, 11),
        programs="scripts of torch",
    ),
    "tensorrt": Runtime(
        "tritone.runtime.tensorrt.graph",
        "TensorRtGraph",
        ".plan",
        "torch",
        "torch",
        (2, 11),
        on_cpu=False,
        programs="engines",
    ),
    "python": Runtime(
        "tritone.runtime.python.graph", "PythonGraph", ".py", "packaging", programs="functions of Python"
    ),
}


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
) -> Graph:
    """Open an exported graph, with the runtime that its file name calls for or with one that was asked for.

    Arguments and errors as of `OnnxGraph` and `TorchGraph`.

    Args:
        runtime: one of `RUNTIMES` that is `named`; of any other name, and None, the file's own.
        engine: what an engine was built with, as its manifest says; of no other graph.
        function: which function of a file of Python, as its manifest says; of no other graph.
        packed: as of `OnnxGraph`; of other graphs it says nothing.

    Raises:
        MissingDependencyError: the runtime is not installed.
    """
    fitting = {name: each for name, each in RUNTIMES.items() if each.suffix == path.suffix}
    if not fitting:
        suffixes = dict.fromkeys(each.suffix for each in RUNTIMES.values())
        raise ValueError(f"graphs are files {', '.join(suffixes)}, got {path}")
    own = next(each for each in fitting.values() if not each.named)
    chosen = fitting.get(runtime or "", own)
    if lack := _lack(chosen):
        raise MissingDependencyError(f"{path.name} needs {lack}.")
    stamps = (("engine", engine), ("function", function))
    given: dict[str, Any] = {name: value for name, value in stamps if value is not None}
    if not packed and chosen is RUNTIMES["onnxruntime"]:
        given["packed"] = False
    graph: Graph = getattr(_module(chosen), chosen.graph)(path, device, threads, split_calls=split_calls, **given)
    return graph


def describe_graph(path: Path) -> GraphDescription:
    """What a graph's file says of itself; nothing of it is run. The file is known by its content, not by its name.

    Raises:
        BundleError: it is no file of ONNX, torch.export or TorchScript, or damaged.
        MissingDependencyError: files of torch are read with torch's types, and it is not installed.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    if start == b"PK\x03\x04":
        if lack := _lack(RUNTIMES["torch"]):
            raise MissingDependencyError(f"{path.name} needs {lack}.")
        found: GraphDescription = import_module("tritone.runtime.files.torch_description").describe(path)
        return found
    if path.suffix == RUNTIMES["tensorrt"].suffix:
        raise BundleError(f"{path} is an engine of TensorRT, which shows nothing until TensorRT has loaded it")
    found = import_module("tritone.runtime.files.onnx_description").describe(path)
    return found


def obstacle(name: str, device: str) -> str | None:
    """Why a runtime cannot run on a device here, with the way out, or None if it can.

    Args:
        name: one of `RUNTIMES`.
        device: `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        ValueError: it is no device name.
    """
    runtime, on_cpu = RUNTIMES[name], cuda_index(device) is None
    if lack := _lack(runtime):
        return f"it needs {lack}"
    if on_cpu:  # the CPU is always there, and a runtime takes its time to load
        return None if runtime.on_cpu else "it runs on NVIDIA GPUs alone: device cuda, or --device gpu"
    reason: str | None = _module(runtime).obstacle(device)
    return reason


def _lack(runtime: Runtime) -> str | None:
    if find_spec(runtime.package) is None:
        return f"the package {runtime.package}, which is not installed: {_install(runtime)}"
    try:
        installed = version(runtime.package)
    except PackageNotFoundError:  # under another name, such as onnxruntime-gpu
        return None
    if tuple(int(part) for part in installed.split("+")[0].split(".")[:2] if part.isdigit()) < runtime.oldest:
        oldest = ".".join(map(str, runtime.oldest))
        return f"{runtime.package} {oldest} or newer, installed is {installed}: {_install(runtime)}"
    return None


def _install(runtime: Runtime) -> str:
    return pip_install(runtime.extra) if runtime.extra else f"pip install {runtime.package}"


def _module(runtime: Runtime) -> Any:
    # They take their time to load, and who needs one of them need not wait for the others.
    return import_module(runtime.module)
