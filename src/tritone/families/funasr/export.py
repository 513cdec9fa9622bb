"""From FunASR's folder to a bundle.

config.yaml, model.pt, am.mvn, *.bpe.model | tokens.json
    ->  manifest.json, tokens.txt, and for each runtime and precision the graph of whole utterances, and of a
        Paraformer that of the decoder; of a Paraformer for streams the graph of a step
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tritone.audio import Waveform
from tritone.bundle.manifest import Encoder, Precision, Role, State, Streaming, Vocabulary
from tritone.errors import ExportError
from tritone.families.export.drift import Movement
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.precision import in_precision
from tritone.families.export.report import Choice, ExportReport
from tritone.families.export.settings import read_config_file
from tritone.families.export.tokens import read_pieces
from tritone.families.funasr.checkpoint import (
    CONFIG,
    PIECES,
    STATISTICS,
    TOKENS,
    WEIGHTS,
    WORDS,
    one_file,
    read_state,
    read_statistics,
    read_tokens,
)
from tritone.families.funasr.config import CONTEXTUAL, PARAFORMERS, SENSE_VOICE_TAGS, STREAMS, ModelConfig, parse_config
from tritone.families.funasr.drift import stream_drift, token_drift
from tritone.families.funasr.front_end import StackedFbank
from tritone.families.funasr.graphs import (
    DecoderGraph,
    EncoderGraph,
    HotwordGraph,
    PhraseGraph,
    SenseVoiceGraph,
    StreamingGraph,
)
from tritone.families.funasr.hotwords import (
    CHOOSING,
    CHOSEN,
    ContextualHotwords,
    ContextualParaformer,
    HotwordDecoder,
    PhraseEncoder,
    SeacoDecoder,
)
from tritone.families.funasr.model import LANGUAGES, PLAIN, USUAL_LANGUAGE, WRITTEN, SenseVoice
from tritone.families.funasr.options import FunasrOptions
from tritone.families.funasr.paraformer import Paraformer
from tritone.families.funasr.punctuation import CT_TRANSFORMER, PunctuationModel
from tritone.families.funasr.stream_files import find_streams
from tritone.families.funasr.streaming import DECODED, STEP, StreamSizes
from tritone.kinds.paraformer.part import HotwordsPart
from tritone.runtime import Graph

SIZES = ("chunk_size", "right_context", "left_chunks", "decoder_left_chunks")


def export_funasr(**choices: Any) -> ExportReport:
    """Export a model of FunASR: SenseVoice-Small, a Paraformer, also for streams, or CT-Transformer, for punctuation.

    Args:
        choices: the fields of `FunasrOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = FunasrOptions(**choices)
    options.progress("reading the model")
    folder = options.folder
    if not folder.is_dir():
        raise ExportError(f"folder not found: {folder}; give one of FunASR's models, with {CONFIG} and {WEIGHTS}")
    if not (folder / CONFIG).is_file() and (files := find_streams(folder)) is not None:
        from tritone.families.funasr.sherpa_onnx import SherpaStreamingModel  # it is a model of this module

        return write_bundle(SherpaStreamingModel(options, files), options)
    content = read_config_file(folder / CONFIG)
    if content.get("model") == CT_TRANSFORMER:
        _check_sizes(options, CT_TRANSFORMER)
        return write_bundle(PunctuationModel(options, content), options)
    settings = parse_config(content)
    if settings.model == STREAMS:
        return write_bundle(StreamingModel(options, settings), options)
    _check_sizes(options, settings.model)
    kind = ParaformerModel if settings.model in PARAFORMERS else SenseVoiceModel
    return write_bundle(kind(options, settings), options)


def _check_sizes(options: FunasrOptions, model: str) -> None:
    if sizes := [name for name in SIZES if getattr(options, name) is not None]:
        raise ExportError(f"{', '.join(sizes)} is of {STREAMS}, and this is {model}; leave it out")


class FunasrModel(ExportedModel):
    """What the models of FunASR have in common: features, tokens and weights."""

    family = "funasr"
    tokens: list[str]

    def __init__(self, options: FunasrOptions, settings: ModelConfig) -> None:
        """Read the folder of the options, whose config says `settings`."""
        self.options, self.settings = options, settings
        self.sample_rate = settings.front_end.sample_rate
        self.sources: dict[str, Path] = {name: options.folder / name for name in (CONFIG, WEIGHTS, STATISTICS)}
        self.front_end = StackedFbank(
            settings.front_end, *read_statistics(self.sources[STATISTICS], settings.front_end.size)
        )
        self.choices: dict[str, Choice] = {"model": settings.model}

    def encoder(self, **more: Any) -> Encoder:
        """That part of the manifest."""
        return Encoder(
            subsampling_rate=self.settings.front_end.step,
            output_dim=self.settings.encoder.output_size,
            min_samples=self.front_end.min_samples,
            tail_samples=tail_samples(self.options, self.sample_rate),
            **more,
        )


class SenseVoiceModel(FunasrModel):
    """A trained SenseVoice-Small."""

    def __init__(self, options: FunasrOptions, settings: ModelConfig) -> None:
        super().__init__(options, settings)
        if options.stages:
            raise ExportError("this model takes the language of each utterance, which stages are not: leave them out")
        self.sources["tokens"] = one_file(options.folder, PIECES, "a sentencepiece model")
        self.tokens = read_pieces(self.sources["tokens"])
        weights = self.sources[WEIGHTS]
        self.network = SenseVoice.of(settings, read_state(weights), len(self.tokens), str(weights))
        self.notes = (
            f"the model takes the language of each utterance: option language, {USUAL_LANGUAGE} if none is given; it "
            f"knows {', '.join(LANGUAGES)}. With option use_itn it writes figures and punctuation",
        )

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision, explicit=explicit)
        return {"encoder": SenseVoiceGraph(network, self.front_end).eval()}

    def manifest(self) -> dict[str, Any]:
        return {
            "kind": "ctc",
            "features": self.front_end.described(),
            "encoder": self.encoder(
                languages=LANGUAGES, language=USUAL_LANGUAGE, text_forms=(PLAIN, WRITTEN), tags=SENSE_VOICE_TAGS
            ),
            "vocabulary": Vocabulary(
                size=len(self.tokens), units="bpe", blank_id=self.settings.blank_id, has_marks=True
            ),
        }


class ParaformerModel(FunasrModel):
    """A trained Paraformer."""

    def __init__(self, options: FunasrOptions, settings: ModelConfig) -> None:
        super().__init__(options, settings)
        if options.stages:
            raise ExportError("a Paraformer is not served in stages: leave them out")
        self.sources["tokens"] = options.folder / TOKENS
        self.tokens = read_tokens(self.sources["tokens"])
        weights = self.sources[WEIGHTS]
        state = read_state(weights)
        given = (settings, state, len(self.tokens), str(weights))
        self.network: Paraformer = (ContextualParaformer if settings.model == CONTEXTUAL else Paraformer).of(*given)
        if settings.model not in ("Paraformer", STREAMS, CONTEXTUAL):
            self.notes = ("times of tokens are those of the predictor that counts them, as of a plain Paraformer",)
        self.hotwords: tuple[PhraseEncoder, HotwordDecoder] | None = None
        if settings.hotwords is not None:
            if (settings.hotwords.no_bias or 0) >= len(self.tokens):
                raise ExportError(f"NO_BIAS is {settings.hotwords.no_bias}, and there are {len(self.tokens)} tokens")
            if settings.sos_id >= len(self.tokens):
                raise ExportError(f"sos is {settings.sos_id}, and there are {len(self.tokens)} tokens")
            phrases = PhraseEncoder.of(*given)
            if isinstance(self.network, ContextualParaformer):
                self.network.give_no_phrase(phrases)
                self.hotwords = phrases, ContextualHotwords(self.network.decoder)
            else:
                self.hotwords = phrases, SeacoDecoder.of(*given)
            if (words := options.folder / WORDS).is_file():
                self.sources[WORDS] = words
                self.files = {WORDS: words}
            else:
                self.notes += (f"without {WORDS}, hotwords are written with whole tokens alone",)

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision, explicit=explicit)
        encoder = EncoderGraph(network, self.front_end).eval()
        width, has_hotwords = self.settings.encoder.output_size, self.hotwords is not None
        decoder = DecoderGraph(network.decoder, width, has_hotwords=has_hotwords).eval()
        graphs: dict[Role, ExportableGraph] = {"encoder": encoder, "decoder": decoder}
        if self.hotwords is not None:
            phrases, hotwords = self.hotwords
            graphs |= {
                "hotword_encoder": PhraseGraph(phrases).eval(),
                "hotword_decoder": HotwordGraph(hotwords, width).eval(),
            }
        return graphs

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Movement:
        encoder, decoder = self.graphs["encoder"], self.graphs["decoder"]
        assert isinstance(encoder, EncoderGraph)
        assert isinstance(decoder, DecoderGraph)
        return token_drift(encoder, decoder, opened, recordings)

    def manifest(self) -> dict[str, Any]:
        settings, hotwords = self.settings, self.settings.hotwords
        part = {}
        if hotwords is not None:
            chooses = hotwords.decoder is None or hotwords.decoder.blocks > CHOOSING
            most = None if chooses else CHOSEN - 1  # beside `<s>`
            words = next(iter(self.files), None)
            part = {"hotwords": HotwordsPart(no_bias=hotwords.no_bias, words=words, max_phrases=most)}
        return {
            **part,
            "kind": "paraformer",
            "features": self.front_end.described(),
            "encoder": self.encoder(),
            "vocabulary": Vocabulary(
                size=len(self.tokens),
                units="continued",
                blank_id=settings.blank_id,
                unk_id=self.tokens.index("<unk>") if "<unk>" in self.tokens else None,
                sos_id=settings.sos_id,
                eos_id=settings.eos_id,
            ),
        }


class StreamingModel(ParaformerModel):
    """A trained Paraformer for streams."""

    def __init__(self, options: FunasrOptions, settings: ModelConfig) -> None:
        super().__init__(options, settings)
        self.sizes = StreamSizes.chosen(options)
        self.choices |= dataclasses.asdict(self.sizes)

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision, explicit=explicit)
        return {"streaming_encoder": StreamingGraph(network, self.front_end, self.sizes).eval()}

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Movement:
        graph = self.graphs["streaming_encoder"]
        assert isinstance(graph, StreamingGraph)
        return stream_drift(graph, opened, recordings)

    def manifest(self) -> dict[str, Any]:
        graph = self.graphs["streaming_encoder"]
        assert isinstance(graph, StreamingGraph)
        streaming = Streaming(
            chunk_size=self.sizes.chunk,
            left_chunks=self.sizes.left_chunks,
            window_samples=graph.window_samples,
            shift_samples=graph.shift_samples,
            states=tuple(
                State(name=name, shape=shape, dtype="int64" if name in (STEP, DECODED) else "float32")
                for name, shape in graph.step.state_shapes.items()
            ),
            lead_samples=self.front_end.lead_samples,
            flush_samples=1,  # the last step begins at the end of the audio at the latest, as upstream's does
        )
        return super().manifest() | {"streaming": streaming}
