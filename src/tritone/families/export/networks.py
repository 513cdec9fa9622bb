"""What only torch can do for an export: graphs of traced networks, and comparisons of what was exported with them."""

from pathlib import Path
from typing import Protocol

import onnx

from tritone.bundle.manifest import Precision, Role, Runtime
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.fused import fused
from tritone.families.export.noise import Distance, Reference, require_noise
from tritone.families.export.torch_program import rounded, save_program
from tritone.families.export.torch_script import save_script
from tritone.families.onnx.choice import even_or_any
from tritone.families.onnx.large import WeightFile
from tritone.families.onnx.writer import export_graph
from tritone.runtime import Graph, open_graph
from tritone.runtime.known import runtimes


class Model(Protocol):
    """The part of an exported model that is used here, see `frame.ExportedModel`."""

    @property
    def graphs(self) -> Graphs: ...

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs: ...


def translated(graph: ExportableGraph, weights: WeightFile) -> onnx.ModelProto:
    """A network as an ONNX graph whose weights are in a file, with its form for even batches if it has one."""
    described = graph.example(), graph.outputs, graph.dynamic, graph.metadata
    model, even = export_graph(graph, *described, weights=weights), graph.evenly()
    return model if even is None else even_or_any(graph, export_graph(even, *described, weights=weights), model)


class Networks:
    """The networks of a model, which what was exported is compared with."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._references: dict[Role, Reference] = {}
        self._narrow: tuple[tuple[Precision, bool], Graphs] | None = None

    def distance(self, role: Role, name: str, opened: Graph) -> Distance:
        """How far a graph is from the float32 network in exact numbers; `name` is for errors.

        Raises:
            ExportError: it counts other frames than the network.
        """
        return self.reference(role).distance(opened, name)

    def require(
        self, role: Role, name: str, found: Distance, precision: Precision, runtime: Runtime = "onnxruntime"
    ) -> None:
        """Make sure that a graph is no farther than its precision explains.

        Raises:
            ExportError: it is, see `require_noise`.
        """
        reference = self.reference(role)
        explained: Precision = "fp32" if reference.graph.precise else precision
        network = reference.graph
        if explained != "fp32":
            key = explained, runtime == "onnxruntime"
            if self._narrow is None or self._narrow[0] != key:
                self._narrow = key, self._model.graphs_in(*key)
            network = self._narrow[1][role]
        require_noise(name, found, reference.noise(explained, network), explained, runtimes()[runtime].written_with)

    def save(
        self, role: Role, runtime: Runtime, precision: Precision, path: Path, *, narrow: bool, check: bool = True
    ) -> Graph:
        """Write a program or a script, and open it.

        Args:
            narrow: store large float32 weights as float16, which programs alone can.
            check: compare what was stored narrow with the network.

        Raises:
            ExportError: it does not reproduce the network.
        """
        graphs = self._model.graphs if precision == "fp32" else self._model.graphs_in(precision, False)
        graph = rounded(graphs[role]) if narrow else graphs[role]
        source = fused(graph)
        described = source.example(), source.outputs, source.dynamic, source.metadata
        if runtime == "torch":
            save_program(source, path, *described, narrow_weights=narrow)
        else:
            save_script(source, path, *described)
        opened = open_graph(path)
        if narrow and check:
            reference = Reference(graph)
            noise = reference.noise("fp32", graph)
            require_noise(
                path.name, reference.distance(opened, path.name), noise, "fp32", runtimes()[runtime].written_with
            )
        return opened

    def reference(self, role: Role) -> Reference:
        """The outputs of a network in exact numbers, computed when it is first asked for."""
        if role not in self._references:
            self._references[role] = Reference(self._model.graphs[role])
        return self._references[role]
