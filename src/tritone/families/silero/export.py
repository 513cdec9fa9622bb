"""From silero-vad's ONNX file to a bundle.

    silero_vad.onnx, sample rate  ->  manifest.json, encoder.onnx, streaming_encoder.onnx

Its network is written again for many frames of many recordings (`graphs.py`). Both graphs are run before the bundle is
written, and compared with upstream's, frame by frame.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest, State, Streaming
from tritone.errors import ExportError
from tritone.families.export.report import ONNX_PACKAGES, ExportReport, bundle_bytes, provenance
from tritone.families.onnx.source import Source, read_source
from tritone.families.onnx.trial import Floats, largest_difference, opened, run, signal
from tritone.families.silero.graphs import STATES, recording_graph, stream_graph
from tritone.families.silero.weights import HIDDEN, PACKAGE, Weights, installed_file, read_weights
from tritone.pipelines.memory import record
from tritone.runtime import Graph

TRIAL_FRAMES = 60  # of the comparison
MAX_DIFFERENCE = 1e-4  # of a probability; float32 stays two orders below


def export_silero(
    *,
    file: Path | None = None,
    output: Path,
    sample_rate: int = 16000,
    name: str | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export a network of silero-vad.

    Args:
        file: its `silero_vad.onnx`; None takes that of the installed package silero-vad.
        output: the bundle's folder; an older bundle there is replaced.
        sample_rate: of the audio, 16000 or 8000 Hz; the file has a network for each.
        name: of the model; by default the output folder's name.
        progress: called with what is done next.

    Raises:
        ExportError: the file is missing or damaged, or is not silero-vad's of version 5 or 6; or the package is not
            installed.
        BundleError: the output folder is in use for something else.
        ValueError: there is no network for that sample rate.
    """
    path = installed_file() if file is None else file
    progress(f"reading {path.name}")
    source = read_source(path)
    weights = read_weights(source, sample_rate)
    with BundleWriter(output) as writer:
        files = {"encoder": "encoder.onnx", "streaming_encoder": "streaming_encoder.onnx"}
        for file_name, model in zip(files.values(), (recording_graph(weights), stream_graph(weights)), strict=True):
            (writer.folder / file_name).write_bytes(model.SerializeToString())
        progress(f"comparing the graphs with {path.name}")
        differences = _differences(source, weights, sample_rate, writer.folder)
        progress("writing the bundle")
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind="voice-activity",
                sample_rate=sample_rate,
                features=Features(
                    kind="spectrum",
                    frame_length=weights.window,
                    frame_shift=weights.window // 2,
                    num_mel_bins=weights.bins,
                    window="hanning",
                    preemphasis=0.0,
                    low_freq=0.0,
                    sample_scale=1.0,
                ),
                encoder=Encoder(
                    subsampling_rate=weights.frame // (weights.window // 2),
                    output_dim=1,
                    min_samples=weights.context + weights.frame,
                ),
                streaming=Streaming(
                    chunk_size=1,
                    left_chunks=0,
                    window_samples=weights.context + weights.frame,
                    shift_samples=weights.frame,
                    states=tuple(State(name=state, shape=(HIDDEN,), dtype="float32") for state in STATES),
                    flexible=True,
                    lead_samples=weights.context,
                    flush_samples=0,
                ),
                artifacts=(
                    writer.artifact("encoder", files["encoder"]),
                    writer.artifact("streaming_encoder", files["streaming_encoder"]),
                ),
                provenance=provenance(
                    "silero", {path.name: path}, {"sample_rate": sample_rate}, (*ONNX_PACKAGES, PACKAGE)
                ),
            )
        )
    progress("measuring the memory of calls")
    bundle = record(bundle)
    return ExportReport(bundle, weights.count, bundle_bytes(bundle), differences)


def _differences(source: Source, weights: Weights, sample_rate: int, folder: Path) -> dict[str, float]:
    """The largest differences of both graphs' probabilities from upstream's, over a signal with silence and noise."""
    frame, context = weights.frame, weights.context
    waveform = signal(TRIAL_FRAMES * frame, sample_rate)
    wanted = _upstream(opened(source.path), source, weights, sample_rate, waveform)
    names = ["probabilities", "num_frames"]
    inputs = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
    found = {"encoder.onnx": opened(folder / "encoder.onnx")(inputs, names)[0][0]}
    streams = opened(folder / "streaming_encoder.onnx")
    states = {name: np.zeros((1, HIDDEN), np.float32) for name in STATES}
    padded, steps = np.pad(waveform, (context, 0)), []
    for start in range(0, len(waveform), frame):
        window = padded[None, start : start + context + frame]
        inputs = {"waveform": window, "num_samples": np.array([window.size]), **states}
        row, _, *last = streams(inputs, [*names, *(f"next_{name}" for name in STATES)])
        steps.append(row[0])
        states = dict(zip(STATES, last, strict=True))
    found["streaming_encoder.onnx"] = np.concatenate(steps)
    differences = {name: largest_difference(each, wanted, name) for name, each in found.items()}
    for name, difference in differences.items():
        if difference > MAX_DIFFERENCE:
            raise ExportError(
                f"{name} differs from {source.path} by {difference:.2g}, the limit is {MAX_DIFFERENCE:g}: it is "
                f"another network than that of {PACKAGE} 5 and 6, with weights of the same sizes"
            )
    return differences


def _upstream(graph: Graph, source: Source, weights: Weights, sample_rate: int, waveform: Floats) -> Floats:
    """The probabilities that upstream's graph gives to the frames of a waveform."""
    state, context = np.zeros((2, 1, HIDDEN), np.float32), np.zeros(weights.context, np.float32)
    found = []
    for start in range(0, len(waveform), weights.frame):
        window = np.concatenate((context, waveform[start : start + weights.frame]))
        inputs = {"input": window[None], "state": state}
        if "sr" in graph.inputs:
            inputs["sr"] = np.array(sample_rate)
        probability, state = run(graph, source, inputs, ["output", "stateN"])
        found.append(probability.reshape(-1))
        context = window[-weights.context :]
    return np.concatenate(found)
