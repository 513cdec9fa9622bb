"""From WeNet's files to a bundle.

final.pt, train.yaml, units.txt[, global_cmvn]
    ->  manifest.json, tokens.txt, and for each runtime and precision the offline graph, the streaming graph and
        that of the attention decoder
"""

from collections.abc import Callable, Sequence
from typing import Any

from tritone.audio import Waveform
from tritone.bundle.manifest import Encoder, Features, Precision, Role, State, Streaming, Vocabulary
from tritone.families.export.checkpoint import file_in
from tritone.families.export.drift import Movement
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.stages import stage_graphs
from tritone.families.layers.fbank import FrontEnd
from tritone.families.wenet.checkpoint import load_model, read_config, read_units
from tritone.families.wenet.config import ModelConfig
from tritone.families.wenet.drift import decoder_drift
from tritone.families.wenet.graphs import OfflineGraph, StreamingGraph, make_fbank
from tritone.families.wenet.model import AsrModel
from tritone.families.wenet.options import WenetOptions
from tritone.families.wenet.rescoring import RescoringGraph
from tritone.kinds.ctc.part import DecoderPart
from tritone.runtime import Graph

UNITS = "units.txt"


def export_wenet(*, make_front_end: Callable[[ModelConfig], FrontEnd] = make_fbank, **choices: Any) -> ExportReport:
    """Export the encoder, the CTC head and, where it has one, the attention decoder of a WeNet model.

    Args:
        choices: the fields of `WenetOptions`.
        make_front_end: what computes features; replaced only to feed features through a bundle, as parity tests do.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = WenetOptions(**choices)
    return write_bundle(WenetModel(options, make_front_end), options)


class WenetModel(ExportedModel):
    """A trained WeNet model."""

    family = "wenet"

    def __init__(self, options: WenetOptions, make_front_end: Callable[[ModelConfig], FrontEnd]) -> None:
        """Read the files that the options name."""
        options.progress("reading the checkpoint")
        tokens = file_in(options.tokens, UNITS)
        self.options = options
        self.settings = read_config(options.config)
        self.tokens = read_units(tokens, self.settings.vocab_size)
        self.model = load_model(self.settings, options.checkpoint, options.cmvn)
        self.front_end = make_front_end(self.settings)
        self.vocabulary = _vocabulary(self.settings, self.tokens)
        self.sample_rate = self.settings.sample_rate
        self.sources = {"checkpoint": options.checkpoint, "config": options.config, "tokens": tokens}
        if options.cmvn:
            self.sources["cmvn"] = options.cmvn
        self.choices = {
            "streaming": options.streaming,
            "chunk_size": options.chunk_size,
            "left_chunks": options.left_chunks,
            "decoder": options.decoder and self.model.decoder is not None,
        }

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        options, model = self.options, in_precision(self.model, precision, explicit=explicit)
        offline = OfflineGraph(model, self.front_end)
        graphs: dict[Role, ExportableGraph] = {"encoder": offline}
        if options.streaming:
            graphs["streaming_encoder"] = StreamingGraph(model, self.front_end, options.chunk_size, options.left_chunks)
        if options.stages:
            graphs |= stage_graphs(offline)
        if options.decoder and model.decoder is not None:
            graphs["decoder"] = _rescoring(model, self.vocabulary)
        return {role: graph.eval() for role, graph in graphs.items()}

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Movement:
        graph, offline = self.graphs[role], self.graphs["encoder"]
        assert isinstance(offline, OfflineGraph)
        if isinstance(graph, RescoringGraph):
            return decoder_drift(graph, opened, offline, self.settings.blank_id, recordings)
        return super().drift(role, opened, recordings)

    def manifest(self) -> dict[str, Any]:
        offline, stream = self.graphs["encoder"], self.graphs.get("streaming_encoder")
        rescoring = self.graphs.get("decoder")
        assert isinstance(offline, OfflineGraph)
        return {
            "kind": "ctc",
            "features": Features(
                frame_length=offline.front_end.frame_length,
                frame_shift=offline.front_end.frame_shift,
                num_mel_bins=self.settings.num_mel_bins,
                window=self.settings.window,  # type: ignore[arg-type]  # checked when the config was read
            ),
            "encoder": Encoder(
                subsampling_rate=self.model.encoder.embed.rate,
                output_dim=self.settings.encoder.output_size,
                min_samples=offline.min_samples,
                tail_samples=tail_samples(self.options, self.sample_rate),
            ),
            "vocabulary": self.vocabulary,
            "streaming": _streaming(stream) if isinstance(stream, StreamingGraph) else None,
            "decoder": _decoder(self.settings, rescoring) if isinstance(rescoring, RescoringGraph) else None,
        }


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
    return RescoringGraph(model.decoder, vocabulary.sos_id, vocabulary.eos_id, width)


def _decoder(settings: ModelConfig, graph: RescoringGraph) -> DecoderPart:
    return DecoderPart(
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
