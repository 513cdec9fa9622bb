"""From WeNet's files to a bundle.

    final.pt, train.yaml, units.txt[, global_cmvn]
        ->  manifest.json, tokens.txt, encoder.onnx[, streaming_encoder.onnx], weights.bin

Every graph is run before the bundle is written: the largest difference from the torch network is part of the report,
and a graph that differs by more than float noise is refused.
"""

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, Provenance, State, Streaming, Vocabulary, WeightStorage
from tritone.errors import ExportError
from tritone.families.onnx import WEIGHTS_FILE, export_graph, save_graphs
from tritone.families.wenet.checkpoint import load_model, read_config, read_units
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.graphs import FrontEnd, OfflineGraph, StreamingGraph, make_fbank
from tritone.runtime import Graph, open_graph

OFFLINE_FILE = "encoder.onnx"
STREAMING_FILE = "streaming_encoder.onnx"
MAX_DIFFERENCE = 1e-3  # natural-log units; float32 noise of a deep model stays one to two orders below
CHECK_SECONDS = (0.05, 1.3, 2.9)


@dataclass(frozen=True)
class ExportReport:
    """What an export made and how well the stored graphs follow the torch network.

    `differences`: per graph, the largest |log prob| difference over valid frames of a test signal, natural-log
    units. For compressed weights it shows the loss of compression.
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
        weight_storage: "fp32", "fp16" or "int8"; the arithmetic is float32 in each.
        progress: told what is done next; tracing a deep model takes about a minute.
        make_front_end: what computes features; replaced only to feed features through a bundle, as parity tests do.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or a graph does not reproduce the torch network.
        BundleError: the output folder is in use for something else.
    """
    progress("reading the checkpoint")
    settings = read_config(config)
    units = read_units(tokens, settings.vocab_size)
    model = load_model(settings, checkpoint, cmvn)
    front_end = make_front_end(settings)
    offline = OfflineGraph(model, front_end).eval()
    stream = StreamingGraph(model, front_end, chunk_size, left_chunks).eval() if streaming else None
    with BundleWriter(output) as writer:
        writer.write_tokens(units)
        progress(f"tracing {OFFLINE_FILE}")
        graphs = {OFFLINE_FILE: _trace_offline(offline)}
        if stream is not None:
            progress(f"tracing {STREAMING_FILE}")
            graphs[STREAMING_FILE] = _trace_streaming(stream)
        progress("comparing with the torch network")
        _check_exact(graphs, offline, stream, writer.folder)
        progress("writing the bundle")
        save_graphs(graphs, writer.folder, weight_storage, [buffer.numpy() for buffer in _constants(front_end)])
        differences = _measure(offline, stream, writer.folder)
        artifacts = [writer.artifact("encoder", OFFLINE_FILE, WEIGHTS_FILE, weight_storage=weight_storage)]
        if stream is not None:
            artifacts.append(
                writer.artifact("streaming_encoder", STREAMING_FILE, WEIGHTS_FILE, weight_storage=weight_storage)
            )
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
                streaming=_streaming(stream) if stream is not None else None,
                artifacts=tuple(artifacts),
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
                    },
                ),
            )
        )
    parameters = sum(p.numel() for part in (model.encoder, model.ctc) for p in part.parameters())
    size = sum(bundle.file(name).stat().st_size for name in bundle.files)
    return ExportReport(bundle, parameters, size, differences)


def _constants(front_end: FrontEnd) -> list[Tensor]:
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


def _trace_offline(graph: OfflineGraph) -> onnx.ModelProto:
    samples = graph.min_samples + 30011
    inputs = {"waveform": torch.zeros(3, samples), "num_samples": torch.tensor([samples, 20000, 5000])}
    return export_graph(
        graph,
        inputs,
        ["log_probs", "num_frames", "encoder_out"],
        {"waveform": {0: "batch", 1: "samples"}, "num_samples": {0: "batch"}},
        _metadata(graph),
    )


def _zero_states(graph: StreamingGraph, batch: int) -> dict[str, Tensor]:
    return {
        name: torch.zeros(batch, *shape, dtype=torch.int64 if name == "offset" else torch.float32)
        for name, shape in graph.state_shapes.items()
    }


def _trace_streaming(graph: StreamingGraph) -> onnx.ModelProto:
    batch = 3
    inputs = {
        "waveform": torch.zeros(batch, graph.window_samples),
        "num_samples": torch.full((batch,), graph.window_samples),
        **_zero_states(graph, batch),
    }
    outputs = ["log_probs", "num_frames", "encoder_out", *(f"next_{name}" for name in graph.state_shapes)]
    return export_graph(graph, inputs, outputs, {name: {0: "batch"} for name in inputs}, _metadata(graph))


def _test_signal(samples: int, sample_rate: int) -> Tensor:
    """Chirps under slow loudness changes, with noise: energy in all bands, silence too. The same at every export."""
    time = torch.arange(samples, dtype=torch.float64) / sample_rate
    tone = torch.sin(2 * torch.pi * (200 * time + 400 * time.square()))
    noise = torch.rand(samples, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    loudness = torch.sin(2 * torch.pi * 1.7 * time).clamp(min=0)
    return (0.3 * tone * loudness + 0.05 * noise * loudness + 1e-3 * noise).float()


def _measure(offline: OfflineGraph, stream: StreamingGraph | None, folder: Path) -> dict[str, float]:
    """The largest log-prob difference between the graphs in `folder` and the torch network."""
    differences = {OFFLINE_FILE: _offline_difference(offline, open_graph(folder / OFFLINE_FILE))}
    if stream is not None:
        differences[STREAMING_FILE] = _streaming_difference(stream, open_graph(folder / STREAMING_FILE))
    return differences


def _check_exact(
    graphs: dict[str, onnx.ModelProto], offline: OfflineGraph, stream: StreamingGraph | None, folder: Path
) -> None:
    """Refuse translations that do not compute what the torch network does, before weights are compressed."""
    for name, model in graphs.items():
        (folder / name).write_bytes(model.SerializeToString())
    for name, difference in _measure(offline, stream, folder).items():
        if not difference <= MAX_DIFFERENCE:
            raise ExportError(
                f"{name} does not reproduce the torch network: log-probs differ by {difference:.2g}, the limit is "
                f"{MAX_DIFFERENCE:g}. Please report this with the versions of torch, onnx and onnxruntime."
            )


def _offline_difference(graph: OfflineGraph, session: Graph) -> float:
    rate = graph.sample_rate
    lengths = [round(seconds * rate) for seconds in CHECK_SECONDS]
    waveform = torch.stack([_test_signal(max(lengths), rate)] * len(lengths))
    num_samples = torch.tensor(lengths)
    with torch.no_grad():
        expected, num_frames, _ = graph(waveform, num_samples)
    feed = {"waveform": waveform.numpy(), "num_samples": num_samples.numpy()}
    found, frames = session(feed, ["log_probs", "num_frames"])
    if not np.array_equal(frames, num_frames.numpy()):
        raise ExportError(f"{OFFLINE_FILE} counts {frames.tolist()} frames, the torch network {num_frames.tolist()}")
    return max(
        float(np.abs(found[row, :count] - expected[row, :count].numpy()).max(initial=0.0))
        for row, count in enumerate(num_frames.tolist())
    )


def _streaming_difference(graph: StreamingGraph, session: Graph) -> float:
    steps, rate = 4, graph.sample_rate
    signal = _test_signal(graph.window_samples + graph.shift_samples * steps, rate)
    expected_states = _zero_states(graph, 1)
    states = {name: value.numpy() for name, value in expected_states.items()}
    worst = 0.0
    for step in range(steps):
        start = step * graph.shift_samples
        valid = graph.window_samples if step < steps - 1 else graph.window_samples // 2
        waveform = signal[start : start + graph.window_samples].unsqueeze(0)
        num_samples = torch.tensor([valid])
        with torch.no_grad():
            expected, num_frames, _, *next_states = graph(waveform, num_samples, *expected_states.values())
        expected_states = dict(zip(expected_states, next_states, strict=True))
        names = ["log_probs", "num_frames", *(f"next_{name}" for name in states)]
        found, frames, *rest = session(
            {"waveform": waveform.numpy(), "num_samples": num_samples.numpy(), **states}, names
        )
        states = dict(zip(states, rest, strict=True))
        if not np.array_equal(frames, num_frames.numpy()):
            raise ExportError(
                f"{STREAMING_FILE} counts {frames.tolist()} frames, the torch network {num_frames.tolist()}"
            )
        count = int(num_frames[0])
        worst = max(worst, float(np.abs(found[0, :count] - expected[0, :count].numpy()).max(initial=0.0)))
    return worst
