"""The frame of an export: what every family's export does, around what a family says of its model.

    ExportedModel (what was read, its networks by role, its parts of the manifest), ExportOptions
        ->  graphs in each runtime and precision, checked  ->  bundle, ExportReport

Every graph is run before the bundle is written: the largest difference from the torch network is part of the report. A
graph that differs by more than its precision explains is refused, one in another precision than float32 also if it
drifts too far on audio.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import onnx

from tritone.audio import Waveform
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import Manifest, Precision, Role
from tritone.errors import ExportError
from tritone.families.export.drift import Movement
from tritone.families.export.graph_files import GraphFiles, Part
from tritone.families.export.options import ExportOptions, RecognizerOptions
from tritone.families.export.report import Choice, ExportReport, bundle_bytes, provenance
from tritone.families.onnx.large import WeightFile
from tritone.kinds.transducer.part import TransducerPart
from tritone.pipelines.memory import record
from tritone.runtime import Graph
from tritone.runtime.memory import machine_bytes

if TYPE_CHECKING:
    from tritone.families.export.exportable import Graphs
    from tritone.families.export.networks import Networks
    from tritone.families.export.transducer_drift import TransducerDrift


class ExportedModel(ABC):
    """A trained model of one family, read from upstream's files.

    Attributes:
        family: its name in the provenance.
        sample_rate: of the waveforms, in Hz.
        tokens: the vocabulary in the order of ids; None if no text is written.
        sources: upstream's files, by what they are.
        files: files that the bundle has as they are, by their names there.
        choices: what the provenance keeps beside the options that all exports have.
        notes: what was taken for granted and should be known.
        transducer: what the manifest says of one; `silent` are the ids then that are no tokens.
    """

    family: ClassVar[str]
    sample_rate: int
    tokens: list[str] | None = None
    sources: Mapping[str, Path]
    files: Mapping[str, Path] = MappingProxyType({})
    choices: Mapping[str, Choice]
    notes: tuple[str, ...] = ()
    transducer: TransducerPart | None = None
    silent: frozenset[int] = frozenset()

    @abstractmethod
    def graphs_in(self, precision: Precision, explicit: bool) -> "Graphs":
        """The model's graphs in a precision; `explicit` asks for graphs that say themselves what is float32 inside."""

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Movement:
        """How far an opened graph is from the float32 one of its role, on audio: by tokens, or frame by frame."""
        from tritone.families.export.frame_drift import frame_drift

        if self.transducer is not None:
            return self._transducer_drift(self.graphs[role], opened, recordings)
        return frame_drift(self.graphs[role], opened, recordings)

    @cached_property
    def _transducer_drift(self) -> "TransducerDrift":
        from tritone.families.export.transducer_drift import TransducerDrift

        assert self.transducer is not None
        assert self.tokens is not None
        offline, predictor, joiner = (self.graphs[each] for each in ("encoder", "predictor", "joiner"))
        return TransducerDrift(offline, predictor, joiner, self.transducer.start, self.silent, len(self.tokens))

    def prepare_drift(self, recordings: Sequence[Waveform]) -> None:  # noqa: B027  # few need it
        """Compute what graphs are compared with on audio before one of them is opened, where that takes memory."""

    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """The fields of the manifest that depend on the family: `kind`, `features`, `encoder` and what else it has."""

    @cached_property
    def graphs(self) -> "Graphs":
        """The float32 graphs, which all others are compared with."""
        return self.graphs_in("fp32", False)

    @property
    def parts(self) -> Mapping[Role, Part]:
        """What is known of the graph of each role."""
        return self.graphs

    @cached_property
    def networks(self) -> "Networks | None":
        """The networks that graphs are compared with; None where there are none, so that float32 graphs stand in."""
        from tritone.families.export.networks import Networks

        return Networks(self)

    def onnx_graph(self, role: Role, precision: Precision, weights: WeightFile) -> onnx.ModelProto:
        """The graph of a role as ONNX, in fp32 or fp16, with its weights in a file."""
        from tritone.families.export.networks import translated

        graphs = self.graphs if precision == "fp32" else self._in_halves
        return translated(graphs[role], weights)

    @cached_property
    def _in_halves(self) -> "Graphs":
        return self.graphs_in("fp16", True)

    @property
    def parameters(self) -> int:
        """How many there are in all graphs; those that several graphs share count once."""
        found = {id(each): each for graph in self.graphs.values() for each in graph.parameters()}
        return sum(parameter.numel() for parameter in found.values())


ROOM = 400_000_000  # bytes, of torch and of what is computed


def memory_needed(parameters: int, options: ExportOptions) -> int:
    """Bytes that an export takes at most: float32 weights twice while they are traced, and those of a half precision.

    Graphs that are checked leave their weights in files, which the system may drop from memory.
    """
    narrow = any({"fp16", "bf16"} & set(precisions) for precisions in options.planned.values())
    return ROOM + parameters * (10 if narrow else 8)


def write_bundle(model: ExportedModel, options: ExportOptions) -> ExportReport:
    """Write a model's graphs and its manifest to the folder of the options; an older bundle there is replaced.

    Raises:
        ExportError: a graph does not reproduce the torch network; or one cannot be had in another precision, or drifts
            too far in it, after the bundle was written without it (with `lenient` of the options that is in the report
            alone).
        BundleError: the output folder is in use for something else.
        InputError: the audio to check with cannot be read.
    """
    if (limit := machine_bytes()) is not None and (needed := memory_needed(model.parameters, options)) > limit:
        options.progress(
            f"this export needs about {needed / 1e9:.1f} GB of memory, and this machine or container has "
            f"{limit / 1e9:.1f} GB: the system may end it. Where there is more memory is the place for it"
        )
    with BundleWriter(options.output) as writer:
        if model.tokens is not None:
            writer.write_tokens(model.tokens)
        for name, path in model.files.items():
            shutil.copyfile(path, writer.folder / name)
        written = GraphFiles(writer=writer, model=model, options=options)
        written.write()
        options.progress("writing the bundle")
        choices = {
            **model.choices,
            "stages": options.stages,
            "weight_storage": options.weight_storage,
            "runtimes": ",".join(options.runtimes),
            "precisions": ",".join(options.precisions),
        }
        if isinstance(options, RecognizerOptions):
            choices["tail_padding_ms"] = options.tail_padding_ms
        described = model.manifest()
        if "generic" not in described:
            described["sample_rate"] = model.sample_rate
        bundle = writer.commit(
            Manifest(
                name=options.name or options.output.resolve().name,
                artifacts=tuple(written.artifacts),
                provenance=provenance(model.family, model.sources, choices),
                **described,
            )
        )
    if bundle.manifest.is_of_audio:
        options.progress("measuring the memory of calls")
        bundle = record(bundle)
    if written.refused and not options.lenient:
        raise ExportError(
            f"{' '.join(written.refused)} {bundle.path} was written without it, in "
            f"{', '.join(dict.fromkeys(each.precision for each in bundle.manifest.artifacts))}."
        )
    return ExportReport(
        bundle,
        model.parameters,
        bundle_bytes(bundle),
        written.differences,
        written.drifts,
        (*model.notes, *written.refused),
    )


def tail_samples(options: RecognizerOptions, sample_rate: int) -> int:
    """The silence that serving appends, in samples."""
    return round(options.tail_padding_ms * sample_rate / 1000)
