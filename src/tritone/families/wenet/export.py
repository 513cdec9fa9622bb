"""From WeNet's files to a bundle.

    final.pt, train.yaml, units.txt[, global_cmvn]
        ->  manifest.json, tokens.txt, and for each runtime the offline and the streaming graph

Every graph is run before the bundle is written: the largest difference from the torch network is part of the report,
and a graph that differs by more than float noise is refused.
"""

import hashlib
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import onnx
import torch
from torch import Tensor, nn

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import (
    Artifact,
    Encoder,
    Features,
    Manifest,
    Precision,
    Provenance,
    Role,
    Runtime,
    State,
    Streaming,
    Vocabulary,
    WeightStorage,
)
from tritone.errors import ExportError
from tritone.families.onnx import WEIGHTS_FILE, export_graph, save_graphs
from tritone.families.torch_program import rounded, save_program
from tritone.families.wenet.check import difference, zero_states
from tritone.families.wenet.checkpoint import load_model, read_config, read_units
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.graphs import FrontEnd, OfflineGraph, StreamingGraph, make_fbank
from tritone.families.wenet.model import AsrModel
from tritone.runtime import open_graph

MAX_DIFFERENCE = 1e-3  # natural-log units; float32 noise of a deep model stays one to two orders below

Graphs = Mapping[Role, OfflineGraph | StreamingGraph]


@dataclass(frozen=True)
class ExportReport:
    """What an export made and how well the stored graphs follow the torch network.

    `differences`: per graph, the largest |log prob| difference from the float32 network over valid frames of a test
    signal, natural-log units. For compressed weights and other precisions it shows what they lose.
    """

    bundle: Bundle
    parameters: int
    bytes: int
    differences: dict[str, float] = field(default_factory=dict)


def export_wenet(
    *,
    checkpoint: Path,
    config: Path,
    tokens: Path,
    output: Path,
    cmvn: Path | None = None,
    streaming: bool = False,
    chunk_size: int = 16,
    left_chunks: int = 5,
    name: str | None = None,
    tail_padding_ms: float = 0.0,
    weight_storage: WeightStorage = "fp32",
    runtimes: Sequence[Runtime] = ("onnxruntime",),
    precisions: Sequence[Precision] = ("fp32",),
    make_front_end: Callable[[ModelConfig], FrontEnd] = make_fbank,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export the encoder and CTC head of a WeNet model.

    Args:
        checkpoint, config, tokens: upstream's `final.pt`, `train.yaml`, `units.txt`.
        output: the bundle's folder; an older bundle there is replaced.
        cmvn: statistics file, when the checkpoint does not hold them and they do not lie beside it.
        streaming: also export the streaming graph.
        chunk_size, left_chunks: encoder frames a step, and past chunks a step may attend to.
        name: the model's name; by default the output folder's.
        tail_padding_ms: silence that serving appends to every utterance; 0 gives upstream's result.
        weight_storage: "fp32", "fp16" or "int8" (fp16 in programs of torch); float32 arithmetic stays float32 in each.
        runtimes: what to write graphs for; the first is what the bundle runs on by default.
        precisions: of the programs for torch. ONNX graphs compute in float32.
        progress: told what is done next; tracing a deep model takes about a minute.
        make_front_end: what computes features; replaced only to feed features through a bundle, as parity tests do.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or a graph does not reproduce the torch network.
        BundleError: the output folder is in use for something else.
        ValueError: a runtime or a precision is unknown, or given twice.
    """
    _check_choices("runtime", runtimes, get_args(Runtime))
    _check_choices("precision", precisions, get_args(Precision))
    progress("reading the checkpoint")
    settings = read_config(config)
    units = read_units(tokens, settings.vocab_size)
    model = load_model(settings, checkpoint, cmvn)
    front_end = make_front_end(settings)

    def graphs_of(model: AsrModel) -> Graphs:
        graphs: dict[Role, OfflineGraph | StreamingGraph] = {"encoder": OfflineGraph(model, front_end).eval()}
        if streaming:
            graphs["streaming_encoder"] = StreamingGraph(model, front_end, chunk_size, left_chunks).eval()
        return graphs

    graphs = graphs_of(model)
    offline, stream = graphs["encoder"], graphs.get("streaming_encoder")
    assert isinstance(offline, OfflineGraph)
    with BundleWriter(output) as writer:
        writer.write_tokens(units)
        written = _GraphWriter(writer, graphs, weight_storage, progress)
        for runtime in runtimes:
            if runtime == "onnxruntime":
                written.write_onnx()
            else:
                for precision in precisions:
                    written.write_torch(graphs_of(model.in_precision(precision)), precision)
        progress("writing the bundle")
        sources = {"checkpoint": checkpoint, "config": config, "tokens": tokens} | ({"cmvn": cmvn} if cmvn else {})
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind="ctc",
                sample_rate=settings.sample_rate,
                features=_features(settings, offline),
                encoder=Encoder(
                    subsampling_rate=model.encoder.embed.rate,
                    output_dim=settings.encoder.output_size,
                    min_samples=offline.min_samples,
                    tail_samples=round(tail_padding_ms * settings.sample_rate / 1000),
                ),
                vocabulary=_vocabulary(settings, units),
                streaming=_streaming(stream) if isinstance(stream, StreamingGraph) else None,
                artifacts=tuple(written.artifacts),
                provenance=Provenance(
                    family="wenet",
                    sources={key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in sources.items()},
                    versions={
                        "python": platform.python_version(),
                        **{package: version(package) for package in ("tritone", "torch", "onnx", "onnxscript")},
                    },
                    options={
                        "streaming": streaming,
                        "chunk_size": chunk_size,
                        "left_chunks": left_chunks,
                        "weight_storage": weight_storage,
                        "tail_padding_ms": tail_padding_ms,
                        "runtimes": ",".join(runtimes),
                        "precisions": ",".join(precisions),
                    },
                ),
            )
        )
    parameters = sum(p.numel() for part in (model.encoder, model.ctc) for p in part.parameters())
    size = sum(bundle.file(name).stat().st_size for name in bundle.files)
    return ExportReport(bundle, parameters, size, written.differences)


def _check_choices(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    if not given or len(set(given)) < len(given) or not set(given) <= set(known):
        raise ValueError(f"expected each {what} once, of {', '.join(known)}; got {', '.join(given) or 'none'}")


@dataclass
class _GraphWriter:
    """Writes the graphs of one bundle; `graphs` compute in float32 and are what all others are compared with."""

    writer: BundleWriter
    graphs: Graphs
    weight_storage: WeightStorage
    progress: Callable[[str], None]
    artifacts: list[Artifact] = field(default_factory=list)
    differences: dict[str, float] = field(default_factory=dict)

    def write_onnx(self) -> None:
        """Write ONNX graphs with their shared weights; the translation is checked before weights are compressed."""
        folder = self.writer.folder
        files = {f"{role}.onnx": graph for role, graph in self.graphs.items()}
        models: dict[str, onnx.ModelProto] = {}
        for name, graph in files.items():
            self.progress(f"tracing {name}")
            models[name] = export_graph(graph, *_traced(graph))
            (folder / name).write_bytes(models[name].SerializeToString())
            _require_exact(name, difference(graph, open_graph(folder / name), name), "torch, onnx and onnxruntime")
        save_graphs(models, folder, self.weight_storage, [buffer.numpy() for buffer in _constants(self.graphs)])
        for name, graph in files.items():
            self.differences[name] = difference(graph, open_graph(folder / name), name)
        for role in self.graphs:
            self.artifacts.append(
                self.writer.artifact(role, f"{role}.onnx", WEIGHTS_FILE, weight_storage=self.weight_storage)
            )

    def write_torch(self, graphs: Graphs, precision: Precision) -> None:
        """Write programs of `graphs`, which compute in `precision`; each holds its own weights."""
        narrow = precision == "fp32" and self.weight_storage != "fp32"
        stored: WeightStorage = "fp16" if narrow else precision
        for role, graph in graphs.items():
            name = f"{role}.pt2" if precision == "fp32" else f"{role}.{precision}.pt2"
            self.progress(f"tracing {name}")
            source = rounded(graph) if narrow else graph
            save_program(source, self.writer.folder / name, *_traced(source), narrow_weights=narrow)
            opened = open_graph(self.writer.folder / name)
            self.differences[name] = difference(self.graphs[role], opened, name)
            if precision != "fp32" and not math.isfinite(self.differences[name]):
                raise ExportError(f"{name}: numbers of this model do not fit into {precision}; export another one.")
            _require_exact(name, difference(source, opened, name), "torch")
            self.artifacts.append(
                self.writer.artifact(role, name, runtime="torch", precision=precision, weight_storage=stored)
            )


def _require_exact(name: str, difference: float, packages: str) -> None:
    if not difference <= MAX_DIFFERENCE:
        raise ExportError(
            f"{name} does not reproduce the torch network: log-probs differ by {difference:.2g}, the limit is "
            f"{MAX_DIFFERENCE:g}. Please report this with the versions of {packages}."
        )


def _constants(graphs: Graphs) -> list[Tensor]:
    front_end = graphs["encoder"].fbank
    return list(front_end.buffers()) if isinstance(front_end, nn.Module) else []


def _features(settings: ModelConfig, offline: OfflineGraph) -> Features:
    return Features(
        frame_length=offline.fbank.frame_length,
        frame_shift=offline.fbank.frame_shift,
        num_mel_bins=settings.num_mel_bins,
        window=settings.window,  # type: ignore[arg-type]  # checked when the config was read
    )


def _vocabulary(settings: ModelConfig, units: list[str]) -> Vocabulary:
    # Old configs do not say which id starts and ends a sentence: upstream takes the last one.
    last = settings.vocab_size - 1
    return Vocabulary(
        size=settings.vocab_size,
        units=settings.units,  # type: ignore[arg-type]  # checked when the config was read
        connect_symbol=settings.connect_symbol,
        blank_id=settings.blank_id,
        unk_id=units.index("<unk>") if "<unk>" in units else None,
        sos_id=last if settings.sos_id is None else settings.sos_id,
        eos_id=last if settings.eos_id is None else settings.eos_id,
    )


def _streaming(stream: StreamingGraph) -> Streaming:
    return Streaming(
        chunk_size=stream.chunk_size,
        left_chunks=stream.left_chunks,
        window_samples=stream.window_samples,
        shift_samples=stream.shift_samples,
        states=tuple(
            State(name=name, shape=shape, dtype="int64" if name == "offset" else "float32")
            for name, shape in stream.state_shapes.items()
        ),
    )


def _metadata(graph: nn.Module) -> dict[str, str]:
    return {"producer": "tritone", "contract": type(graph).__name__}


def _traced(
    graph: OfflineGraph | StreamingGraph,
) -> tuple[dict[str, Tensor], list[str], dict[str, dict[int, str]], dict[str, str]]:
    """Example inputs, names of the outputs, dynamic axes and metadata, as exporters want them."""
    batch = 3
    outputs = ["log_probs", "num_frames", "encoder_out"]
    if isinstance(graph, OfflineGraph):
        samples = graph.min_samples + 30011
        inputs = {"waveform": torch.zeros(batch, samples), "num_samples": torch.tensor([samples, 20000, 5000])}
        dynamic = {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}}
        return inputs, outputs, dynamic, _metadata(graph)
    inputs = {
        "waveform": torch.zeros(batch, graph.window_samples),
        "num_samples": torch.full((batch,), graph.window_samples),
        **zero_states(graph, batch),
    }
    outputs += [f"next_{name}" for name in graph.state_shapes]
    return inputs, outputs, {name: {0: "batch"} for name in inputs}, _metadata(graph)
