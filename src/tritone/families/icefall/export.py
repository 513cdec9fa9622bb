"""From icefall's files to a bundle.

    pretrained.pt (or several to be averaged), tokens.txt | bpe.model
        ->  manifest.json, tokens.txt, and for each runtime and precision the encoder, the streaming encoder, and of a
            transducer predictor and joiner

Architecture and sizes are read off the tensors. Every graph is run before the bundle is written: the largest difference
from the torch network is part of the report. A float32 graph that differs by more than float noise is refused, one in
another precision if it drifts too far on audio.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from torch import nn

from tritone.audio import Waveform
from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import (
    Encoder,
    Features,
    Manifest,
    Precision,
    Role,
    Runtime,
    State,
    Streaming,
    Transducer,
    WeightStorage,
)
from tritone.errors import ExportError
from tritone.families.export.drift import Drift
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.graph_files import GraphFiles, GraphOptions
from tritone.families.export.report import ExportReport, bundle_bytes, provenance
from tritone.families.export.stages import AcousticStage, stage_graphs
from tritone.families.icefall.checkpoint import Average, load_model
from tritone.families.icefall.drift import TransducerDrift, ctc_drift
from tritone.families.icefall.graphs import (
    HIGH_FREQ,
    PROCESSED,
    SAMPLE_RATE,
    SAMPLE_SCALE,
    Head,
    JoinerGraph,
    OfflineGraph,
    PredictorGraph,
    StreamingGraph,
    feature_bins,
    make_fbank,
)
from tritone.families.icefall.model import Architecture, IcefallModel
from tritone.families.icefall.tokens import BLANK_ID, describe, read_table
from tritone.families.layers.fbank import FrontEnd
from tritone.runtime import Graph

# Chunk size, left and right context where none are given, in upstream's units: encoder frames of 40 ms for conformers,
# frames of 20 ms for zipformers. Upstream's defaults, or where it has none, what its published models were made with.
DEFAULT_SIZES: dict[Architecture, tuple[int, int, int]] = {"conformer": (16, 64, 0), "zipformer2": (16, 128, 0)}
MAX_SIZE = 4096  # frames; every stream keeps its left context in memory for every layer

Sizes: TypeAlias = tuple[int | None, int | None, int | None]


def export_icefall(
    *,
    checkpoint: Path | Sequence[Path],
    output: Path,
    tokens: Path | None = None,
    bpe_model: Path | None = None,
    average: Average | None = None,
    causal: bool | None = None,
    num_heads: Sequence[int] | None = None,
    head: Head | None = None,
    start_context: Sequence[int] | None = None,
    streaming: bool = False,
    stages: bool = False,
    chunk_size: int | None = None,
    left_context: int | None = None,
    right_context: int | None = None,
    name: str | None = None,
    tail_padding_ms: float = 0.0,
    weight_storage: WeightStorage = "fp32",
    runtimes: Sequence[Runtime] = ("onnxruntime",),
    precisions: Sequence[Precision] = ("fp32",),
    check_audio: Path | None = None,
    max_drift: float | None = None,
    force: bool = False,
    make_front_end: Callable[[int], FrontEnd] = make_fbank,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export a transducer, or the CTC head, of an icefall conformer or zipformer2.

    Args:
        checkpoint: upstream's `pretrained.pt` or epoch file, or several of these to be averaged.
        output: the bundle's folder; an older bundle there is replaced.
        tokens, bpe_model: the token table or the sentencepiece model; one of them.
        average: how to average, see `average_of`.
        causal: whether a conformer's convolutions are causal, which its tensors do not tell; None is upstream's
            default, that they are not. Of a zipformer it may be given and must be right.
        num_heads: of each stack of a zipformer, or one number for all, where the tensors leave it open.
        head: "transducer" or "ctc"; None takes the transducer, if there is one.
        start_context: what stands for the tokens before the first, the newest last; -1 is none at all. None takes -1
            and at the end the blank, as upstream's searches do.
        streaming: also export a streaming encoder.
        stages: also export features and acoustic network as graphs of their own, for serving them as separate models.
        chunk_size, left_context, right_context: its sizes; None takes those of `DEFAULT_SIZES`.
        name: the model's name; by default the output folder's.
        tail_padding_ms: silence that serving appends to every utterance; 0 gives upstream's result.
        weight_storage, runtimes, precisions, check_audio, max_drift, force, progress: see `GraphOptions`.
        make_front_end: what computes features of so many bins; replaced only to feed features through a bundle.

    Raises:
        ExportError: a file is missing, damaged or unsupported, something does not fit the model, a graph does not
            reproduce the torch network, or one in another precision drifts too far.
        BundleError: the output folder is in use for something else.
        InputError: the audio to check with cannot be read.
        ValueError: see `GraphOptions`.
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
    paths = [checkpoint] if isinstance(checkpoint, Path) else list(checkpoint)
    chosen = (chunk_size, left_context, right_context)
    check_request(tokens, bpe_model, streaming, chosen)
    progress("reading the checkpoint")
    overrides = {} if num_heads is None else {"num_heads": list(num_heads)}
    model = load_model(paths, average=average, causal=causal, overrides=overrides)
    config = model.config
    if head is None:
        head = "transducer" if config.predictor is not None else "ctc"
    if head == "ctc" and start_context is not None:
        raise ExportError("a start context is for transducers; a CTC head has none")
    vocab_size = config.vocab_size if head == "transducer" else config.ctc_vocab_size or config.vocab_size
    units = read_table(tokens, bpe_model, vocab_size)
    vocabulary = describe(units)
    sizes = streaming_sizes(config.architecture, chosen)
    front_end = make_front_end(feature_bins(model))

    def graphs_of(model: IcefallModel) -> Graphs:
        graphs: dict[Role, ExportableGraph] = {"encoder": OfflineGraph(model, front_end, head)}
        if streaming:
            graphs["streaming_encoder"] = StreamingGraph(model, front_end, head, *sizes)
        if stages:
            graphs |= stage_graphs(graphs["encoder"])
        if head == "transducer":
            graphs["predictor"] = PredictorGraph(model.predictor, model.joiner)
            graphs["joiner"] = JoinerGraph(model.joiner)
        return {role: graph.eval() for role, graph in graphs.items()}

    graphs = graphs_of(model)
    offline, stream = graphs["encoder"], graphs.get("streaming_encoder")
    assert isinstance(offline, OfflineGraph)
    transducer = _transducer(model, start_context, vocab_size) if head == "transducer" else None

    def drift(role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Drift:
        graph, predictor, joiner = graphs[role], graphs.get("predictor"), graphs.get("joiner")
        if transducer is None:
            assert isinstance(graph, OfflineGraph | StreamingGraph | AcousticStage)
            return ctc_drift(graph, opened, recordings)
        assert isinstance(predictor, PredictorGraph)
        assert isinstance(joiner, JoinerGraph)
        silent = frozenset({BLANK_ID} if vocabulary.unk_id is None else {BLANK_ID, vocabulary.unk_id})
        return TransducerDrift(offline, predictor, joiner, transducer.start, silent)(graph, opened, recordings)

    with BundleWriter(output) as writer:
        writer.write_tokens(units)
        written = GraphFiles(
            writer=writer,
            graphs=graphs,
            in_precision=lambda precision, explicit: graphs_of(model.in_precision(precision, explicit=explicit)),
            drift=drift,
            sample_rate=SAMPLE_RATE,
            options=options,
        )
        written.write()
        progress("writing the bundle")
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind="ctc" if transducer is None else "transducer",
                sample_rate=SAMPLE_RATE,
                features=Features(
                    frame_length=front_end.frame_length,
                    frame_shift=front_end.frame_shift,
                    num_mel_bins=feature_bins(model),
                    high_freq=HIGH_FREQ,
                    snip_edges=False,
                    sample_scale=SAMPLE_SCALE,
                ),
                encoder=Encoder(
                    subsampling_rate=model.encoder.subsampling,
                    output_dim=offline.output.width,
                    min_samples=offline.min_samples,
                    tail_samples=round(tail_padding_ms * SAMPLE_RATE / 1000),
                ),
                vocabulary=vocabulary,
                streaming=_streaming(stream, sizes) if isinstance(stream, StreamingGraph) else None,
                transducer=transducer,
                artifacts=tuple(written.artifacts),
                provenance=provenance(
                    "icefall",
                    _sources(paths, tokens, bpe_model),
                    {
                        "architecture": config.architecture,
                        "average": average,
                        "head": head,
                        "causal": getattr(config.encoder, "causal", None),
                        "streaming": streaming,
                        "stages": stages,
                        "chunk_size": sizes[0] if streaming else None,
                        "left_context": sizes[1] if streaming else None,
                        "right_context": sizes[2] if streaming else None,
                        "num_heads": None if num_heads is None else ",".join(map(str, num_heads)),
                        "tail_padding_ms": tail_padding_ms,
                        **options.record(),
                    },
                ),
            )
        )
    return ExportReport(
        bundle,
        _parameters(graphs),
        bundle_bytes(bundle),
        written.differences,
        written.drifts,
        tuple(taken_for_granted(model, causal, num_heads)),
    )


def check_request(tokens: Path | None, bpe_model: Path | None, streaming: bool, sizes: Sizes) -> None:
    """Refuse what cannot be, whatever the checkpoint holds; arguments as of `export_icefall`.

    Raises:
        ExportError: there is not one file of tokens, or sizes are given for no stream or are out of all proportion.
    """
    if (tokens is None) == (bpe_model is None):
        raise ExportError("give the model's tokens: either tokens.txt (--tokens) or bpe.model (--bpe-model)")
    table = tokens or bpe_model
    assert table is not None
    if not table.exists():
        raise ExportError(f"table of tokens not found: {table}")
    if not streaming and any(size is not None for size in sizes):
        raise ExportError("a chunk size and contexts are for streaming; add --streaming, or leave them out")
    if any(size is not None and size > MAX_SIZE for size in sizes):
        given = ", ".join(str(size) for size in sizes if size is not None)
        raise ExportError(f"a chunk size and contexts are of at most {MAX_SIZE} frames each, got {given}")


def streaming_sizes(architecture: Architecture, chosen: Sizes) -> tuple[int, int, int]:
    """Chunk size, left and right context: what was chosen, and the usual where nothing was."""
    chunk, left, right = (
        usual if size is None else size for size, usual in zip(chosen, DEFAULT_SIZES[architecture], strict=True)
    )
    return chunk, left, right


def _transducer(model: IcefallModel, start: Sequence[int] | None, vocab_size: int) -> Transducer:
    size = model.predictor.context_size
    if start is None:
        start = (*[-1] * (size - 1), BLANK_ID)
    if len(start) != size or not all(-1 <= id < vocab_size for id in start):
        raise ExportError(
            f"the start context {','.join(map(str, start))} should be {size} token ids, each -1 (none) to "
            f"{vocab_size - 1}"
        )
    return Transducer(context_size=size, start=tuple(start))


def _streaming(stream: StreamingGraph, sizes: Sequence[int]) -> Streaming:
    chunk_size, left_context, _ = sizes
    return Streaming(
        chunk_size=stream.chunk_frames,
        left_chunks=left_context // chunk_size,
        window_samples=stream.window_samples,
        shift_samples=stream.shift_samples,
        states=tuple(
            State(name=name, shape=shape, dtype="int64" if name == PROCESSED else "float32")
            for name, shape in stream.state_shapes.items()
        ),
        lead_samples=stream.front_end.lead_samples,
        flush_samples=stream.flush_samples,
    )


def _sources(paths: Sequence[Path], tokens: Path | None, bpe_model: Path | None) -> dict[str, Path]:
    names = ["checkpoint"] if len(paths) == 1 else [f"checkpoint_{number}" for number in range(1, len(paths) + 1)]
    sources = dict(zip(names, paths, strict=True))
    sources |= {"tokens": tokens} if tokens else {}
    sources |= {"bpe_model": bpe_model} if bpe_model else {}
    return sources


def _parameters(graphs: Graphs) -> int:
    """Of all graphs, those that several have counted once."""
    found: dict[int, nn.Parameter] = {
        id(parameter): parameter for graph in graphs.values() for parameter in graph.parameters()
    }
    return sum(parameter.numel() for parameter in found.values())


def taken_for_granted(model: IcefallModel, causal: bool | None, num_heads: Sequence[int] | None) -> list[str]:
    """Notes on what no tensor tells and nobody said."""
    encoder = model.config.encoder
    if model.config.architecture == "conformer":
        if causal is None:
            return [
                "nobody said whether the conformer's convolutions are causal, and its tensors do not tell: it was "
                "taken for one that is not (upstream's default). If it was trained with --causal-convolution 1, add "
                "--causal."
            ]
        return []
    if num_heads is None:
        heads = ",".join(str(stack.heads) for stack in encoder.stacks)  # type: ignore[union-attr]
        return [
            f"the zipformer was taken to have {heads} heads, which follows from a position size of 4 a head, as all "
            "published recipes have. If it was trained with another --pos-head-dim, give --num-heads."
        ]
    return []
