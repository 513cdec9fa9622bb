"""From a ready-made ONNX file of a segmentation network to a bundle.

    model.onnx (waveforms (N, 1, T) -> sets of speakers (N, frames, sets))  ->  manifest.json, encoder.onnx

Two forms are around: sherpa-onnx's, `x` -> `y` with its sizes in the metadata, and the hub's (onnx-community),
`input_values` -> `logits` without any. The graph itself is not changed; nodes before it silence what follows a row.
"""

import numpy as np
import onnx
from onnx import TensorProto

from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest
from tritone.errors import ExportError
from tritone.families.export.report import ONNX_PACKAGES, ExportReport, bundle_bytes, provenance
from tritone.families.onnx.builder import EMBEDDED, Builder
from tritone.families.onnx.source import Source, read_source
from tritone.families.onnx.trial import FLOAT_NOISE, Floats, largest_difference, opened, run, signal, typical_size
from tritone.families.pyannote.options import (
    AT_ONCE,
    MAX_SPEAKERS,
    MAX_WINDOW_S,
    SPEAKERS,
    WINDOW_S,
    PyannoteOptions,
)
from tritone.kinds.segmentation.part import SegmentationPart
from tritone.kinds.segmentation.pipeline import speaker_sets
from tritone.pipelines.memory import record
from tritone.runtime import Graph

SAMPLE_RATE = 16000  # Hz
TYPE = "pyannote-segmentation"  # how `model_type` of sherpa-onnx's metadata begins
FIELD, FRAME = 991, 270  # samples that a frame sees, and between frames, of files that do not say


def import_pyannote(options: PyannoteOptions) -> ExportReport:
    """Import an ONNX file of a segmentation network with sets of speakers.

    Raises:
        ExportError: the file is no such network, or a damaged one; the message says why.
        BundleError: the output folder is in use for something else.
        ValueError: the options are for checkpoints.
    """
    path = options.checkpoint
    if tuple(options.runtimes) != ("onnxruntime",) or tuple(options.precisions) != ("fp32",):
        raise ValueError("an ONNX file is taken as it is, for onnxruntime; leave other runtimes and precisions out")
    if options.weight_storage != "fp32":
        raise ValueError("an ONNX file is taken as it is; leave --weights out")
    options.progress(f"reading {path.name}")
    source = read_source(path)
    sets = _check_interface(source)
    part, frame = _sizes(source, sets)
    theirs = opened(path)
    with BundleWriter(options.output) as writer:
        file = writer.folder / "encoder.onnx"
        file.write_bytes(_encoder(source, sets).SerializeToString())
        options.progress(f"checking {file.name}")
        difference = _checked(opened(file), theirs, source, part, frame)
        options.progress("writing the bundle")
        bundle = writer.commit(
            Manifest(
                name=options.name or options.output.resolve().name,
                kind="segmentation",
                sample_rate=SAMPLE_RATE,
                features=Features.of_samples(),
                encoder=Encoder(subsampling_rate=frame, output_dim=sets, min_samples=part.field_samples),
                parts=(part,),
                artifacts=(writer.artifact("encoder", file.name),),
                provenance=provenance("pyannote", {"model": path}, {"imported": True}, ONNX_PACKAGES),
            )
        )
    options.progress("measuring the memory of calls")
    bundle = record(bundle)
    numbers = sum(int(np.prod(each.dims)) for each in source.model.graph.initializer)
    return ExportReport(bundle, numbers, bundle_bytes(bundle), {"encoder": difference})


def _check_interface(source: Source) -> int:
    """Make sure that a graph takes waveforms of any number of rows; returns the sets of speakers."""
    inputs, outputs = source.inputs, source.outputs
    fits = (
        len(inputs) == len(outputs) == 1
        and (inputs[0].dtype, outputs[0].dtype) == (TensorProto.FLOAT, TensorProto.FLOAT)
        and len(inputs[0].shape) == len(outputs[0].shape) == 3
        and inputs[0].shape[1] in (1, None)
    )
    if not fits:
        seen = [", ".join(str(each) for each in tensors[:4]) or "nothing" for tensors in (inputs, outputs)]
        raise ExportError(
            f"{source.path} takes {seen[0]} and gives {seen[1]}; a segmentation network of pyannote.audio takes one "
            "float32 input, x or input_values (batch, 1, samples), and gives one float32 output, y or logits (batch, "
            "frames, sets)"
        )
    if (batch := inputs[0].shape[0]) is not None:
        raise ExportError(
            f"{source.path} is fixed to {batch} windows in a call, and takes no others; export it again with a dynamic "
            "first axis (dynamic_axes={'x': {0: 'N'}, ...})"
        )
    sets = outputs[0].shape[2]
    if sets is None:
        window = np.zeros((1, 1, round(WINDOW_S * SAMPLE_RATE)), np.float32)
        sets = run(opened(source.path), source, {inputs[0].name: window}, [outputs[0].name])[0].shape[2]
    return sets


def _sizes(source: Source, sets: int) -> tuple[SegmentationPart, int]:
    """Windows and speakers, and samples from one frame to the next: by the metadata, or those of segmentation-3.0."""
    fixed = source.inputs[0].shape[2]
    if source.metadata.get("model_type", "").startswith(TYPE):
        if (rate := source.integer("sample_rate")) != SAMPLE_RATE:
            raise ExportError(f"{source.path}: the metadata has sample_rate = {rate}; networks are for {SAMPLE_RATE}")
        window, field, frame, speakers, at_once = map(
            source.integer,
            (
                *("window_size", "receptive_field_size", "receptive_field_shift"),
                *("num_speakers", "powerset_max_classes"),
            ),
        )
    else:
        window, field, frame = fixed or round(WINDOW_S * SAMPLE_RATE), FIELD, FRAME
        speakers, at_once = SPEAKERS, AT_ONCE
    if fixed not in (None, window) or not field <= window <= MAX_WINDOW_S * SAMPLE_RATE or speakers > MAX_SPEAKERS:
        raise ExportError(
            f"{source.path}: expected windows of up to {MAX_WINDOW_S:g} s and up to {MAX_SPEAKERS} speakers, got "
            f"windows of {window} samples (the input has {fixed or 'any number'}) and {speakers} speakers"
        )
    if at_once > speakers or len(speaker_sets(speakers, at_once)) != sets:
        raise ExportError(
            f"{source.path} has {sets} classes, which are not the sets of {speakers} speakers of whom {at_once} talk "
            "at once. Networks that judge each speaker alone are not taken"
        )
    return SegmentationPart(window_samples=window, field_samples=field, speakers=speakers, at_once=at_once), frame


def _encoder(source: Source, sets: int) -> onnx.ModelProto:
    """Role `encoder`: the graph, of rows that are silent behind their ends."""
    b = Builder()
    length = b.op("Reshape", b.slice(b.op("Shape", "waveform"), 1, 2, axis=0), b.constant(np.zeros(0)))
    places = b.op("Reshape", b.op("Range", b.constant(0), length, b.constant(1)), b.constant([1, -1]))
    inside = b.op("Less", places, b.op("Reshape", "num_samples", b.constant([-1, 1])))
    audio = b.op("Where", inside, "waveform", b.real(0))
    b.op("Unsqueeze", audio, b.constant([1]), output=EMBEDDED + source.inputs[0].name)
    b.embed(source.model)
    found = b.op("Identity", EMBEDDED + source.outputs[0].name, output="log_probs")
    frames = b.slice(b.op("Shape", found), 1, 2, axis=0)
    b.op("Expand", frames, b.op("Shape", "num_samples"), output="num_frames")
    return b.model(
        {"waveform": (TensorProto.FLOAT, ["batch", "samples"]), "num_samples": (TensorProto.INT64, ["batch"])},
        {
            "log_probs": (TensorProto.FLOAT, ["batch", "frames", sets]),
            "num_frames": (TensorProto.INT64, ["batch"]),
        },
        {"producer": "tritone"},
    )


def _checked(ours: Graph, theirs: Graph, source: Source, part: SegmentationPart, frame: int) -> float:
    """The largest difference of our graph from theirs, window by window.

    Raises:
        ExportError: it is no such network: a window depends on its company, or has other frames than its sizes say.
    """
    size = part.window_samples
    windows = np.stack([signal(size, SAMPLE_RATE, seed) for seed in range(2)])
    feed = {"waveform": windows, "num_samples": np.full(2, size)}
    found, counts = run(ours, source, feed, ["log_probs", "num_frames"])
    wanted = [_theirs(theirs, source, each) for each in windows]
    frames = (size - part.field_samples) // frame + 1
    if abs(len(wanted[0]) - frames) > 1:
        raise ExportError(
            f"{source.path} makes {len(wanted[0])} frames of {size} samples; frames of {part.field_samples} samples, "
            f"one every {frame}, are {frames}"
        )
    difference = largest_difference(found, np.stack(wanted), source.path.name)
    if difference / typical_size(found) > FLOAT_NOISE or counts.tolist() != [len(each) for each in wanted]:
        raise ExportError(
            f"{source.path}: a window's result changes by {difference:.2g} with what else is in the batch. Such a "
            "graph cannot be served in batches"
        )
    return difference


def _theirs(graph: Graph, source: Source, window: Floats) -> Floats:
    [found] = run(graph, source, {source.inputs[0].name: window[None, None]}, [source.outputs[0].name])
    return found[0]
