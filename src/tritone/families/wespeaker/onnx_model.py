"""From a ready-made ONNX file of upstream's to a bundle. Needs the package onnx, and no torch.

    avg_model.onnx (feats (B, T, F) -> embs (B, E))  ->  manifest.json, and the same graph with waveforms going in

Features are written in front of the graph that is there, and nothing in it is changed. It knows of no lengths, so what
it says of an utterance depends on padding: pipelines give it utterances of one length at a time (`equal_lengths`).
The bundle's graph is run before it is written, and compared with the one that it was made of.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Encoder, Features, Manifest
from tritone.errors import ExportError
from tritone.families.export.report import ONNX_PACKAGES, bundle_bytes, provenance
from tritone.families.export.settings import read_config_file
from tritone.families.onnx.builder import EMBEDDED, Builder
from tritone.families.onnx.front_end import least_samples, utterance_features
from tritone.families.onnx.source import Source, read_source
from tritone.families.onnx.trial import (
    FLOAT_NOISE,
    MAX_DIFFERENCE,
    Floats,
    fbank,
    largest_difference,
    opened,
    run,
    signal,
    typical_size,
)
from tritone.families.wespeaker.config import ECAPA_CLASS, FeatureConfig, Window, parse_config
from tritone.families.wespeaker.front_end import VARIANCE_GUARD, manifest_features
from tritone.families.wespeaker.mean import read_mean
from tritone.families.wespeaker.options import FOR_CHECKPOINTS, WespeakerOptions
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.options.fields import changed_flags
from tritone.pipelines.memory import record
from tritone.runtime import Graph

MAX_FIRST_FRAMES = 40  # frames that any network makes an embedding of; upstream's need 1 to 9
CHECKED_FRAMES = (97, 128, 53)
SUBSAMPLING = 1  # nothing states how the network counts its frames, and nobody asks


@dataclass(frozen=True)
class ImportReport:
    """What was made.

    `difference`: of the bundle's graph from the one that it was made of, as a share of the size of embeddings.
    """

    bundle: Bundle
    bytes: int
    difference: float

    @property
    def path(self) -> Path:
        """Where the bundle is."""
        return self.bundle.path

    def lines(self, unit: str, original: str) -> list[str]:
        """The report for people; `unit` is of the difference."""
        size = self.bundle.manifest.encoder.output_dim
        return [
            f"{self.bundle.path}: embeddings of {size} numbers, {self.bytes / 1e6:.2f} MB",
            f"  largest difference from the original {self.difference:.2e} ({unit})",
        ]


def export_onnx_model(**choices: Any) -> ImportReport:
    """As `import_wespeaker`, of the fields of `WespeakerOptions`.

    Raises:
        ValueError: an option is given that is for checkpoints, or a runtime that ONNX files have not.
    """
    options = WespeakerOptions(**choices)
    if unfit := changed_flags(options, FOR_CHECKPOINTS):
        raise ValueError(f"{', '.join(unfit)} is for checkpoints; an ONNX file is taken as it is")
    if others := [each for each in options.runtimes if each != "onnxruntime"]:
        raise ValueError(f"an ONNX file is for onnxruntime and tensorrt, not for {', '.join(others)}")
    assert options.onnx is not None
    return import_wespeaker(
        model=options.onnx,
        output=options.output,
        config=options.config,
        mean_vec=options.mean_vec,
        window=options.window,
        sample_scale=options.sample_scale,
        threshold=options.threshold,
        name=options.name,
        progress=options.progress,
    )


def import_wespeaker(
    *,
    model: Path,
    output: Path,
    config: Path | None = None,
    mean_vec: Path | None = None,
    window: Window | None = None,
    sample_scale: float | None = None,
    threshold: float | None = None,
    name: str | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> ImportReport:
    """Import a model that upstream's export_onnx.py has written.

    Args:
        model: the ONNX file.
        output: the bundle's folder; an older bundle there is replaced.
        config: upstream's config.yaml, whose features are taken; by default those of upstream's recipes, at 16 kHz.
        mean_vec: upstream's mean_vec.npy, to be subtracted from every embedding.
        window, sample_scale: of the features; see `manifest_features`.
        threshold: for the manifest: the cosine above which two recordings are taken for one speaker's, from -1 to 1.
        name: of the model; by default the output folder's name.
        progress: called with what is done next.

    Raises:
        ExportError: the file is no such model, or a damaged one; the message says why.
        BundleError: the output folder is in use for something else.
        ValueError: the window is unknown, the scale not positive, or the threshold no cosine.
    """
    progress(f"reading {model.name}")
    source = read_source(model)
    bins = check_interface(source)
    settings = _features(config, bins)
    features = manifest_features(settings, window=window, sample_scale=sample_scale)
    theirs = opened(model)
    min_frames, dim = sizes(theirs, source, features.num_mel_bins)
    held = subtracted_mean(source)
    if held and mean_vec is not None:
        raise ExportError(f"{model} subtracts a mean from its embeddings already; leave out --mean-vec")
    mean = None if mean_vec is None else read_mean(mean_vec, dim)
    with BundleWriter(output) as writer:
        graph = encoder(source, features, settings.sample_rate, min_frames=min_frames, dim=dim, mean=mean)
        path = writer.folder / "encoder.onnx"
        path.write_bytes(graph.SerializeToString())
        progress(f"checking {path.name}")
        difference = _difference(opened(path), theirs, source, features, settings.sample_rate, min_frames, mean)
        if not difference <= MAX_DIFFERENCE:
            raise ExportError(
                f"the graph with features differs from {model} by {difference:.2g} of the size of embeddings, the "
                f"limit is {MAX_DIFFERENCE:g}. Please report this with the version of onnx."
            )
        progress("writing the bundle")
        files = {"model": model, "config": config, "mean_vec": mean_vec}
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind="embedding",
                sample_rate=settings.sample_rate,
                features=features,
                encoder=Encoder(
                    subsampling_rate=SUBSAMPLING,
                    output_dim=dim,
                    min_samples=least_samples(features, min_frames),
                    equal_lengths=True,
                ),
                parts=(EmbeddingPart(mean_subtracted=held or mean is not None, threshold=threshold),),
                artifacts=(writer.artifact("encoder", path.name),),
                provenance=provenance(
                    "wespeaker", {key: file for key, file in files.items() if file}, {"imported": True}, ONNX_PACKAGES
                ),
            )
        )
    progress("measuring the memory of calls")
    bundle = record(bundle)
    return ImportReport(bundle, bundle_bytes(bundle), difference)


def check_interface(source: Source) -> int | None:
    """Make sure that a graph takes features of any number of utterances of any length, and gives one vector for each.

    Returns:
        The bins of a frame, if the file states them.

    Raises:
        ExportError: it takes or gives something else.
    """
    inputs, outputs = source.inputs, source.outputs
    fits = (
        len(inputs) == len(outputs) == 1
        and (inputs[0].dtype, outputs[0].dtype) == (TensorProto.FLOAT, TensorProto.FLOAT)
        and len(inputs[0].shape) == 3
    )
    if not fits:
        seen = [", ".join(str(each) for each in tensors[:4]) or "nothing" for tensors in (inputs, outputs)]
        raise ExportError(
            f"{source.path} takes {seen[0]} and gives {seen[1]}; upstream's export_onnx.py writes one float32 input, "
            "feats (batch, frames, bins), and one float32 output, embs (batch, dim)"
        )
    batch, frames, bins = inputs[0].shape
    if batch is not None or frames is not None:
        raise ExportError(
            f"{source.path} is fixed to {batch or 'any number of'} utterances of {frames or 'any number of'} frames "
            "and takes no others; export it again with upstream's export_onnx.py, without --num_frames"
        )
    return bins


def sizes(theirs: Graph, source: Source, bins: int) -> tuple[int, int]:
    """The fewest frames that give a finite embedding, and the size of it.

    Raises:
        ExportError: it gives none, or an utterance's depends on others of its length.
    """
    frames = np.random.default_rng(0).normal(0, 2, (3, MAX_FIRST_FRAMES, bins)).astype(np.float32)
    [many] = run(theirs, source, {source.inputs[0].name: frames}, [source.outputs[0].name])
    if many.size % 3 or many.shape[0] != 3 or not np.isfinite(many).all():
        raise ExportError(
            f"{source.path} makes an output of shape {many.shape} of 3 utterances of {MAX_FIRST_FRAMES} frames; "
            "expected one finite vector for each"
        )
    alone = _embed(theirs, source, frames[0])
    apart = largest_difference(many.reshape(3, -1)[0], alone, source.path.name) / typical_size(alone)
    if apart > FLOAT_NOISE:
        raise ExportError(
            f"{source.path}: an embedding changes by {apart:.2g} of its size with what else is in the batch. Such a "
            "graph cannot be served in batches."
        )
    enough = (count for count in range(1, MAX_FIRST_FRAMES) if _is_enough(theirs, source, frames[0, :count]))
    return next(enough, MAX_FIRST_FRAMES), len(alone)


def _is_enough(theirs: Graph, source: Source, frames: Floats) -> bool:
    try:
        return bool(np.isfinite(_embed(theirs, source, frames)).all())
    except ExportError:
        return False


def _embed(theirs: Graph, source: Source, features: Floats) -> Floats:
    [found] = run(theirs, source, {source.inputs[0].name: features[None]}, [source.outputs[0].name])
    return found.reshape(-1)


def subtracted_mean(source: Source) -> bool:
    """Does the graph end with the subtraction of a constant other than 0, as upstream's export writes it?"""
    graph = source.model.graph
    makers = {name: node for node in graph.node for name in node.output}
    last = makers.get(graph.output[0].name)
    while last is not None and last.op_type == "Identity":
        last = makers.get(last.input[0])
    if last is None or last.op_type != "Sub":
        return False
    name = last.input[1]
    weights = [tensor for tensor in graph.initializer if tensor.name == name]
    if (maker := makers.get(name)) is not None and maker.op_type == "Constant":
        weights += [attribute.t for attribute in maker.attribute if attribute.name == "value"]
    return any(bool(np.any(numpy_helper.to_array(tensor))) for tensor in weights)


def encoder(
    source: Source, features: Features, sample_rate: int, *, min_frames: int, dim: int, mean: Floats | None
) -> onnx.ModelProto:
    """Role `encoder`: features, the graph, and its embeddings less `mean` (dim,)."""
    b = Builder()
    x, valid = utterance_features(b, features, sample_rate, min_frames)
    b.op("Identity", normalised(b, x, valid, features.normalize), output=EMBEDDED + source.inputs[0].name)
    b.embed(source.model)
    result = b.op("Reshape", EMBEDDED + source.outputs[0].name, b.constant([-1, dim]))
    b.op("Sub", result, b.real(np.zeros(1) if mean is None else mean), output="embeddings")
    return b.model(
        {"waveform": (TensorProto.FLOAT, ["batch", "samples"]), "num_samples": (TensorProto.INT64, ["batch"])},
        {"embeddings": (TensorProto.FLOAT, ["batch", dim])},
        {"producer": "tritone"},
    )


def normalised(b: Builder, x: str, valid: str, normalize: str) -> str:
    """Nodes that subtract the mean over the `valid` (batch,) frames of x (batch, frames, bins); see `features.py`."""
    if normalize == "none":
        return x
    frames = b.op("Reshape", b.slice(b.op("Shape", x), 1, 2, axis=0), b.constant(np.zeros(0)))
    places = b.op("Reshape", b.op("Range", b.constant(0), frames, b.constant(1)), b.constant([1, -1, 1]))
    own = b.op("Max", b.op("Reshape", valid, b.constant([-1, 1, 1])), b.constant(1))
    inside = b.op("Less", places, own)
    count = b.op("Cast", own, to=TensorProto.FLOAT)

    def over_frames(values: str, number: str) -> str:
        return b.op("Div", b.op("ReduceSum", values, b.constant([1]), keepdims=1), number)

    def less(values: str, mean: str) -> str:
        return b.op("Where", inside, b.op("Sub", values, mean), b.real(0))

    x = less(x, b.slice(x, 0, 1, axis=1))
    for _ in range(2):
        x = less(x, over_frames(x, count))
    if normalize == "mean":
        return x
    variance = over_frames(b.op("Mul", x, x), b.op("Max", b.op("Sub", count, b.real(1)), b.real(1)))
    return b.op("Div", x, b.op("Sqrt", b.op("Add", variance, b.real(VARIANCE_GUARD))))


def _features(config: Path | None, bins: int | None) -> FeatureConfig:
    """Features of a config, whatever its network is; or upstream's own."""
    if config is None:
        return FeatureConfig(num_mel_bins=bins or FeatureConfig.num_mel_bins)
    content = read_config_file(config)
    given = content.get("model_args")
    known = bins or (given.get("feat_dim") if isinstance(given, dict) else None) or FeatureConfig.num_mel_bins
    # Networks of any kind are imported, those too that cannot be built here.
    return parse_config({**content, "model": ECAPA_CLASS, "model_args": {"feat_dim": known}}).features


def _difference(
    ours: Graph,
    theirs: Graph,
    source: Source,
    features: Features,
    sample_rate: int,
    min_frames: int,
    mean: Floats | None,
) -> float:
    """The largest difference between our graph and theirs, as a share of the size of embeddings."""
    worst = 0.0
    for seed, count in enumerate(CHECKED_FRAMES):
        waveform = signal(least_samples(features, max(count, min_frames)) + 31 * seed, sample_rate, seed)
        feats = fbank(waveform, features, sample_rate).astype(np.float64)
        if features.normalize != "none":
            feats -= feats.mean(axis=0)
        if features.normalize == "per-feature":
            feats /= np.sqrt(feats.var(axis=0, ddof=1) + VARIANCE_GUARD)
        wanted = _embed(theirs, source, feats.astype(np.float32)) - (0 if mean is None else mean)
        feed = {"waveform": waveform[None], "num_samples": np.array([len(waveform)])}
        [found] = run(ours, source, feed, ["embeddings"])
        worst = max(worst, largest_difference(found[0], wanted, source.path.name) / typical_size(wanted))
    return worst
