"""From icefall's files to a bundle.

    pretrained.pt (or several to be averaged), tokens.txt | bpe.model
        ->  manifest.json, tokens.txt, and for each runtime and precision the encoder, the streaming encoder, and of a
            transducer predictor and joiner

Architecture and sizes are read off the tensors.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tritone.bundle.manifest import Encoder, Features, Precision, Role, State, Streaming
from tritone.errors import ExportError
from tritone.families.export.checkpoint import file_in
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.joiner import JoinerGraph
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.stages import stage_graphs
from tritone.families.icefall.checkpoint import load_model
from tritone.families.icefall.graphs import (
    FRAME_SHIFT,
    HIGH_FREQ,
    PROCESSED,
    SAMPLE_RATE,
    SAMPLE_SCALE,
    OfflineGraph,
    PredictorGraph,
    StreamingGraph,
    feature_bins,
    make_fbank,
)
from tritone.families.icefall.model import Architecture, IcefallModel
from tritone.families.icefall.options import Head, IcefallOptions
from tritone.families.icefall.tokens import BLANK_ID, describe, read_table
from tritone.families.layers.fbank import FrontEnd
from tritone.kinds.transducer.part import TransducerPart

TOKENS = "tokens.txt"
# Chunk size, left and right context where none are given, in encoder frames: upstream's defaults, or where it has none,
# what its published models were made with.
DEFAULT_SIZES: dict[Architecture, tuple[int, int, int]] = {"conformer": (16, 64, 0), "zipformer2": (8, 64, 0)}
NETWORK_FRAMES: dict[Architecture, int] = {"conformer": 1, "zipformer2": 2}
"""How many frames of its own a network counts for an encoder frame: a zipformer halves their number at its end."""
MAX_SIZE = 4096  # encoder frames; every stream keeps its left context in memory for every layer

Sizes: TypeAlias = tuple[int, int, int]


def export_icefall(*, make_front_end: Callable[[int], FrontEnd] = make_fbank, **choices: Any) -> ExportReport:
    """Export a transducer, or the CTC head, of an icefall conformer or zipformer2.

    Args:
        choices: the fields of `IcefallOptions`.
        make_front_end: what computes features of so many bins; replaced only to feed features through a bundle.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or something does not fit the model; or as of
            `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = IcefallOptions(**choices)
    return write_bundle(ExportedIcefall(options, make_front_end), options)


class ExportedIcefall(ExportedModel):
    """A trained transducer or CTC model of icefall."""

    family = "icefall"
    sample_rate = SAMPLE_RATE

    def __init__(self, options: IcefallOptions, make_front_end: Callable[[int], FrontEnd]) -> None:
        """Read the files that the options name."""
        self.options = options
        read = ReadModel(options)
        self.model, self.tokens, self.head, self.sizes = read.model, read.tokens, read.head, read.sizes
        if self.head == "ctc" and options.start_context is not None:
            raise ExportError("a start context is for transducers; a CTC head has none")
        self.vocabulary = describe(self.tokens)
        self.front_end = make_front_end(feature_bins(self.model))
        self.transducer = (
            _transducer(self.model, options.start_context, len(self.tokens)) if self.head == "transducer" else None
        )
        unknown = self.vocabulary.unk_id
        self.silent = frozenset({BLANK_ID} if unknown is None else {BLANK_ID, unknown})
        config, heads = self.model.config, options.num_heads
        chunk, left, right = self.sizes if options.streaming else (None, None, None)
        self.sources = _sources(options.checkpoints, read.table, options.bpe_model)
        self.choices = {
            "architecture": config.architecture,
            "average": options.average,
            "head": self.head,
            "causal": getattr(config.encoder, "causal", None),
            "streaming": options.streaming,
            "chunk_size": chunk,
            "left_context": left,
            "right_context": right,
            "num_heads": None if heads is None else ",".join(map(str, heads)),
        }
        self.notes = read.notes

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        model = in_precision(self.model, precision, explicit=explicit)
        offline = OfflineGraph(model, self.front_end, self.head)
        graphs: dict[Role, ExportableGraph] = {"encoder": offline}
        if self.options.streaming:
            sizes = network_sizes(model, self.sizes)
            graphs["streaming_encoder"] = StreamingGraph(model, self.front_end, self.head, *sizes)
        if self.options.stages:
            graphs |= stage_graphs(offline)
        if self.head == "transducer":
            graphs["predictor"] = PredictorGraph(model.predictor, model.joiner)
            graphs["joiner"] = JoinerGraph(model.joiner)
        return {role: graph.eval() for role, graph in graphs.items()}

    def manifest(self) -> dict[str, Any]:
        offline, stream = self.graphs["encoder"], self.graphs.get("streaming_encoder")
        assert isinstance(offline, OfflineGraph)
        return {
            "kind": "ctc" if self.transducer is None else "transducer",
            "features": Features(
                frame_length=self.front_end.frame_length,
                frame_shift=self.front_end.frame_shift,
                num_mel_bins=feature_bins(self.model),
                high_freq=HIGH_FREQ,
                snip_edges=False,
                sample_scale=SAMPLE_SCALE,
            ),
            "encoder": Encoder(
                subsampling_rate=self.model.encoder.subsampling,
                output_dim=offline.output.width,
                min_samples=offline.min_samples,
                tail_samples=tail_samples(self.options, SAMPLE_RATE),
            ),
            "vocabulary": self.vocabulary,
            "streaming": _streaming(stream, self.sizes) if isinstance(stream, StreamingGraph) else None,
            "transducer": self.transducer,
        }


class ReadModel:
    """What the files that options name hold, for a bundle or for a folder of sherpa-onnx.

    Attributes:
        model: the network.
        table: the token table as a file, None if there is a sentencepiece model.
        tokens: in the order of their ids.
        head: what to export.
        sizes: chunk size, left and right context of streams, in encoder frames.
        notes: what was taken for granted.
    """

    def __init__(self, options: IcefallOptions) -> None:
        """Read them.

        Raises:
            ExportError: a file is missing, damaged or unsupported, there is not one file of tokens, or sizes are given
                for no stream or are out of all proportion.
        """
        given = options.chunk_size, options.left_context, options.right_context
        _check_request(options, given)
        options.progress("reading the checkpoint")
        overrides = {} if options.num_heads is None else {"num_heads": list(options.num_heads)}
        self.model = load_model(
            options.checkpoints, average=options.average, causal=options.causal, overrides=overrides
        )
        config = self.model.config
        self.head: Head = options.head or ("transducer" if config.predictor is not None else "ctc")
        size = config.vocab_size if self.head == "transducer" else config.ctc_vocab_size or config.vocab_size
        self.table = None if options.tokens is None else file_in(options.tokens, TOKENS)
        self.tokens = read_table(self.table, options.bpe_model, size)
        usual = DEFAULT_SIZES[config.architecture]
        chunk, left, right = (most if size is None else size for size, most in zip(given, usual, strict=True))
        self.sizes: Sizes = (chunk, left, right)
        notes = taken_for_granted(self.model, options.causal, options.num_heads)
        if options.streaming:
            notes.append(_described_steps(self.model, self.sizes))
        self.notes = tuple(notes)


def network_sizes(model: IcefallModel, sizes: Sizes) -> Sizes:
    """Chunk size, left and right context in frames of the network, of encoder frames."""
    chunk, left, right = (NETWORK_FRAMES[model.config.architecture] * size for size in sizes)
    return chunk, left, right


def _described_steps(model: IcefallModel, sizes: Sizes) -> str:
    ms = model.encoder.subsampling * FRAME_SHIFT * 1000 // SAMPLE_RATE
    chunk, left, right = sizes
    note = (
        f"a streaming step has {chunk} encoder frames ({chunk * ms} ms), sees {left} of the past ({left * ms} ms) and "
        f"waits for {right} more ({right * ms} ms)"
    )
    own_chunk, own_left, _ = network_sizes(model, sizes)
    if own_chunk != chunk:
        note += f"; upstream, which counts frames of {ms // 2} ms, calls that chunk {own_chunk} and left {own_left}"
    return note


def _check_request(options: IcefallOptions, sizes: Sequence[int | None]) -> None:
    tokens, bpe_model = options.tokens, options.bpe_model
    if (tokens is None) == (bpe_model is None):
        raise ExportError("give the model's tokens: either tokens.txt (--tokens) or bpe.model (--bpe-model)")
    table = bpe_model if tokens is None else file_in(tokens, TOKENS)
    if table is not None and not table.exists():
        raise ExportError(f"table of tokens not found: {table}")
    if not options.streaming and any(size is not None for size in sizes):
        raise ExportError("a chunk size and contexts are for streaming; add --streaming, or leave them out")
    if any(size is not None and size > MAX_SIZE for size in sizes):
        given = ", ".join(str(size) for size in sizes if size is not None)
        raise ExportError(f"a chunk size and contexts are of at most {MAX_SIZE} frames each, got {given}")


def _transducer(model: IcefallModel, start: Sequence[int] | None, vocab_size: int) -> TransducerPart:
    size = model.predictor.context_size
    if start is None:
        start = (*[-1] * (size - 1), BLANK_ID)
    if len(start) != size or not all(-1 <= id < vocab_size for id in start):
        raise ExportError(
            f"the start context {','.join(map(str, start))} should be {size} token ids, each -1 (none) to "
            f"{vocab_size - 1}"
        )
    return TransducerPart(context_size=size, start=tuple(start))


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


def taken_for_granted(model: IcefallModel, causal: bool | None, num_heads: Sequence[int] | None) -> list[str]:
    """Notes on what no tensor shows and was not given."""
    encoder = model.config.encoder
    if model.config.architecture == "conformer":
        if causal is None:
            return [
                "whether the conformer's convolutions are causal is not given, and its tensors do not show it: it was "
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
