"""From NeMo's archive, or a folder of transformers, to a bundle.

FILE.nemo | FOLDER  ->  manifest.json, tokens.txt, and for each runtime and precision the encoder, the streaming
                        encoder, and of a transducer predictor and joiner
"""

from pathlib import Path
from typing import Any

from tritone.bundle.manifest import Encoder, Precision, Role, State, Streaming, Vocabulary
from tritone.bundle.vocabulary import UNKNOWN, has_marks
from tritone.errors import ExportError
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.hf_folder import CONFIG
from tritone.families.export.joiner import JoinerGraph
from tritone.families.export.json_files import read_json_if_there
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.stages import stage_graphs
from tritone.families.layers.log_mel import LogMel, features_of
from tritone.families.nemo import canary, canary_archive
from tritone.families.nemo.canary import MODEL_TYPE
from tritone.families.nemo.canary_export import CanaryModel
from tritone.families.nemo.diarization_export import ExportedDiarization, is_diarization
from tritone.families.nemo.folder import read_folder
from tritone.families.nemo.graphs import OfflineGraph, PredictorGraph, StreamingGraph
from tritone.families.nemo.model import read_archive
from tritone.families.nemo.options import Head, NemoOptions
from tritone.families.nemo.streaming import OFFSET, contexts_of_streams
from tritone.kinds.transducer.part import TransducerPart

START, END = "<s>", "</s>"  # pieces of sentencepiece that are never written


def export_nemo(**choices: Any) -> ExportReport:
    """Export a Conformer or FastConformer: CTC, RNNT, TDT, or one head of a hybrid model; Canary; or a model that tells
    speakers apart, Nemotron-3-Diarization. A result never depends on other utterances.

    Args:
        choices: the fields of `NemoOptions`.

    Raises:
        ExportError: the archive is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = NemoOptions(**choices)
    if is_diarization(options.archive):
        return write_bundle(ExportedDiarization(options), options)
    options.progress("reading the model")
    folder = options.archive
    if folder.is_dir() and read_json_if_there(folder / CONFIG).get("model_type") == MODEL_TYPE:
        return write_bundle(CanaryModel(options, canary.read_folder(folder)), options)
    if folder.is_file() and canary_archive.is_canary(folder):
        return write_bundle(CanaryModel(options, canary_archive.read_archive(folder)), options)
    return write_bundle(ExportedNemo(options), options)


class ExportedNemo(ExportedModel):
    """A trained Conformer or FastConformer."""

    family = "nemo"
    tokens: list[str]

    def __init__(self, options: NemoOptions) -> None:
        """Read the archive or the folder that the options name."""
        self.options = options
        self.sources: dict[str, Path] = {"archive": options.archive}
        if options.archive.is_dir():
            self.model, self.tokens, self.sources = read_folder(options.archive)
        else:
            self.model, self.tokens = read_archive(options.archive)
        config = self.model.config
        self.head: Head = options.head or ("ctc" if config.transducer is None else "transducer")
        if self.head == "ctc" and not config.ctc:
            raise ExportError("this model has no CTC head; export it with --head transducer")
        if self.head == "transducer" and config.transducer is None:
            raise ExportError("this model has a CTC head alone; export it with --head ctc")
        if config.prompts is not None and options.stages:
            raise ExportError("this model takes the language of each utterance, which stages are not: leave them out")
        self.front_end = LogMel(config.features)
        self.sample_rate = config.features.sample_rate
        self.contexts, self.chunk_size = self._contexts()
        self.choices = {"head": self.head, "streaming": options.streaming, "chunk_size": self.chunk_size}
        self.transducer = self._transducer() if self.head == "transducer" else None
        self.silent = frozenset({len(self.tokens) - 1})
        self.notes = tuple(self._notes())

    def _contexts(self) -> tuple[dict[int, int], int | None]:
        """Chunk sizes of streams with their past frames, and the usual one; none without a streaming encoder."""
        chosen = self.options.chunk_size
        if not self.options.streaming:
            if chosen is not None:
                raise ExportError("a chunk size is for streams; add --streaming, or leave it out")
            return {}, None
        contexts = contexts_of_streams(self.model.config)
        if chosen is not None and chosen not in contexts:
            raise ExportError(
                f"chunk size {chosen}: this model was trained for chunks of {', '.join(map(str, sorted(contexts)))} "
                "encoder frames; take one of them"
            )
        return contexts, next(iter(contexts)) if chosen is None else chosen

    def _notes(self) -> list[str]:
        config, notes = self.model.config, []
        if config.hybrid and self.options.head is None:
            notes.append("the model has a CTC head too, which is faster and searched by beams: --head ctc exports it")
        if config.prompts is not None:
            notes.append(
                f"the model takes the language of each utterance: option language, {config.prompts.default} if none "
                f"is given; it knows {len(config.prompts.ids)}"
            )
        context = f"the context {list(config.encoder.context)} that upstream uses for them"
        if self.chunk_size is not None:
            ms = config.encoder.factor * config.features.frame_shift * 1000 / config.features.sample_rate
            sizes = ", ".join(f"{chunk} ({chunk * ms:g} ms)" for chunk in sorted(self.contexts))
            notes.append(
                f"streams have chunks of {self.chunk_size} encoder frames unless another size is chosen, of {sizes}; "
                f"whole utterances have {context}"
            )
        elif config.encoder.style == "chunked_limited" or config.encoder.causal:
            notes.append(
                f"the model was trained for streams; the bundle is for whole utterances, with {context}. --streaming "
                "exports a streaming encoder too"
            )
        return notes

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        model = in_precision(self.model, precision, explicit=explicit)
        offline = OfflineGraph(model, self.front_end, self.head)
        graphs: dict[Role, ExportableGraph] = {"encoder": offline}
        if self.chunk_size is not None:
            graphs["streaming_encoder"] = StreamingGraph(
                model, self.front_end, self.head, self.contexts, self.chunk_size
            )
        if self.options.stages:
            graphs |= stage_graphs(offline)
        if self.head == "transducer":
            assert model.predictor is not None
            assert model.joint is not None
            graphs |= {"predictor": PredictorGraph(model.predictor, model.joint), "joiner": JoinerGraph(model.joint)}
        return {role: graph.eval() for role, graph in graphs.items()}

    def manifest(self) -> dict[str, Any]:
        config, offline, stream = self.model.config, self.graphs["encoder"], self.graphs.get("streaming_encoder")
        assert isinstance(offline, OfflineGraph)
        find = {token: id for id, token in enumerate(self.tokens)}
        return {
            "kind": self.head,
            "features": features_of(config.features),
            "encoder": Encoder(
                subsampling_rate=config.encoder.factor,
                output_dim=offline.output.width,
                min_samples=offline.min_samples,
                tail_samples=tail_samples(self.options, self.sample_rate),
                languages={} if config.prompts is None else dict(config.prompts.ids),
                language="" if config.prompts is None else config.prompts.default,
            ),
            "vocabulary": Vocabulary(
                size=len(self.tokens),
                units="char" if config.tokenizer is None else "bpe",
                blank_id=len(self.tokens) - 1,
                unk_id=find.get(UNKNOWN),
                sos_id=find.get(START),
                eos_id=find.get(END),
                has_marks=has_marks(self.tokens),
            ),
            "streaming": _streaming(stream) if isinstance(stream, StreamingGraph) else None,
            "transducer": self.transducer,
        }

    def _transducer(self) -> TransducerPart:
        settings = self.model.config.transducer
        assert settings is not None
        shape = (settings.layers, settings.hidden)
        return TransducerPart(
            context_size=1,
            # Upstream begins with the blank, whose row of the embedding is zeros; without a row with zeros themselves.
            start=(len(self.tokens) - 1 if settings.blank_as_pad else -1,),
            states=tuple(State(name=name, shape=shape, dtype="float32") for name in ("hidden", "cell")),
            durations=settings.durations,
            max_symbols=settings.max_symbols,
        )


def _streaming(stream: StreamingGraph) -> Streaming:
    chunk_size = stream.chunk_size
    return Streaming(
        chunk_size=chunk_size,
        left_chunks=stream.contexts[chunk_size] // chunk_size,
        window_samples=stream.window_for(chunk_size),
        shift_samples=stream.shift_for(chunk_size),
        states=tuple(
            State(name=name, shape=shape, dtype="int64" if name == OFFSET else "float32")
            for name, shape in stream.state_shapes.items()
        ),
        flexible=True,
        frame_samples=stream.window_for(1),
        trained={chunk: past // chunk for chunk, past in stream.contexts.items()},
        lead_samples=stream.lead_samples,
        flush_samples=stream.flush_samples,
    )
