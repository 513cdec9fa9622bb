"""From upstream's files to a bundle.

    config.yaml, avg_model.pt, mean_vec.npy  ->  manifest.json, and the graph of whole utterances in each precision

Every graph is run before the bundle is written: the largest difference from the torch network is part of the report. A
float32 graph that differs by more than float noise is refused, one in another precision if embeddings turn too far.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tritone.audio import Waveform
from tritone.audio.fbank import SAMPLE_SCALE
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import Embedding, Encoder, Manifest, Precision, Role, Runtime, WeightStorage
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.graph_files import GraphFiles, GraphOptions
from tritone.families.export.precision import DTYPES
from tritone.families.export.report import ExportReport, bundle_bytes, provenance
from tritone.families.export.stages import stage_graphs
from tritone.families.wespeaker.checkpoint import load_network, read_config
from tritone.families.wespeaker.drift import MAX_DRIFT, EmbeddingDrift, embedding_drift
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.front_end import Window, manifest_features
from tritone.families.wespeaker.graphs import OfflineGraph
from tritone.families.wespeaker.mean import read_mean
from tritone.runtime import Graph


def export_wespeaker(
    *,
    checkpoint: Path,
    config: Path,
    output: Path,
    mean_vec: Path | None = None,
    window: Window = "hamming",
    sample_scale: float = SAMPLE_SCALE,
    threshold: float | None = None,
    stages: bool = False,
    name: str | None = None,
    weight_storage: WeightStorage = "fp32",
    runtimes: Sequence[Runtime] = ("onnxruntime",),
    precisions: Sequence[Precision] = ("fp32",),
    check_audio: Path | None = None,
    max_drift: float | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export a speaker model: ResNet, ECAPA-TDNN or CAM++.

    Args:
        checkpoint, config: upstream's avg_model.pt (or any of its checkpoints) and config.yaml.
        output: the bundle's folder; an older bundle there is replaced.
        mean_vec: upstream's mean_vec.npy, which the graph then subtracts from every embedding.
        window, sample_scale: of the features; see `manifest_features`.
        threshold: for the manifest: the cosine above which two recordings are taken for one speaker's, from -1 to 1.
        stages: also export features and network as graphs of their own, for serving them as separate models.
        name: the model's name; by default the output folder's.
        weight_storage, runtimes, precisions, check_audio, max_drift, force, progress: see `GraphOptions`. No int8.
            `max_drift` is of 1 - cosine, see `EmbeddingDrift`.

    Raises:
        ExportError: a file is missing, damaged or unsupported, a graph does not reproduce the torch network, or one in
            another precision drifts too far.
        BundleError: the output folder is in use for something else.
        InputError: the audio to check with cannot be read.
        ValueError: a runtime or a precision is unknown, given twice, or not to be had of each other; or the limit of
            the drift is negative; or int8, an unknown window, a scale of 0 or an impossible threshold is asked for.
    """
    if "int8" in precisions:
        raise ValueError(
            "int8 is for products of matrices, and these networks are made of convolutions: take fp16, or store the "
            "weights as int8"
        )
    options = GraphOptions(
        runtimes=runtimes,
        precisions=precisions,
        weight_storage=weight_storage,
        check_audio=check_audio,
        max_drift=max_drift,
        usual_drift=MAX_DRIFT,
        force=force,
        progress=progress,
    )
    progress("reading the checkpoint")
    settings = read_config(config)
    features = manifest_features(settings.features, window=window, sample_scale=sample_scale)
    network, _ = load_network(settings, checkpoint)
    mean = None if mean_vec is None else torch.from_numpy(read_mean(mean_vec, network.embed_dim))
    front_end = SpeakerFeatures(features, settings.features.sample_rate)

    def graphs_in(precision: Precision) -> Graphs:
        typed = network if precision == "fp32" else copy.deepcopy(network).to(DTYPES[precision])
        graphs: dict[Role, ExportableGraph] = {"encoder": OfflineGraph(typed, front_end, mean).eval()}
        return graphs | stage_graphs(graphs["encoder"]) if stages else graphs

    graphs = graphs_in("fp32")
    offline = graphs["encoder"]
    assert isinstance(offline, OfflineGraph)

    def drift(role: Role, opened: Graph, recordings: Sequence[Waveform]) -> EmbeddingDrift:
        return embedding_drift(graphs[role], opened, recordings)

    with BundleWriter(output) as writer:
        written = GraphFiles(
            writer=writer,
            graphs=graphs,
            in_precision=lambda precision, explicit: graphs_in(precision),
            drift=drift,
            sample_rate=settings.features.sample_rate,
            options=options,
        )
        written.write()
        progress("writing the bundle")
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind="embedding",
                sample_rate=settings.features.sample_rate,
                features=features,
                encoder=Encoder(
                    subsampling_rate=network.subsampling,
                    output_dim=network.embed_dim,
                    min_samples=offline.min_samples,
                ),
                embedding=Embedding(mean_subtracted=mean is not None, threshold=threshold),
                artifacts=tuple(written.artifacts),
                provenance=provenance(
                    "wespeaker",
                    {"checkpoint": checkpoint, "config": config} | ({"mean_vec": mean_vec} if mean_vec else {}),
                    {"model": settings.name, "stages": stages, **options.record()},
                ),
            )
        )
    parameters = sum(each.numel() for each in network.parameters())
    return ExportReport(bundle, parameters, bundle_bytes(bundle), written.differences, written.drifts)
