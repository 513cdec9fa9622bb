"""From WeNet's files to a bundle.

    final.pt, train.yaml, units.txt[, global_cmvn]
        ->  manifest.json, tokens.txt, and for each runtime and precision the offline graph, the streaming graph and
            that of the attention decoder

Every graph is run before the bundle is written: the largest difference from the torch network is part of the report. A
float32 graph that differs by more than float noise is refused, one in another precision if it drifts too far on audio.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from tritone.audio import Waveform
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import (
    Decoder,
    Encoder,
    Features,
    Manifest,
    Precision,
    Role,
    Runtime,
    State,
    Streaming,
    Vocabulary,
    WeightStorage,
)
from tritone.families.export.drift import Drift
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.graph_files import GraphFiles, GraphOptions
from tritone.families.export.report import ExportReport, bundle_bytes, provenance
from tritone.families.export.stages import AcousticStage, stage_graphs
from tritone.families.layers.fbank import FrontEnd
from tritone.families.wenet.checkpoint import load_model, read_config, read_units
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.drift import decoder_drift, encoder_drift
from tritone.families.wenet.graphs import OfflineGraph, StreamingGraph, make_fbank
from tritone.families.wenet.model import AsrModel
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.runtime import Graph


def export_wenet(
    *,
    checkpoint: Path,
    config: Path,
    tokens: Path,
    output: Path,
    cmvn: Path | None = None,
    streaming: bool = False,
    stages: bool = False,
    chunk_size: int = 16,
    left_chunks: int = 5,
    name: str | None = None,
    tail_padding_ms: float = 0.0,
    weight_storage: WeightStorage = "fp32",
    runtimes: Sequence[Runtime] = ("onnxruntime",),
    precisions: Sequence[Precision] = ("fp32",),
    decoder: bool = True,
    check_audio: Path | None = None,
    max_drift: float | None = None,
    force: bool = False,
    make_front_end: Callable[[ModelConfig], FrontEnd] = make_fbank,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export the encoder, the CTC head and, where it has one, the attention decoder of a WeNet model.

    Args:
        checkpoint, config, tokens: upstream's `final.pt`, `train.yaml`, `units.txt`.
        output: the bundle's folder; an older bundle there is replaced.
        cmvn: statistics file, when the checkpoint does not hold them and they do not lie beside it.
        streaming: also export the streaming graph.
        stages: also export features and acoustic network as graphs of their own, for serving them as separate models.
        chunk_size, left_chunks: encoder frames a step, and past chunks a step may attend to (-1: all). The graph takes
            others as well: these are what serving uses when it is not asked for any.
        name: the model's name; by default the output folder's.
        tail_padding_ms: silence that serving appends to every utterance; 0 gives upstream's result.
        weight_storage: "fp32", "fp16" or "int8" (fp16 in programs of torch); float32 arithmetic stays float32 in each.
        runtimes: what to write graphs for; the first is what the bundle runs on by default.
        precisions: of the graphs; each runtime gets those that it can have, see `PRECISIONS`.
        decoder: export the attention decoder if the model has one.
        check_audio: folder of audio files or wav.scp for the check of graphs in other precisions than float32; by
            default the clips of the demo.
        max_drift: see `GraphOptions`.
        force: write such a graph even if it moves more.
        progress: told what is done next; tracing a deep model takes about a minute.
        make_front_end: what computes features; replaced only to feed features through a bundle, as parity tests do.

    Raises:
        ExportError: a file is missing, damaged or unsupported, a graph does not reproduce the torch network, or
            one in another precision drifts too far.
        BundleError: the output folder is in use for something else.
        InputError: the audio to check with cannot be read.
        ValueError: a runtime or a precision is unknown, given twice, or not to be had of each other; or the limit of
            the drift is negative.
    """
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
    settings = read_config(config)
    units = read_units(tokens, settings.vocab_size)
    model = load_model(settings, checkpoint, cmvn)
    front_end = make_front_end(settings)

    def graphs_of(model: AsrModel) -> Graphs:
        graphs: dict[Role, ExportableGraph] = {"encoder": OfflineGraph(model, front_end).eval()}
        if streaming:
            graphs["streaming_encoder"] = StreamingGraph(model, front_end, chunk_size, left_chunks).eval()
        if stages:
            graphs |= stage_graphs(graphs["encoder"])
        if decoder and model.decoder is not None:
            graphs["decoder"] = _rescoring(model, vocabulary)
        return graphs

    vocabulary = _vocabulary(settings, units)
    graphs = graphs_of(model)
    offline, stream = graphs["encoder"], graphs.get("streaming_encoder")
    rescoring = graphs.get("decoder")
    assert isinstance(offline, OfflineGraph)

    def drift(role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        graph = graphs[role]
        if isinstance(graph, RescoringGraph):
            return decoder_drift(graph, opened, offline, settings.blank_id, recordings)
        assert isinstance(graph, OfflineGraph | StreamingGraph | AcousticStage)
        return encoder_drift(graph, opened, recordings)

    with BundleWriter(output) as writer:
        writer.write_tokens(units)
        written = GraphFiles(
            writer=writer,
            graphs=graphs,
            in_precision=lambda precision, explicit: graphs_of(model.in_precision(precision, explicit=explicit)),
            drift=drift,
            sample_rate=settings.sample_rate,
            options=options,
        )
        written.write()
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
                vocabulary=vocabulary,
                streaming=_streaming(stream) if isinstance(stream, StreamingGraph) else None,
                decoder=_decoder(settings, rescoring) if isinstance(rescoring, RescoringGraph) else None,
                artifacts=tuple(written.artifacts),
                provenance=provenance(
                    "wenet",
                    sources,
                    {
                        "streaming": streaming,
                        "stages": stages,
                        "chunk_size": chunk_size,
                        "left_chunks": left_chunks,
                        "tail_padding_ms": tail_padding_ms,
                        "decoder": rescoring is not None,
                        **options.record(),
                    },
                ),
            )
        )
    parts = (model.encoder, model.ctc, model.decoder if rescoring is not None else None)
    parameters = sum(p.numel() for part in parts if part is not None for p in part.parameters())
    return ExportReport(bundle, parameters, bundle_bytes(bundle), written.differences, written.drifts)


def _features(settings: ModelConfig, offline: OfflineGraph) -> Features:
    return Features(
        frame_length=offline.front_end.frame_length,
        frame_shift=offline.front_end.frame_shift,
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


def _rescoring(model: AsrModel, vocabulary: Vocabulary) -> RescoringGraph:
    assert model.decoder is not None
    assert vocabulary.sos_id is not None
    assert vocabulary.eos_id is not None
    width = model.config.encoder.output_size
    return RescoringGraph(model.decoder, vocabulary.sos_id, vocabulary.eos_id, width).eval()


def _decoder(settings: ModelConfig, graph: RescoringGraph) -> Decoder:
    return Decoder(
        bidirectional=graph.bidirectional,
        ctc_weight=settings.ctc_weight,
        reverse_weight=settings.reverse_weight if graph.bidirectional else 0.0,
    )


def _streaming(stream: StreamingGraph) -> Streaming:
    return Streaming(
        chunk_size=stream.chunk_size,
        left_chunks=stream.left_chunks,
        window_samples=stream.window_for(stream.chunk_size),
        shift_samples=stream.shift_for(stream.chunk_size),
        states=tuple(
            State(name=name, shape=shape, dtype="int64" if name == "offset" else "float32")
            for name, shape in stream.state_shapes.items()
        ),
        flexible=True,
    )
