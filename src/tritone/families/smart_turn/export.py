"""From a classifier of ends of turns, such as Smart Turn v3, to a bundle that takes waveforms.

    features (rows, bins, frames)  ->  probability (rows, 1)         the file
    waveform (rows, samples)       ->  probability (rows, 1)         the bundle's graph

The features are Whisper's, of audio that is brought to a mean of 0 and a deviation of 1 first. The bundle is generic:
its one input is so much audio at 16 kHz as the network hears, with silence before it where there was less, and its one
output the probability that the speaker has finished. The gateway takes any model of this form (`--turn-model`).

Source: pipecat-ai 1.14.0, pipecat/audio/turn/smart_turn, and the features of transformers' WhisperFeatureExtractor with
do_normalize=True.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tritone.errors import ExportError
from tritone.families.export.report import ONNX_PACKAGES, ExportReport
from tritone.families.graphs.onnx_file import GRAPH, precision_of
from tritone.families.graphs.proposal import Proposal
from tritone.families.graphs.writer import write_graph
from tritone.families.layers.clipped_mel import FRAME_LENGTH, FRAME_SHIFT, POWER_FLOOR, RANGE, SAMPLE_RATE, matrices
from tritone.families.onnx.builder import EMBEDDED, Builder
from tritone.families.onnx.clipped_mel import OPSET, log_mel
from tritone.families.onnx.forms import weights_of
from tritone.families.onnx.source import Source, read_source
from tritone.families.onnx.trial import Floats, largest_difference, opened, run, signal
from tritone.kinds.generic.part import GenericInput, GenericOutput, GenericPart, ServingPart

FLOAT = int(TensorProto.FLOAT)
WAVEFORM, PROBABILITY = "waveform", "probability"
VARIANCE_GUARD = 1e-7  # is added to the variance that audio is divided by
MAX_FRAMES = 3000  # 30 s, Whisper's own window
MAX_DIFFERENCE = 1e-3  # of features and probabilities; float32 stays a tenth of it


def export_smart_turn(
    *,
    file: Path,
    output: Path,
    name: str | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export a classifier of ends of turns.

    Args:
        file: its ONNX graph, such as `smart-turn-v3.2-cpu.onnx`.
        output: the bundle's folder; an older bundle there is replaced.
        name: of the model; by default the output folder's name.
        progress: called with what is done next.

    Raises:
        ExportError: the file is missing or damaged, or takes or gives something else.
        BundleError: the output folder is in use for something else.
    """
    progress(f"reading {file.name}")
    source = read_source(file, oldest=OPSET)
    bins, frames = _sizes(source)
    composed = _with_features(source, bins, frames)
    samples = frames * FRAME_SHIFT
    progress(f"comparing the graph with {file.name}")
    differences = _differences(source, composed, bins, samples)
    generic = GenericPart(
        inputs=(GenericInput(name=WAVEFORM, type="FP32", dims=(samples,)),),
        outputs=(GenericOutput(name=PROBABILITY, type="FP32", dims=(1,)),),
        max_batch_size=1,  # sums in another order, as in a call of several rows, would be other probabilities
    )
    report = write_graph(
        lambda path: onnx.save(composed, path),
        GRAPH,
        runtime="onnxruntime",
        family="smart_turn",
        original=file,
        proposal=Proposal(name=name or output.resolve().name, generic=generic),
        output=output,
        serving=ServingPart(),
        options={},
        packages=ONNX_PACKAGES,
        precision=precision_of(source.model),
    )
    parameters = sum(int(np.prod(each.dims)) for each in weights_of(source.model))
    return ExportReport(report.bundle, parameters, report.bytes, differences)


def _sizes(source: Source) -> tuple[int, int]:
    """Bins and frames of the features that a network takes."""
    fits = len(source.inputs) == len(source.outputs) == 1 and all(
        each.dtype == FLOAT for each in (*source.inputs, *source.outputs)
    )
    if fits and len(source.inputs[0].shape) == 3 and source.outputs[0].shape in ((None, 1), (None,)):
        rows, bins, frames = source.inputs[0].shape
        if rows is None and bins in (80, 128) and frames is not None and frames <= MAX_FRAMES:
            return bins, frames
    taken, made = ("; ".join(map(str, each[:4])) or "nothing" for each in (source.inputs, source.outputs))
    raise ExportError(
        f"{source.path} takes {taken} and gives {made}. A classifier such as Smart Turn v3 takes Whisper's features, "
        f"float (any, 80 or 128 bins, up to {MAX_FRAMES} frames), and gives one number, float (any, 1). One that takes "
        "audio itself is exported by tritone export onnx."
    )


def _with_features(source: Source, bins: int, frames: int) -> onnx.ModelProto:
    """The network behind its features. What follows the last frame is mirrored, as what is before the first."""
    b = Builder()
    reach = FRAME_LENGTH // 2
    samples = frames * FRAME_SHIFT
    share, axes = b.real(1 / samples), b.constant([1])
    centred = b.op("Sub", WAVEFORM, b.op("Mul", b.op("ReduceSum", WAVEFORM, axes), share))
    variance = b.op("Mul", b.op("ReduceSum", b.op("Mul", centred, centred), axes), share)
    scaled = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.real(VARIANCE_GUARD))))
    padded = b.op("Pad", scaled, b.constant([0, reach, 0, reach]), mode="reflect")
    b.op(
        "Transpose",
        log_mel(b, padded, b.constant([frames]), bins),
        perm=[0, 2, 1],
        output=EMBEDDED + source.inputs[0].name,
    )
    b.embed(source.model)
    b.op("Reshape", EMBEDDED + source.outputs[0].name, b.constant([-1, 1]), output=PROBABILITY)
    return b.model(
        {WAVEFORM: (FLOAT, ["batch", samples])},
        {PROBABILITY: (FLOAT, ["batch", 1])},
        {"producer": "tritone"},
    )


def _differences(source: Source, composed: onnx.ModelProto, bins: int, samples: int) -> dict[str, float]:
    """The largest differences: of the graph's features from those in float64, of its probability from the network's.

    The network gets the features that the graph made: one of int8 may answer otherwise by tenths where features move by
    a millionth, and upstream's do that as well.
    """
    (given,), (made,) = source.inputs, source.outputs
    shown = onnx.ModelProto()
    shown.CopyFrom(composed)
    shown.graph.output.append(helper.make_tensor_value_info(EMBEDDED + given.name, FLOAT, ["batch", *given.shape[1:]]))
    differences = dict.fromkeys(("features", GRAPH), 0.0)
    with tempfile.TemporaryDirectory(prefix="tritone-turn-") as folder:
        path = Path(folder) / GRAPH
        onnx.save(shown, path)
        graph, network = opened(path), opened(source.path)
        for seed in range(3):
            waveform = signal(samples, SAMPLE_RATE, seed)
            waveform[: seed * samples // 3] = 0  # shorter turns
            found, probability = graph({WAVEFORM: waveform[None]}, [EMBEDDED + given.name, PROBABILITY])
            (wanted,) = run(network, source, {given.name: found}, [made.name])
            if not 0 <= float(wanted.item()) <= 1:
                raise ExportError(
                    f"{source.path} gives {wanted.item():.3g}, which is no probability; end the graph with a sigmoid"
                )
            for name, ours, theirs in (
                ("features", found, features(waveform, bins)[None]),
                (GRAPH, probability, wanted.reshape(1, 1)),
            ):
                differences[name] = max(differences[name], largest_difference(ours, theirs, name))
    if max(differences.values()) > MAX_DIFFERENCE:
        raise ExportError(f"the graph differs from {source.path} ({differences}); the limit is {MAX_DIFFERENCE:g}")
    return differences


def features(waveform: Floats, bins: int) -> Floats:
    """The features (bins, frames) of a waveform (samples,) at 16 kHz, by an FFT of each frame in float64."""
    scaled = (waveform - waveform.mean(dtype=np.float64)) / np.sqrt(waveform.var(dtype=np.float64) + VARIANCE_GUARD)
    padded = np.pad(scaled, FRAME_LENGTH // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME_LENGTH)[::FRAME_SHIFT][:-1]
    window, filters = matrices(bins)
    spectrum = frames @ window.astype(np.float64)
    width = filters.shape[0]
    power = (spectrum[:, :width] ** 2 + spectrum[:, width:] ** 2) @ filters.astype(np.float64)
    log_power = np.log10(np.maximum(power, POWER_FLOOR))
    return ((np.maximum(log_power, log_power.max() - RANGE) + 4) / 4).T.astype(np.float32)
