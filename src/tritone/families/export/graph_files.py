"""The graphs of a model as the files of a bundle, for each runtime and precision, checked as they are written.

    {role: ExportableGraph}  ->  encoder.onnx, weights.bin, encoder.int8.onnx, weights.int8.bin, encoder.fp16.pt2, ...

Graphs in float32 must reproduce the torch network. Those in other precisions cannot; their drift is measured on real
audio and limited.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import onnx

from tritone.audio import Waveform
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import Artifact, Precision, Role, Runtime
from tritone.errors import ExportError
from tritone.families.export.drift import Movement, read_recordings
from tritone.families.export.exportable import ExportableGraph, Graphs, difference
from tritone.families.export.fused import fused
from tritone.families.export.options import PRECISIONS, ExportOptions
from tritone.families.export.torch_program import rounded, save_program
from tritone.families.export.torch_script import save_script
from tritone.families.onnx.choice import even_or_any
from tritone.families.onnx.int8 import quantise_products
from tritone.families.onnx.large import WeightFile, beside
from tritone.families.onnx.writer import export_graph, named, save_graphs
from tritone.runtime import RUNTIMES, Graph, open_graph

WEIGHTS = ".weights"  # of all graphs, until their files are written
MAX_DIFFERENCE = 1e-3  # natural-log units, or a share; float32 noise of a deep model stays one to two orders below


class Model(Protocol):
    """The part of an exported model that is used here, see `frame.ExportedModel`."""

    sample_rate: int

    @property
    def graphs(self) -> Graphs: ...

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs: ...

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Movement: ...


@dataclass
class GraphFiles:
    """Writes the graphs of one bundle.

    `differences` and `drifts`: by file, see `ExportReport`.
    """

    writer: BundleWriter
    model: Model
    options: ExportOptions
    artifacts: list[Artifact] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    drifts: dict[str, Movement] = field(default_factory=dict)
    _weights: WeightFile = field(init=False, repr=False)
    _exact: dict[Role, float] = field(default_factory=dict, init=False)

    def write(self) -> None:
        """Write all graphs that the options ask for, and say which of them cannot be had."""
        with WeightFile(self.writer.folder / WEIGHTS) as self._weights:
            try:
                self._write_planned()
            finally:
                self._weights.path.unlink()

    def _write_planned(self) -> None:
        planned = self.options.planned
        if self.options.check and any(set(precisions) - {"fp32"} for precisions in planned.values()):
            _ = self._recordings  # what cannot be read is found out before anything is traced
        for runtime, made in planned.items():
            if left_out := [each for each in self.options.precisions if each not in made]:
                had = f"{runtime} has {', '.join(PRECISIONS[runtime])}"
                self.options.progress(f"{had}: {', '.join(left_out)} is left out there")
        for runtime, precisions in planned.items():
            for precision in precisions:
                if runtime == "onnxruntime":
                    self._write_onnx(precision)
                else:
                    self._write_torch(runtime, precision)

    def _write_onnx(self, precision: Precision) -> None:
        """Write ONNX graphs with their shared weights; the translation is checked before weights are compressed."""
        folder, infix = self.writer.folder, "" if precision == "fp32" else f".{precision}"
        models: dict[Role, onnx.ModelProto] = {}
        if precision == "fp16":
            for role, graph in self.model.graphs_in(precision, True).items():
                self.options.progress(f"tracing {role}{infix}.onnx")
                models[role] = _translated(graph, self._weights)
        else:
            for role, model in self._exact_onnx.items():
                graph = self.model.graphs[role]
                if precision == "int8" and graph.quantised:
                    self.options.progress(f"making int8 of {role}.onnx")
                    keep = named(model, self._constants)
                    models[role] = quantise_products(model, keep, single_rows=graph.single_rows_in_int8)
                else:
                    models[role] = onnx.ModelProto()
                    models[role].CopyFrom(model)
        weights = f"weights{infix}.bin"
        # What is left in float32 of an fp16 graph is meant to be.
        storage = "fp32" if precision == "fp16" else self.options.weight_storage
        self.options.progress(f"writing {weights}")
        save_graphs(
            {f"{role}{infix}.onnx": model for role, model in models.items()}, folder, weights, storage, self._constants
        )
        for role in models:
            name = f"{role}{infix}.onnx"
            self._measure(role, name, open_graph(folder / name), precision)
            self.artifacts.append(
                self.writer.artifact(
                    role,
                    name,
                    weights,
                    precision=precision,
                    weight_storage=self.options.weight_storage if precision == "fp32" else precision,
                )
            )

    @cached_property
    def _exact_onnx(self) -> dict[Role, onnx.ModelProto]:
        """The float32 graphs with their weights as they are."""
        models: dict[Role, onnx.ModelProto] = {}
        for role, graph in self.model.graphs.items():
            name = f"{role}.onnx"
            self.options.progress(f"tracing {name}")
            models[role] = _translated(graph, self._weights)
            if not self.options.check:
                continue
            self.options.progress(f"checking {name}")
            path = self.writer.folder / f".{name}"
            path.write_bytes(beside(models[role]).SerializeToString())
            self._exact[role] = difference(graph, open_graph(path), name)
            _require_exact(name, self._exact[role], "torch, onnx and onnxruntime")
            path.unlink()
        return models

    def _write_torch(self, runtime: Runtime, precision: Precision) -> None:
        """Write programs or scripts, each of which holds its own weights; only programs can store them narrow."""
        graphs = self.model.graphs if precision == "fp32" else self.model.graphs_in(precision, False)
        narrow = runtime == "torch" and precision == "fp32" and self.options.weight_storage != "fp32"
        infix, suffix = "" if precision == "fp32" else f".{precision}", RUNTIMES[runtime].suffix
        for role, graph in graphs.items():
            name = f"{role}{infix}{suffix}"
            path = self.writer.folder / name
            self.options.progress(f"tracing {name}")
            source = fused(rounded(graph) if narrow else graph)
            described = source.example(), source.outputs, source.dynamic, source.metadata
            if runtime == "torch":
                save_program(source, path, *described, narrow_weights=narrow)
            else:
                save_script(source, path, *described)
            opened = open_graph(path)
            self._measure(role, name, opened, precision)
            if self.options.check:
                _require_exact(name, difference(source, opened, name), "torch")
            self.artifacts.append(
                self.writer.artifact(
                    role,
                    name,
                    runtime=runtime,
                    precision=precision,
                    weight_storage="fp16" if narrow else precision,
                )
            )

    def _measure(self, role: Role, name: str, opened: Graph, precision: Precision) -> None:
        """Compare an opened graph with float32, and refuse it if it drifts too far."""
        if not self.options.check:
            return
        if precision == "fp32" and name == f"{role}.onnx" and self.options.weight_storage == "fp32":
            self.differences[name] = self._exact[role]  # of the same graph with the same weights
            return
        self.differences[name] = difference(self.model.graphs[role], opened, name)
        if precision == "fp32":
            return
        if self.model.graphs[role].precise:
            _require_exact(name, self.differences[name], "torch and onnxruntime")
            return
        if not math.isfinite(self.differences[name]):
            raise ExportError(f"{name}: numbers of this model do not fit into {precision}; export another one.")
        self.options.progress(f"checking {name} on audio")
        drift = self.model.drift(role, opened, self._recordings)
        self.drifts[name] = drift
        if not math.isfinite(drift.moved):
            raise ExportError(f"{name}: numbers of this model do not fit into {precision}; export another one.")
        limit = self.options.drift_limit
        if drift.moved > limit and not self.options.force:
            raise ExportError(
                f"{name} drifts too far from float32 on audio: {drift}; the limit is {limit:g}. Leave "
                f"{precision} out, check with audio of the model's own language (--check-audio), or accept it "
                "(--max-drift, --force)."
            )

    @cached_property
    def _recordings(self) -> list[Waveform]:
        return read_recordings(self.options.check_audio, self.model.sample_rate)

    @cached_property
    def _constants(self) -> list[np.ndarray]:
        return [array for graph in self.model.graphs.values() for array in graph.constants]


def _translated(graph: ExportableGraph, weights: WeightFile) -> onnx.ModelProto:
    described = graph.example(), graph.outputs, graph.dynamic, graph.metadata
    model, even = export_graph(graph, *described, weights=weights), graph.evenly()
    return model if even is None else even_or_any(graph, export_graph(even, *described, weights=weights), model)


def _require_exact(name: str, difference: float, packages: str) -> None:
    if not difference <= MAX_DIFFERENCE:
        raise ExportError(
            f"{name} does not reproduce the torch network: results differ by {difference:.2g}, the limit is "
            f"{MAX_DIFFERENCE:g}. Please report this with the versions of {packages}."
        )
