"""Runtimes by their pages: those of other packages, bundles with graphs of one that is not here, what pages cost."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from measured_code import imported
from tritone import pages
from tritone.bundle import Bundle
from tritone.errors import BundleError, MissingDependencyError, OperatorError
from tritone.pipelines.graphs.choice import choose, open_chosen
from tritone.pipelines.graphs.placement import Placement
from tritone.runtime import describe_graph, obstacle, open_graph
from tritone.runtime.known import find, fitting, graphs_of, runtimes
from tritone.runtime.runtime import Runtime

PAGE = """
from tritone.runtime.runtime import Runtime
RUNTIME = Runtime(
    name={name!r}, package="scaled", graph="graph:ScaledGraph", suffix={suffix!r}, takes=("quiet",), needs={needs!r},
    describe="graph:described", programs={programs!r}, interface=1,
)
"""
GRAPH = """
import numpy as np
from tritone.runtime import GraphDescription, TensorDescription, TensorSpec
from tritone.runtime.slots import HostGraph

class ScaledGraph(HostGraph):
    '''A number in a file, by which numbers are multiplied.'''

    concurrency = 1

    def __init__(self, path, device="cpu", threads=None, *, split_calls=True, quiet=False):
        self.factor = float(path.read_text())
        self.device, self.quiet = device, quiet
        self.inputs = {"x": TensorSpec(np.dtype("float32"), (None,))}
        self.outputs = {"y": TensorSpec(np.dtype("float32"), (None,))}

    def __call__(self, inputs, outputs):
        return [inputs["x"] * self.factor for _ in outputs]

    def give_back(self, inputs):
        pass

def obstacle(device):
    return "it knows no GPU; use device cpu"

def described(path):
    sides = [(TensorDescription(name, "FP32", ("n",)),) for name in "xy"]
    return GraphDescription(format="a scale", inputs=sides[0], outputs=sides[1], facts={"factor": path.read_text()})
"""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Install a package with a runtime for files `.scale`, each a number."""

    def add(name: str = "scaled", suffix: str = ".scale", needs: str = "numpy", programs: str = "") -> None:
        text = PAGE.format(name=name, suffix=suffix, needs=needs, programs=programs)
        (tmp_path / "scaled").mkdir()
        for module, content in (("__init__", ""), ("runtime", text), ("graph", GRAPH)):
            (tmp_path / "scaled" / f"{module}.py").write_text(content, encoding="utf-8")
        point = EntryPoint("scaled", "scaled.runtime:RUNTIME", Runtime.GROUP)
        monkeypatch.setattr(pages, "entry_points", lambda group: [point] if group == Runtime.GROUP else [])

    monkeypatch.syspath_prepend(tmp_path)
    runtimes.cache_clear()
    find.cache_clear()
    yield add
    for each in [name for name in sys.modules if name.partition(".")[0] == "scaled"]:
        del sys.modules[each]
    runtimes.cache_clear()
    find.cache_clear()


def test_a_graph_of_another_packages_runtime_is_described_and_run(install: Callable[..., None], tmp_path: Path) -> None:
    install()
    path = tmp_path / "three.scale"
    path.write_text("3", encoding="utf-8")
    graph = open_graph(path, packed=False, quiet=True)
    (found,) = graph({"x": np.array([1, 2], np.float32)}, ["y"])
    assert found.tolist() == [3, 6]
    assert graph.quiet  # type: ignore[attr-defined]
    described = describe_graph(path)
    assert (described.format, described.facts) == ("a scale", {"factor": "3"})
    assert [*runtimes()][-1] == "scaled"
    assert (obstacle("scaled", "cpu"), obstacle("scaled", "cuda")) == (None, "it knows no GPU; use device cpu")


def test_a_file_of_ours_stays_with_our_runtime_unless_another_is_asked_for(install: Callable[..., None]) -> None:
    install(suffix=".onnx")
    assert fitting(Path("model.onnx")).name == "onnxruntime"
    assert fitting(Path("model.onnx"), "scaled").name == "scaled"


def test_what_another_packages_runtime_needs_is_told_as_of_ours(install: Callable[..., None], tmp_path: Path) -> None:
    install(needs="a_package_that_is_not_there")
    with pytest.raises(MissingDependencyError, match=r"three\.scale needs .* pip install a_package_that_is_not_there"):
        open_graph(tmp_path / "three.scale")


def test_a_bundle_is_served_by_another_packages_runtime(
    install: Callable[..., None], tmp_path: Path, toy_bundle: Path
) -> None:
    install(programs="scales")
    bundle = with_graph_of("scaled", toy_bundle, tmp_path / "bundle")
    assert choose(bundle, "encoder").runtime == "onnxruntime"  # nobody asked for a program
    assert choose(bundle, "encoder", Placement(runtime="scaled")).runtime == "scaled"


def test_a_bundle_with_graphs_of_a_runtime_that_is_not_here_runs_by_its_others(
    tmp_path: Path, toy_bundle: Path
) -> None:
    bundle = with_graph_of("elsewhere", toy_bundle, tmp_path / "bundle")
    artifact, _ = open_chosen(bundle, "encoder")
    assert artifact.runtime == "onnxruntime"
    (first, *_) = bundle.artifacts("encoder", "elsewhere")
    alone = Bundle(bundle.path, bundle.manifest.model_copy(update={"artifacts": (first,)}))
    with pytest.raises(OperatorError, match="runtime elsewhere: there is no such runtime here, but onnxruntime, torch"):
        choose(alone, "encoder")


def test_a_file_is_not_run_as_what_its_manifest_does_not_say(tmp_path: Path, toy_bundle: Path) -> None:
    """A script or a function that is given as a graph in ONNX would run without being asked for."""
    bundle = with_graph_of("onnxruntime", toy_bundle, tmp_path / "bundle", "encoder.py")
    with pytest.raises(BundleError, match=r"encoder\.py is no graph for runtime onnxruntime, whose files are \.onnx"):
        open_chosen(bundle, "encoder")


def test_the_name_of_a_runtime_in_a_manifest_is_a_word(tmp_path: Path, toy_bundle: Path) -> None:
    with pytest.raises(BundleError, match=r"runtime"):
        with_graph_of("../elsewhere", toy_bundle, tmp_path / "bundle")


def with_graph_of(runtime: str, source: Path, folder: Path, file: str = "encoder.scale") -> Bundle:
    """A bundle whose first encoder is for another runtime."""
    folder.mkdir()
    for each in source.iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    (folder / file).write_text("3", encoding="utf-8")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    sha256 = "0" * 64
    manifest["artifacts"].insert(0, {"role": "encoder", "runtime": runtime, "files": [file], "sha256": [sha256]})
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return Bundle.open(folder)


def test_a_runtime_that_is_asked_for_and_not_here_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=re.escape("runtime must be one of onnxruntime, torch, torchscript, tensorrt")):
        Placement(runtime="tensorflow")
    assert "there is no such runtime here, but onnxruntime" in str(obstacle("tensorflow", "cpu"))
    assert graphs_of("tensorflow") == "tensorflow"


def test_a_graph_is_opened_without_the_pages_of_other_runtimes(toy_bundle: Path) -> None:
    modules, packages = imported(
        f"from pathlib import Path\nfrom tritone.runtime import open_graph\n"
        f"open_graph(Path({str(toy_bundle / 'encoder.onnx')!r}))"
    )
    assert [name for name in modules if re.match(r"tritone\.runtime\.(openvino|python|tensorrt|torch)", name)] == []
    assert "torch" not in packages


def test_pages_import_no_runtime() -> None:
    _, packages = imported("from tritone.runtime.known import runtimes\nassert len(runtimes()) == 6")
    assert packages.isdisjoint({"torch", "onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx_bindings"})
