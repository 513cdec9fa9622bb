"""The graphs of a model as the files of a bundle, for each runtime and precision, checked as they are written.

    {role: ExportableGraph}  ->  encoder.onnx, weights.bin, encoder.int8.onnx, weights.int8.bin, encoder.fp16.pt2, ...

Graphs in float32 must reproduce the torch network, and those in half precisions must be no farther from it than their
rounding explains (see `noise`). What a precision then changes on real audio, its drift, is limited. A precision that is
refused takes no other with it.

Where a model has no network of torch, its float32 graphs are what the others are compared with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnx

from tritone.audio import Waveform
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import Artifact, Precision, Role, Runtime
from tritone.errors import ExportError
from tritone.families.export.drift import Movement, read_recordings
from tritone.families.export.options import ExportOptions, precisions_of
from tritone.families.onnx.int8 import LARGEST_FINE_LEVEL, LARGEST_LEVEL, quantise_products
from tritone.families.onnx.large import WeightFile, beside
from tritone.families.onnx.writer import named, save_graphs
from tritone.runtime import Graph, open_graph
from tritone.runtime.known import runtimes

if TYPE_CHECKING:
    from tritone.families.export.networks import Networks
    from tritone.families.export.noise import Distance

WEIGHTS = ".weights"  # of all graphs, until their files are written


class Part(Protocol):
    """What is known of the graph of a role whatever it is made with, see `ExportableGraph`."""

    @property
    def quantised(self) -> bool: ...

    @property
    def single_rows_in_int8(self) -> bool: ...

    @property
    def fine_int8(self) -> bool: ...

    @property
    def precise(self) -> bool: ...

    @property
    def constants(self) -> Sequence[np.ndarray]: ...


class Model(Protocol):
    """The part of an exported model that is used here, see `frame.ExportedModel`."""

    sample_rate: int

    @property
    def parts(self) -> Mapping[Role, Part]: ...

    @property
    def networks(self) -> "Networks | None": ...

    def onnx_graph(self, role: Role, precision: Precision, weights: WeightFile) -> onnx.ModelProto: ...

    def prepare_drift(self, recordings: Sequence[Waveform]) -> None: ...

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Movement: ...


class RefusedError(ExportError):
    """A graph cannot be had in a precision, or changes more in it on audio than is allowed."""


@dataclass
class GraphFiles:
    """Writes the graphs of one bundle.

    `differences` and `drifts`: by file, see `ExportReport`. `refused`: what became of precisions that cannot be had.
    """

    writer: BundleWriter
    model: Model
    options: ExportOptions
    artifacts: list[Artifact] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)
    drifts: dict[str, Movement] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    _weights: WeightFile = field(init=False, repr=False)
    _exact: dict[Role, "Distance"] = field(default_factory=dict, init=False)

    def write(self) -> None:
        """Write all graphs that the options ask for, and say which of them cannot be had.

        A runtime all of whose precisions are refused gets float32.
        """
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
                had = f"{runtime} has {', '.join(precisions_of()[runtime])}"
                self.options.progress(f"{had}: {', '.join(left_out)} is left out there")
        for runtime, precisions in planned.items():
            if not [each for each in precisions if self._write(runtime, each)]:
                self.options.progress(f"{runtime} gets fp32 in place of {', '.join(precisions)}")
                self._write(runtime, "fp32")

    def _write(self, runtime: Runtime, precision: Precision) -> bool:
        """Write the graphs in a precision; whether they were not refused."""
        kept, before = len(self.artifacts), set(self.writer.folder.iterdir())
        try:
            if runtime == "onnxruntime":
                self._write_onnx(precision)
            else:
                self._write_torch(runtime, precision)
        except RefusedError as error:
            self.options.progress(f"{precision} is left out: {error}")
            self.refused.append(str(error))
            del self.artifacts[kept:]
            for path in set(self.writer.folder.iterdir()) - before:
                path.unlink()
                self.differences.pop(path.name, None)
                self.drifts.pop(path.name, None)
            return False
        return True

    def _write_onnx(self, precision: Precision) -> None:
        """Write ONNX graphs with their shared weights; the translation is checked before weights are compressed."""
        folder, infix = self.writer.folder, "" if precision == "fp32" else f".{precision}"
        models: dict[Role, onnx.ModelProto] = {}
        if precision == "fp16":
            for role in self.model.parts:
                self.options.progress(f"making {role}{infix}.onnx")
                models[role] = self.model.onnx_graph(role, precision, self._weights)
        else:
            for role, model in self._exact_onnx.items():
                part = self.model.parts[role]
                if precision == "int8" and part.quantised:
                    self.options.progress(f"making int8 of {role}.onnx")
                    keep = named(model, self._constants)
                    largest = LARGEST_FINE_LEVEL if part.fine_int8 else LARGEST_LEVEL
                    try:
                        models[role] = quantise_products(
                            model, keep, single_rows=part.single_rows_in_int8, largest=largest
                        )
                    except ValueError as error:
                        raise RefusedError(f"{role}.onnx cannot be int8: {error}.") from error
                else:
                    models[role] = onnx.ModelProto()
                    models[role].CopyFrom(model)
        weights = f"weights{infix}.bin"
        # What is left in float32 of an fp16 graph is meant to be.
        storage = "fp32" if precision == "fp16" else self.options.weight_storage
        save_graphs(
            {f"{role}{infix}.onnx": model for role, model in models.items()}, folder, weights, storage, self._constants
        )
        if self.options.check and precision != "fp32":
            self.model.prepare_drift(self._recordings)
        for role in models:
            name = f"{role}{infix}.onnx"
            self._measure(role, name, open_graph(folder / name, packed=False), precision, "onnxruntime")
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
        for role in self.model.parts:
            name = f"{role}.onnx"
            self.options.progress(f"making {name}")
            models[role] = self.model.onnx_graph(role, "fp32", self._weights)
            if self.options.check and (networks := self.model.networks) is not None:
                self.options.progress(f"checking {name}")
                path = self.writer.folder / f".{name}"
                path.write_bytes(beside(models[role]).SerializeToString())
                networks.reference(role)  # before the graph is opened: either takes much memory
                # Unpacked: of a network of gigabytes there would be two in memory.
                self._exact[role] = networks.distance(role, name, open_graph(path, packed=False))
                networks.require(role, name, self._exact[role], "fp32")
                path.unlink()
        return models

    def _write_torch(self, runtime: Runtime, precision: Precision) -> None:
        """Write programs or scripts, each of which holds its own weights; only programs can store them narrow."""
        networks = self.model.networks
        if networks is None:
            raise ExportError(f"graphs for {runtime} are made of a network of torch, which is not installed here")
        narrow = runtime == "torch" and precision == "fp32" and self.options.weight_storage != "fp32"
        infix, suffix = "" if precision == "fp32" else f".{precision}", runtimes()[runtime].suffix
        for role in self.model.parts:
            name = f"{role}{infix}{suffix}"
            self.options.progress(f"tracing {name}")
            path, check = self.writer.folder / name, self.options.check
            opened = networks.save(role, runtime, precision, path, narrow=narrow, check=check)
            self._measure(role, name, opened, precision, runtime, narrow=narrow)
            self.artifacts.append(
                self.writer.artifact(
                    role,
                    name,
                    runtime=runtime,
                    precision=precision,
                    weight_storage="fp16" if narrow else precision,
                )
            )

    def _measure(
        self, role: Role, name: str, opened: Graph, precision: Precision, runtime: Runtime, *, narrow: bool = False
    ) -> None:
        """Compare an opened graph with float32, and refuse it if it is off or drifts too far."""
        if not self.options.check:
            return
        networks = self.model.networks
        if networks is not None:
            # Of the same graph with the same weights it is known.
            known = self._exact.get(role) if name == f"{role}.onnx" and self.options.weight_storage == "fp32" else None
            distance = known or networks.distance(role, name, opened)
            self.differences[name] = distance.largest
            if precision != "fp32" and not math.isfinite(distance.largest):
                raise RefusedError(f"{name}: numbers of this model do not fit into {precision}; export another one.")
            # Of ONNX graphs in float32 the translation was checked, and what compressed weights lose is meant.
            was_checked = precision == "fp32" and (runtime == "onnxruntime" or narrow)
            if not was_checked and (precision != "int8" or self.model.parts[role].precise):
                networks.require(role, name, distance, precision, runtime)
        if precision == "fp32" or self.model.parts[role].precise:
            return
        self.options.progress(f"checking {name} on audio")
        drift = self.model.drift(role, opened, self._recordings)
        self.drifts[name] = drift
        if not math.isfinite(drift.moved):
            raise RefusedError(f"{name}: numbers of this model do not fit into {precision}; export another one.")
        limit = self.options.drift_limit
        if drift.moved > limit and not self.options.force:
            raise RefusedError(
                f"{name} drifts too far from float32 on audio: {drift}; the limit is {limit:g}. Leave "
                f"{precision} out, check with audio of the model's own language (--check-audio), or accept it "
                "(--max-drift, --force)."
            )

    @cached_property
    def _recordings(self) -> list[Waveform]:
        return read_recordings(self.options.check_audio, self.model.sample_rate)

    @cached_property
    def _constants(self) -> list[np.ndarray]:
        return [array for part in self.model.parts.values() for array in part.constants]
