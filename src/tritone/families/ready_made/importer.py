"""A folder's graphs become a bundle's: each is read, measured, given our interface, run and compared.

Importer.add(precision)  ->  files in the bundle's folder, and the parts of its manifest
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import TensorProto

from tritone.bundle.bundle import BundleWriter
from tritone.bundle.bytewise import is_byte_level
from tritone.bundle.manifest import Artifact, Encoder, Features, Precision, Role, Streaming, Vocabulary
from tritone.bundle.part import KindPart
from tritone.bundle.vocabulary import SPACE, read_tokens
from tritone.errors import BundleError, ExportError
from tritone.families.onnx.front_end import least_samples, stream_lead, window_samples
from tritone.families.onnx.large import write
from tritone.families.onnx.source import Source, check_features, check_types, read_source
from tritone.families.onnx.trial import MAX_DIFFERENCE, opened, run
from tritone.families.ready_made import compose, measure
from tritone.families.ready_made.folder import ModelFiles, Part
from tritone.families.ready_made.layouts import OfflineSizes, StreamLayout, UtteranceLayout, stream_layout
from tritone.families.ready_made.measure import Leak
from tritone.kinds.transducer.part import TransducerPart
from tritone.runtime import Graph

SAMPLE_RATE = 16000
USUAL = Features(snip_edges=False, sample_scale=1.0, high_freq=-400.0)
"""What icefall trains on and sherpa-onnx computes by default."""

WENET = Features()
"""What WeNet trains on."""

OFFLINE_CTC: Mapping[str, Features] = {"zipformer2_ctc": USUAL, "wenet_ctc": WENET}
"""Model types of whole-utterance CTC models."""

STREAMING_CTC = ("zipformer2",)

BINS = (40, 128)
MAX_CONTEXT = 16
DISAMBIGUATION = re.compile(r"#[0-9]+")

BLANKS = ("<blk>", "<eps>", "<blank>")
UNKNOWNS = ("<unk>", "<UNK>")
STARTS, ENDS = ("<sos/eos>", "<sos>", "<s>"), ("<sos/eos>", "<eos>", "</s>")
"""Names of tokens that are not written."""

PARTS: Mapping[Role, Part] = {"predictor": "decoder", "joiner": "joiner"}


class Importer:
    """Makes the graphs of one bundle, precision by precision; the first precision settles what the manifest says."""

    output: str
    main: Literal["encoder", "model"]
    kind: str | None = None  # of the bundle, where it is not that of the folder's files

    def __init__(self, files: ModelFiles, writer: BundleWriter, progress: Callable[[str], None]) -> None:
        self.files, self.writer, self.progress = files, writer, progress
        self.tokens: list[str] = []
        self.features = USUAL
        self.model_type = ""
        self.artifacts: list[Artifact] = []
        self.differences: dict[str, float] = {}
        self.leaks: dict[str, Leak] = {}
        self.layout: StreamLayout | UtteranceLayout = UtteranceLayout()
        self.sizes: OfflineSizes | None = None
        self.frames_per_step = 0
        self.written: dict[tuple[Role, Path], Artifact] = {}

    def add(self, precision: Precision) -> None:
        """Make all graphs of a precision."""
        raise NotImplementedError

    def parts(self) -> tuple[KindPart, ...]:
        """The parts of the manifest that are the kind's own."""
        return ()

    @property
    def dim(self) -> int:
        """Numbers of an encoder frame, as our graphs give them."""
        return self._sizes.dim

    @property
    def _sizes(self) -> OfflineSizes:
        assert self.sizes is not None, "an encoder comes first"
        return self.sizes

    def encoder(self, tail_samples: int) -> Encoder:
        """That part of the manifest."""
        if isinstance(self.layout, StreamLayout):
            min_samples = self.features.frame_length
        else:
            min_samples = least_samples(self.features, self._sizes.min_frames)
        return Encoder(
            subsampling_rate=self._sizes.rate,
            output_dim=self.dim,
            min_samples=min_samples,
            tail_samples=tail_samples,
            equal_lengths=any(leak.depends_on_padding for leak in self.leaks.values()),
        )

    def streaming(self) -> Streaming | None:
        """That part of the manifest."""
        features, layout = self.features, self.layout
        if not isinstance(layout, StreamLayout):
            return None
        return Streaming(
            chunk_size=self.frames_per_step,
            left_chunks=-(-layout.left_frames // layout.shift_frames),
            window_samples=window_samples(features, layout.window_frames),
            shift_samples=features.frame_shift * layout.shift_frames,
            states=compose.manifest_states(layout),
            lead_samples=stream_lead(features, layout.lead_frames),
            # A step is run while its first feature frame lies before the end of the padding; NeMo's have none.
            flush_samples=features.frame_shift * layout.pad_frames - features.frame_shift // 2 + 1
            if layout.pad_frames
            else 0,
        )

    def vocabulary(self) -> Vocabulary:
        """That part of the manifest."""
        return Vocabulary(
            size=len(self.tokens),
            units=token_units(self.tokens),
            blank_id=self.blank_id(),
            unk_id=self._find(UNKNOWNS),
            sos_id=self._find(STARTS),
            eos_id=self._find(ENDS),
        )

    def blank_id(self) -> int:
        """The blank id; for transducers it is 0, in icefall and in sherpa-onnx, whatever the table has."""
        return 0

    def _find(self, names: Sequence[str]) -> int | None:
        return next((self.tokens.index(name) for name in names if name in self.tokens), None)

    def add_encoder(self, precision: Precision) -> None:
        """Make the encoder's graph, compare it with what it was made of, and note the sizes of the first one."""
        path = self.files.graphs[precision][self.main]
        self.progress(f"reading {path.name}")
        source = read_source(path)
        layout = self.layout_of(source)
        self._settle(source, layout)
        theirs = opened(path)
        log_softmax = self.output == "log_probs" and not measure.is_log_softmax(
            measure.example_scores(theirs, source, layout, self.features.num_mel_bins)
        )
        if isinstance(layout, StreamLayout):
            name = self._add_stream(precision, source, theirs, layout, log_softmax)
        else:
            name = self._add_offline(precision, source, theirs, layout, log_softmax)
        if precision == "fp32" and self.differences.get(name, 0) > MAX_DIFFERENCE:
            raise ExportError(
                f"{name} differs from {path} by {self.differences[name]:.2g} of the size of its results, the limit is "
                f"{MAX_DIFFERENCE:g}. Please report this with the version of onnx."
            )

    def layout_of(self, source: Source) -> StreamLayout | UtteranceLayout:
        """How an encoder is fed; refuses one that is fed in another way."""
        check_features(source)
        return UtteranceLayout() if len(source.inputs) == 2 else stream_layout(source)

    def features_of(self, source: Source) -> Features:
        """The features that an encoder takes."""
        base = OFFLINE_CTC.get(self.model_type, USUAL) if self.main == "model" else USUAL
        return base.model_copy(update={"num_mel_bins": source.inputs[0].shape[2] or base.num_mel_bins})

    def _add_offline(
        self, precision: Precision, source: Source, theirs: Graph, layout: UtteranceLayout, log_softmax: bool
    ) -> str:
        sizes = measure.offline_sizes(theirs, source, layout, self.features.num_mel_bins)
        self._same_sizes(source, sizes)
        compose_for = partial(
            compose.offline_encoder,
            source,
            layout,
            self.features,
            SAMPLE_RATE,
            sizes,
            output=self.output,
            dim=self.dim,
            log_softmax=log_softmax,
        )
        name = self._write("encoder", compose_for(), precision, source.path)
        self.progress(f"checking {name}")
        ours = opened(self.writer.folder / name)
        arguments = (self.features, SAMPLE_RATE, sizes.min_frames, self.output)
        if not log_softmax:  # otherwise theirs gives something else
            self.differences[name] = measure.offline_difference(ours, theirs, source, layout, *arguments)
        leak = measure.padding_leak(ours, *arguments, source.path.name)
        if precision == "fp32" and leak.depends_on_mates:
            raise ExportError(
                f"{source.path}: an utterance's result changes by {leak.mates:.2g} of its size with what else is in "
                "the batch, even at equal lengths. Such a graph cannot be served in batches."
            )
        if leak.depends_on_mates:
            self._write("encoder", compose_for(rows=1), precision, source.path)
        self.leaks[name] = leak
        return name

    def _add_stream(
        self, precision: Precision, source: Source, theirs: Graph, layout: StreamLayout, log_softmax: bool
    ) -> str:
        frames, dim = measure.stream_sizes(theirs, source, layout, self.features.num_mel_bins)
        self._same_sizes(source, OfflineSizes(0, layout.shift_frames // frames, dim), frames)
        model = compose.streaming_encoder(
            source,
            layout,
            self.features,
            SAMPLE_RATE,
            frames_per_step=frames,
            given_dim=dim,
            output=self.output,
            dim=self.dim,
            log_softmax=log_softmax,
        )
        name = self._write("streaming_encoder", model, precision, source.path)
        self.progress(f"checking {name}")
        if not log_softmax:
            ours = opened(self.writer.folder / name)
            self.differences[name] = measure.stream_difference(
                ours, theirs, source, layout, self.features, SAMPLE_RATE, self.output, frames
            )
        return name

    def _settle(self, source: Source, layout: StreamLayout | UtteranceLayout) -> None:
        model_type = source.metadata.get("model_type", "")[:64]
        if self.artifacts and (model_type, layout) != (self.model_type, self.layout):
            raise ExportError(f"{source.path} is another model than the first one: {model_type}, {self.model_type}")
        self.model_type, self.layout = model_type, layout
        self.features = self.features_of(source)
        if not BINS[0] <= self.features.num_mel_bins <= BINS[1]:
            raise ExportError(
                f"{source.path} takes {self.features.num_mel_bins} features a frame; {BINS[0]} to {BINS[1]} are known"
            )

    def _same_sizes(self, source: Source, sizes: OfflineSizes, frames_per_step: int = 0) -> None:
        found, settled = (sizes, frames_per_step), (self.sizes, self.frames_per_step)
        if self.sizes is not None and found != settled:
            raise ExportError(f"{source.path} has other sizes than the files of another precision: {found}, {settled}")
        self.sizes, self.frames_per_step = found

    def _write(self, role: Role, model: Any, precision: Precision, path: Path) -> str:
        name = f"{role}.onnx" if precision == "fp32" else f"{role}.{precision}.onnx"
        files = write(model, self.writer.folder / name)
        artifact = self.writer.artifact(role, *files, precision=precision, weight_storage=precision)
        self.written[role, path] = artifact
        self.artifacts = [each for each in self.artifacts if each.files[0] != name] + [artifact]
        return name

    def reused(self, role: Role, precision: Precision) -> bool:
        """Is the file of a part one that was taken already? Small networks are often there in one precision alone."""
        path = self.files.graphs[precision][PARTS[role]]
        if (role, path) not in self.written:
            return False
        self.artifacts.append(self.written[role, path].model_copy(update={"precision": precision}))
        return True

    def set_tokens(self, vocab_size: int, source: Source) -> None:
        """Read the token table for a vocabulary of that size."""
        try:
            tokens = read_tokens(self.files.tokens)
        except BundleError as error:
            raise ExportError(str(error)) from error
        while len(tokens) > vocab_size and DISAMBIGUATION.fullmatch(tokens[-1]):
            tokens.pop()  # icefall's symbols for the lexicon's graph; no model knows them
        if len(tokens) != vocab_size:
            raise ExportError(
                f"{self.files.tokens} has {len(tokens)} tokens, but {source.path} has {vocab_size}. Take the table "
                "that belongs to the model."
            )
        self.tokens = tokens


class TransducerImporter(Importer):
    output = "encoder_out"
    main = "encoder"
    context_size = 0
    has_mask = True

    def add(self, precision: Precision) -> None:
        self.add_encoder(precision)
        graphs = self.files.graphs[precision]
        if not self.reused("predictor", precision):
            self._add_predictor(precision, graphs["decoder"])
        if not self.reused("joiner", precision):
            self._add_joiner(precision, graphs["joiner"])

    def parts(self) -> tuple[KindPart, ...]:
        nothing = -1 if self.has_mask else 0
        return (TransducerPart(context_size=self.context_size, start=(nothing,) * (self.context_size - 1) + (0,)),)

    def _add_predictor(self, precision: Precision, path: Path) -> None:
        source = read_source(path)
        check_types(source, (None,), outputs=1)
        vocab_size, context_size = source.integer("vocab_size"), source.integer("context_size")
        if context_size > MAX_CONTEXT:
            raise ExportError(f"{path}: context_size is {context_size}; at most {MAX_CONTEXT} can be")
        if self.tokens and (vocab_size, context_size) != (len(self.tokens), self.context_size):
            raise ExportError(f"{path} is for other sizes than the decoder in another precision")
        self.context_size = context_size
        self.set_tokens(vocab_size, source)
        has_mask = measure.keeps_no_token(opened(path), source, context_size, vocab_size)
        self.has_mask &= has_mask
        model = compose.predictor(source, context_size, self.dim, has_mask=has_mask)
        name = self._write("predictor", model, precision, path)
        contexts = np.zeros((3, context_size), np.int64)
        (found,) = run(opened(self.writer.folder / name), source, {"context": contexts}, ["predictor_out"])
        if found.shape != (3, self.dim):
            raise ExportError(
                f"{path} gives vectors of {found.size // 3} numbers, the encoder's have {self.dim}. Both must be "
                "projected to the joiner's size, as the export-onnx scripts of upstream's recipes do."
            )

    def _add_joiner(self, precision: Precision, path: Path) -> None:
        source = read_source(path)
        check_types(source, (TensorProto.FLOAT, TensorProto.FLOAT), outputs=1)
        if "joiner_dim" in source.metadata and source.integer("joiner_dim") != self.dim:
            raise ExportError(f"{path}: joiner_dim is {source.integer('joiner_dim')}, the encoder gives {self.dim}")
        name = self._write("joiner", compose.joiner(source, self.dim, len(self.tokens)), precision, path)
        vectors = np.zeros((3, self.dim), np.float32)
        graph = opened(self.writer.folder / name)
        (found,) = run(graph, source, {"encoder_out": vectors, "predictor_out": vectors}, ["logits"])
        if found.shape != (3, len(self.tokens)):
            raise ExportError(f"{path} gives {found.size // 3} scores, the decoder knows {len(self.tokens)} tokens")


class CtcImporter(Importer):
    output = "log_probs"
    main = "model"
    known: Sequence[str] = tuple(OFFLINE_CTC)
    known_streaming: Sequence[str] = STREAMING_CTC

    def add(self, precision: Precision) -> None:
        self.add_encoder(precision)

    def blank_id(self) -> int:
        found = self._find(BLANKS)
        if found is None:
            raise ExportError(f"{self.files.tokens} has no blank; CTC models need one of {', '.join(BLANKS)}")
        return found

    def _settle(self, source: Source, layout: StreamLayout | UtteranceLayout) -> None:
        super()._settle(source, layout)
        known = self.known_streaming if isinstance(layout, StreamLayout) else self.known
        if self.model_type not in known:
            raise ExportError(
                f"{source.path} is a model of type {self.model_type or 'unknown'!r}; CTC models that can be imported "
                f"are {', '.join(OFFLINE_CTC)} (whole utterances), {', '.join(STREAMING_CTC)} (streams), and "
                "NeMo's"
            )

    def _same_sizes(self, source: Source, sizes: OfflineSizes, frames_per_step: int = 0) -> None:
        super()._same_sizes(source, sizes, frames_per_step)
        if self.model_type == "wenet_ctc":
            for key, found in (("vocab_size", self.dim), ("subsampling_factor", sizes.rate)):
                if source.integer(key) != found:
                    raise ExportError(f"{source.path}: {key} is {source.integer(key)}, but the graph has {found}")
        self.set_tokens(self.dim, source)


def token_units(tokens: Sequence[str]) -> Literal["char", "bpe", "byte-bpe"]:
    """How the tokens of a table join into text."""
    if is_byte_level(tokens):
        return "byte-bpe"
    return "bpe" if any(SPACE in token for token in tokens) else "char"
