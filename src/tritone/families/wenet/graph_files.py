"""The graphs of a model as the files of a bundle, for each runtime and precision, checked as they are written.

    {role: torch module}  ->  encoder.onnx, weights.bin, encoder.int8.onnx, weights.int8.bin, encoder.fp16.pt2, ...

Graphs in float32 must reproduce the torch network. Those in other precisions cannot; their drift is measured on real
audio and limited.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from tritone.audio import Waveform
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import LEFT_FRAMES, Artifact, Precision, Role, Runtime, WeightStorage
from tritone.errors import ExportError
from tritone.families.onnx import export_graph, named, save_graphs
from tritone.families.onnx_int8 import quantise_products
from tritone.families.torch_program import rounded, save_program
from tritone.families.wenet.check import difference, zero_states
from tritone.families.wenet.drift import Drift, decoder_drift, encoder_drift, read_recordings
from tritone.families.wenet.graphs import OfflineGraph, StreamingGraph
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.runtime import Graph, open_graph

MAX_DIFFERENCE = 1e-3  # natural-log units; float32 noise of a deep model stays one to two orders below
PRECISIONS: Mapping[Runtime, tuple[Precision, ...]] = {
    "onnxruntime": ("fp32", "fp16", "int8"),
    "torch": ("fp32", "fp16", "bf16"),
}
"""What graphs for a runtime can compute in. onnxruntime has hardly a kernel for bf16, torch no product of int8 here."""

AnyGraph: TypeAlias = OfflineGraph | StreamingGraph | RescoringGraph
Graphs: TypeAlias = Mapping[Role, AnyGraph]


def plan(runtimes: Sequence[Runtime], precisions: Sequence[Precision]) -> dict[Runtime, tuple[Precision, ...]]:
    """Which precisions to write for each runtime: those asked for that it can have, in the order given.

    Raises:
        ValueError: a runtime can have none of them, or a precision is for none of the runtimes.
    """
    possible = "; ".join(f"{runtime} has {', '.join(PRECISIONS[runtime])}" for runtime in runtimes)
    chosen = {runtime: tuple(each for each in precisions if each in PRECISIONS[runtime]) for runtime in runtimes}
    for runtime, found in chosen.items():
        if not found:
            raise ValueError(f"no graph for {runtime} can be in {' or '.join(precisions)}: {possible}")
    for precision in precisions:
        if not any(precision in found for found in chosen.values()):
            raise ValueError(f"no graph for {' or '.join(runtimes)} can be in {precision}: {possible}")
    return chosen


@dataclass(frozen=True)
class DriftCheck:
    """What graphs in other precisions than float32 are held against.

    `audio`: see `read_recordings`. `limit`: of `Drift.moved`. `force`: write what is beyond it all the same.
    """

    audio: Path | None
    limit: float
    force: bool
    blank_id: int


@dataclass
class GraphFiles:
    """Writes the graphs of one bundle.

    `graphs` compute in float32 and are what all others are compared with; `in_precision(precision, explicit)` makes
    the same in another one, see `AsrModel.in_precision`.
    """

    writer: BundleWriter
    graphs: Graphs
    in_precision: Callable[[Precision, bool], Graphs]
    weight_storage: WeightStorage
    drift_check: DriftCheck
    progress: Callable[[str], None]
    artifacts: list[Artifact] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    drifts: dict[str, Drift] = field(default_factory=dict)

    def write(self, runtime: Runtime, precisions: Sequence[Precision]) -> None:
        """Write all graphs for a runtime."""
        for precision in precisions:
            if runtime == "torch":
                self._write_torch(precision)
            else:
                self._write_onnx(precision)

    def _write_onnx(self, precision: Precision) -> None:
        """Write ONNX graphs with their shared weights; the translation is checked before weights are compressed."""
        folder, infix = self.writer.folder, "" if precision == "fp32" else f".{precision}"
        models: dict[Role, onnx.ModelProto] = {}
        if precision == "fp16":
            for role, graph in self.in_precision(precision, True).items():
                self.progress(f"tracing {role}{infix}.onnx")
                models[role] = export_graph(graph, *traced(graph))
        elif precision == "int8":
            for role, model in self._exact_onnx.items():
                models[role] = quantise_products(model, keep=named(model, self._constants))
        else:
            for role, model in self._exact_onnx.items():
                models[role] = onnx.ModelProto()
                models[role].CopyFrom(model)
        weights = f"weights{infix}.bin"
        # What is left in float32 of an fp16 graph is meant to be.
        storage = "fp32" if precision == "fp16" else self.weight_storage
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
                    weight_storage=self.weight_storage if precision == "fp32" else precision,
                )
            )

    @cached_property
    def _exact_onnx(self) -> dict[Role, onnx.ModelProto]:
        """The float32 graphs with their weights as they are."""
        models: dict[Role, onnx.ModelProto] = {}
        for role, graph in self.graphs.items():
            name = f"{role}.onnx"
            self.progress(f"tracing {name}")
            models[role] = export_graph(graph, *traced(graph))
            path = self.writer.folder / f".{name}"
            path.write_bytes(models[role].SerializeToString())
            _require_exact(name, difference(graph, open_graph(path), name), "torch, onnx and onnxruntime")
            path.unlink()
        return models

    def _write_torch(self, precision: Precision) -> None:
        """Write programs, each of which holds its own weights."""
        graphs = self.graphs if precision == "fp32" else self.in_precision(precision, False)
        narrow = precision == "fp32" and self.weight_storage != "fp32"
        stored: WeightStorage = "fp16" if narrow else precision
        for role, graph in graphs.items():
            name = f"{role}.pt2" if precision == "fp32" else f"{role}.{precision}.pt2"
            self.progress(f"tracing {name}")
            source = rounded(graph) if narrow else graph
            save_program(source, self.writer.folder / name, *traced(source), narrow_weights=narrow)
            opened = open_graph(self.writer.folder / name)
            self._measure(role, name, opened, precision)
            _require_exact(name, difference(source, opened, name), "torch")
            self.artifacts.append(
                self.writer.artifact(role, name, runtime="torch", precision=precision, weight_storage=stored)
            )

    def _measure(self, role: Role, name: str, opened: Graph, precision: Precision) -> None:
        """Compare an opened graph with float32, and refuse it if it drifts too far."""
        graph = self.graphs[role]
        self.differences[name] = difference(graph, opened, name)
        if precision == "fp32":
            return
        if not math.isfinite(self.differences[name]):
            raise ExportError(f"{name}: numbers of this model do not fit into {precision}; export another one.")
        self.progress(f"checking {name} on audio")
        check = self.drift_check
        if isinstance(graph, RescoringGraph):
            offline = self.graphs["encoder"]
            assert isinstance(offline, OfflineGraph)
            drift = decoder_drift(graph, opened, offline, check.blank_id, self._recordings)
        else:
            drift = encoder_drift(graph, opened, self._recordings)
        self.drifts[name] = drift
        if not math.isfinite(drift.moved):
            raise ExportError(f"{name}: numbers of this model do not fit into {precision}; export another one.")
        if drift.moved > check.limit and not check.force:
            raise ExportError(
                f"{name} drifts too far from float32 on audio: {drift}; the limit is {check.limit:g}. Leave "
                f"{precision} out, check with audio of the model's own language (--check-audio), or accept it "
                "(--max-drift, --force)."
            )

    @cached_property
    def _recordings(self) -> list[Waveform]:
        offline = self.graphs["encoder"]
        assert isinstance(offline, OfflineGraph)
        return read_recordings(self.drift_check.audio, offline.sample_rate)

    @cached_property
    def _constants(self) -> list[np.ndarray]:
        """The matrices of the feature front end."""
        offline = self.graphs["encoder"]
        front_end = offline.fbank if isinstance(offline, OfflineGraph) else None
        return [buffer.numpy() for buffer in front_end.buffers()] if isinstance(front_end, nn.Module) else []


def _require_exact(name: str, difference: float, packages: str) -> None:
    if not difference <= MAX_DIFFERENCE:
        raise ExportError(
            f"{name} does not reproduce the torch network: log-probs differ by {difference:.2g}, the limit is "
            f"{MAX_DIFFERENCE:g}. Please report this with the versions of {packages}."
        )


def traced(graph: AnyGraph) -> tuple[dict[str, Tensor], list[str], dict[str, dict[int, str]], dict[str, str]]:
    """Example inputs, names of the outputs, dynamic axes and metadata, as exporters want them.

    Sizes of dynamic axes are traced as unknown ones: they differ from each other, and from 0 and 1.
    """
    batch = 3
    metadata = {"producer": "tritone", "contract": type(graph).__name__}
    dynamic: dict[str, dict[int, str]]
    if isinstance(graph, RescoringGraph):
        inputs = {
            "encoder_out": torch.zeros(batch, 11, graph.encoder_dim),
            "num_frames": torch.tensor([11, 5, 2]),
            "hypotheses": torch.zeros(batch, 4, 7, dtype=torch.int64),
            "num_tokens": torch.full((batch, 4), 5),
        }
        dynamic = {
            "encoder_out": {0: "batch", 1: "frames"},
            "num_frames": {0: "batch"},
            "hypotheses": {0: "batch", 1: "n", 2: "length"},
            "num_tokens": {0: "batch", 1: "n"},
        }
        return inputs, graph.outputs, dynamic, metadata
    outputs = ["log_probs", "num_frames", "encoder_out"]
    if isinstance(graph, OfflineGraph):
        samples = graph.min_samples + 30011
        inputs = {"waveform": torch.zeros(batch, samples), "num_samples": torch.tensor([samples, 20000, 5000])}
        dynamic = {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}
        return inputs, outputs, dynamic, metadata
    samples, left_frames = graph.window_for(6), 10
    inputs = {
        "waveform": torch.zeros(batch, samples),
        "num_samples": torch.full((batch,), samples),
        **zero_states(graph, batch, left_frames),
    }
    outputs += [f"next_{name}" for name in graph.state_shapes]
    dynamic = {name: {0: "batch"} for name in inputs}
    dynamic["waveform"][1] = "samples"
    dynamic["att_cache"][graph.state_shapes["att_cache"].index(LEFT_FRAMES) + 1] = LEFT_FRAMES
    return inputs, outputs, dynamic, metadata
