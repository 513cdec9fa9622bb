"""From upstream's files to a bundle.

    Jasper_…_checkpoint.pt and its .yaml, or a .nemo archive
        ->  manifest.json, tokens.txt, and for each runtime and precision the graph of whole utterances

Every graph is run before the bundle is written: the largest difference from the torch network is part of the report. A
float32 graph that differs by more than float noise is refused, one in another precision if it drifts too far on audio.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tritone.audio import Waveform
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import (
    Encoder,
    Features,
    Manifest,
    Precision,
    Role,
    Runtime,
    Vocabulary,
    WeightStorage,
)
from tritone.bundle.vocabulary import SPACE
from tritone.errors import ExportError
from tritone.families.export.drift import Drift
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame_drift import frame_drift
from tritone.families.export.graph_files import GraphFiles, GraphOptions
from tritone.families.export.report import ExportReport, bundle_bytes, provenance
from tritone.families.export.stages import stage_graphs
from tritone.families.jasper.checkpoint import check_state, read_config, read_weights
from tritone.families.jasper.config import FeatureConfig, ModelConfig
from tritone.families.jasper.features import LogMel
from tritone.families.jasper.graphs import OfflineGraph
from tritone.families.jasper.model import Network
from tritone.families.jasper.nemo import NEMO_SUFFIX
from tritone.runtime import Graph

BLANK = "<blank>"  # upstream's name for the class that it appends


def export_jasper(
    *,
    checkpoint: Path,
    output: Path,
    config: Path | None = None,
    ema: bool = True,
    masked: bool | None = None,
    stages: bool = False,
    name: str | None = None,
    tail_padding_ms: float = 0.0,
    weight_storage: WeightStorage = "fp32",
    runtimes: Sequence[Runtime] = ("onnxruntime",),
    precisions: Sequence[Precision] = ("fp32",),
    check_audio: Path | None = None,
    max_drift: float | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export a Jasper or QuartzNet model.

    Args:
        checkpoint: upstream's checkpoint, or a .nemo archive.
        output: the bundle's folder; an older bundle there is replaced.
        config: upstream's yaml; of a .nemo archive, the one inside by default.
        ema: take the averaged weights (`ema_state_dict`) if the checkpoint has them.
        masked: whether the network zeroes what is behind an utterance's end before each convolution; None: as the
            config says. Without, it hears the padding that upstream gives the utterance alone. Neither way does a
            result depend on other utterances.
        stages: also export features and acoustic network as graphs of their own, for serving them as separate models.
        name: the model's name; by default the output folder's.
        tail_padding_ms: silence that serving appends to every utterance; 0 gives upstream's result.
        weight_storage, runtimes, precisions, check_audio, max_drift, force, progress: see `GraphOptions`. No int8.

    Raises:
        ExportError: a file is missing, damaged or unsupported, a graph does not reproduce the torch network, or
            one in another precision drifts too far.
        BundleError: the output folder is in use for something else.
        InputError: the audio to check with cannot be read.
        ValueError: a runtime or a precision is unknown, given twice, or not to be had of each other; or the limit of
            the drift is negative; or int8 is asked for.
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
        force=force,
        progress=progress,
    )
    progress("reading the checkpoint")
    if config is None and checkpoint.suffix != NEMO_SUFFIX:
        raise ExportError(f"{checkpoint} needs a config: the .yaml that it was trained with (--config)")
    settings = read_config(config or checkpoint)
    tokens = _tokens(settings)
    weights = read_weights(checkpoint, ema=ema)
    check_state(settings, weights.state, str(checkpoint))
    parameters = sum(value.numel() for name, value in weights.state.items() if ".running_" not in name)
    settings = replace(settings, masked=settings.masked if masked is None else masked)
    network = Network.of(settings, weights.state)
    front_end = LogMel(settings.features)
    averaged = weights.averaged
    del weights

    def graphs_of(network: Network) -> Graphs:
        graphs: dict[Role, ExportableGraph] = {"encoder": OfflineGraph(network, front_end).eval()}
        return graphs | stage_graphs(graphs["encoder"]) if stages else graphs

    graphs = graphs_of(network)
    offline = graphs["encoder"]
    assert isinstance(offline, OfflineGraph)

    def drift(role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        return frame_drift(graphs[role], opened, recordings)

    with BundleWriter(output) as writer:
        writer.write_tokens(tokens)
        written = GraphFiles(
            writer=writer,
            graphs=graphs,
            in_precision=lambda precision, explicit: graphs_of(network.in_precision(precision)),
            drift=drift,
            sample_rate=settings.features.sample_rate,
            options=options,
        )
        written.write()
        progress("writing the bundle")
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind="ctc",
                sample_rate=settings.features.sample_rate,
                features=_features(settings.features),
                encoder=Encoder(
                    subsampling_rate=settings.subsampling_rate,
                    output_dim=settings.blocks[-1].filters,
                    min_samples=offline.min_samples,
                    tail_samples=round(tail_padding_ms * settings.features.sample_rate / 1000),
                ),
                vocabulary=Vocabulary(size=settings.num_classes, units="char", blank_id=settings.blank_id),
                artifacts=tuple(written.artifacts),
                provenance=provenance(
                    "jasper",
                    {"checkpoint": checkpoint} | ({"config": config} if config else {}),
                    {
                        "ema": averaged,
                        "masked": settings.masked,
                        "stages": stages,
                        "tail_padding_ms": tail_padding_ms,
                        **options.record(),
                    },
                ),
            )
        )
    notes = () if averaged or not ema else ("the checkpoint has no averaged weights; its plain ones were taken",)
    return ExportReport(bundle, parameters, bundle_bytes(bundle), written.differences, written.drifts, notes)


def _tokens(settings: ModelConfig) -> list[str]:
    """The table of the bundle.

    Raises:
        ExportError: a label cannot stand in it, or is there twice.
    """
    tokens = [SPACE if label == " " else label for label in settings.labels]
    bad = [label for label in tokens if any(character.isspace() for character in label)]
    twice = sorted({label for label in tokens if tokens.count(label) > 1})
    if bad or twice or BLANK in tokens:
        raise ExportError(
            f"labels: {bad or twice or [BLANK]} cannot be told apart or written; expected characters, each once, and a "
            "space as ' '"
        )
    return [*tokens, BLANK]


def _features(config: FeatureConfig) -> Features:
    return Features(
        kind="log-mel",
        frame_length=config.frame_length,
        frame_shift=config.frame_shift,
        num_mel_bins=config.n_filt,
        window={"hann": "hanning"}.get(config.window, config.window),  # type: ignore[arg-type]  # checked before
        preemphasis=config.preemphasis,
        low_freq=config.low_freq,
        high_freq=config.high_freq,
        snip_edges=False,
        sample_scale=1.0,
        normalize=config.normalize,
    )
