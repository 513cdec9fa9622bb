"""NeMo's models in sherpa-onnx's folders: CTC models, and transducers whose predictor is an LSTM, TDT among them.

    model.onnx, tokens.txt                               ->  graphs of role encoder
    encoder.onnx, decoder.onnx, joiner.onnx, tokens.txt  ->  graphs of roles encoder, predictor, joiner

Features and outputs of encoders have the time last, and the blank is the last token. The joiner holds the projections
of encoder and predictor, whose vectors have sizes of their own; both get the larger one, the rest zeros, which the
joiner leaves out. Durations of a TDT model are 0, 1, 2 ... frames: no file has them, and sherpa-onnx reads them so.
Facts: sherpa-onnx, csrc/offline-nemo-enc-dec-ctc-model.cc, offline-transducer-nemo-model.cc,
offline-transducer-greedy-search-nemo-decoder.cc, scripts/nemo; NeMo, nemo/collections/asr/modules/rnnt.py.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import TensorProto

from tritone.bundle.manifest import Features, Precision, State, Vocabulary
from tritone.bundle.part import KindPart
from tritone.bundle.vocabulary import has_marks
from tritone.errors import ExportError
from tritone.families.onnx.source import Source, check_types, read_source
from tritone.families.onnx.trial import FLOAT_NOISE, largest_difference, opened, run, typical_size
from tritone.families.ready_made import compose
from tritone.families.ready_made.importer import CtcImporter, Importer, TransducerImporter
from tritone.families.ready_made.layouts import (
    BATCH,
    MAX_WINDOW,
    OfflineSizes,
    StreamLayout,
    UtteranceLayout,
    states_of,
)
from tritone.kinds.transducer.part import TransducerPart

FEATURES = Features(
    kind="log-mel",
    window="hanning",
    low_freq=0.0,
    high_freq=8000.0,
    snip_edges=False,
    sample_scale=1.0,
    normalize="per-feature",
)
"""What NeMo's recipes train on, but for the number of bands."""

NORMALIZE = {"per_feature": "per-feature", "all_features": "all-features", "": "none", "NA": "none"}
TYPES = ("EncDecCTCModel", "EncDecCTCModelBPE", "EncDecHybridRNNTCTCBPEModel", "EncDecRNNTBPEModel")
MAX_SYMBOLS, MAX_SYMBOLS_TDT = 10, 5  # tokens of one frame, sherpa-onnx's
MAX_DURATIONS = 256
FLOAT = TensorProto.FLOAT


def reader_of(kind: str, metadata: Mapping[str, str]) -> type[Importer] | bool:
    """What reads a ready-made model with this metadata, see `Family.reader`."""
    if "normalize_type" not in metadata and metadata.get("model_type") not in TYPES:
        return False
    return {"ctc": NemoCtcImporter, "transducer": NemoTransducerImporter}.get(kind, False)


class NemoImporter(Importer):
    """What CTC models and transducers share: features, layout, tokens."""

    def layout_of(self, source: Source) -> StreamLayout | UtteranceLayout:
        metadata = source.metadata
        if metadata.get("is_giga_am", "0") != "0":
            raise ExportError(
                f"{source.path} is a GigaAM, whose features are others than NeMo's; it cannot be imported"
            )
        if "buffered_streaming" in metadata or len(source.inputs) not in (2, 5):
            names = ", ".join(tensor.name for tensor in source.inputs[:6])
            raise ExportError(
                f"{source.path} is a model of NeMo that takes {names}; those that can be imported take features and "
                "lengths, and for streams three caches. `tritone export nemo` reads the .nemo file."
            )
        features = source.inputs[0]
        if features.dtype != FLOAT or len(features.shape) != 3 or features.shape[0] is not None:
            raise ExportError(
                f"{source.path} takes {features}; first should come features, float32 (batch, bins, frames), with a "
                "free batch"
            )
        if len(source.inputs) == 5:
            return self._stream_layout(source)
        counts = len(source.outputs) > 1 and source.outputs[1].dtype in (TensorProto.INT64, TensorProto.INT32)
        check_types(source, (FLOAT, None), outputs=2 if counts else 1)
        return UtteranceLayout(bins_first=True, dim_first=self.main == "encoder", counts=counts)

    def _stream_layout(self, source: Source) -> StreamLayout:
        """Of a cache-aware model, whose windows begin with features that the one before has too."""
        check_types(source, (FLOAT, None, FLOAT, FLOAT, None), outputs=5)
        window, shift = source.integer("window_size"), source.integer("chunk_shift")
        if window > MAX_WINDOW or source.inputs[0].shape[2] not in (None, window):
            raise ExportError(f"{source.path}: window_size is {window}, the graph takes {source.inputs[0]}")
        if shift > window:
            raise ExportError(f"{source.path}: chunk_shift is {shift}, more than the window_size of {window} frames")
        if NORMALIZE.get(source.metadata.get("normalize_type", "")) != "none":
            raise ExportError(
                f"{source.path}: a stream cannot be normalised over all of it, as its normalize_type says"
            )
        caches = [
            (int(FLOAT), (BATCH, *(source.integer(f"cache_last_{name}_dim{axis}") for axis in (1, 2, 3))))
            for name in ("channel", "time")
        ]
        states = states_of(
            source, source.inputs[2:], source.outputs[2:5], [*caches, (int(TensorProto.INT64), (BATCH,))]
        )
        left = source.integer("cache_last_channel_dim2") * source.integer("subsampling_factor")
        return StreamLayout(
            source.metadata.get("model_type", "")[:64],
            window,
            shift,
            left,
            states,
            length=source.inputs[1],
            lead_frames=window - shift,
            bins_first=True,
            dim_first=self.main == "encoder",
        )

    def features_of(self, source: Source) -> Features:
        normalize = source.metadata.get("normalize_type", "")
        if normalize not in NORMALIZE:
            raise ExportError(
                f"{source.path}: the metadata has normalize_type = {normalize[:40]!r}; known are "
                f"{', '.join(map(repr, NORMALIZE))}"
            )
        bins = source.inputs[0].shape[1] or (
            source.integer("feat_dim") if "feat_dim" in source.metadata else FEATURES.num_mel_bins
        )
        return FEATURES.model_copy(update={"num_mel_bins": bins, "normalize": NORMALIZE[normalize]})

    def vocabulary(self) -> Vocabulary:
        return super().vocabulary().model_copy(update={"has_marks": has_marks(self.tokens)})

    def blank_id(self) -> int:
        return len(self.tokens) - 1

    def _same_sizes(self, source: Source, sizes: OfflineSizes, frames_per_step: int = 0) -> None:
        super()._same_sizes(source, sizes, frames_per_step)
        if source.integer("subsampling_factor") != sizes.rate:
            raise ExportError(
                f"{source.path}: subsampling_factor is {source.metadata['subsampling_factor']}, but {sizes.rate} "
                "feature frames make one of the graph's"
            )
        self.set_tokens(source.integer("vocab_size") + 1, source)


class NemoCtcImporter(NemoImporter, CtcImporter):
    known = known_streaming = TYPES

    def _same_sizes(self, source: Source, sizes: OfflineSizes, frames_per_step: int = 0) -> None:
        if sizes.dim != source.integer("vocab_size") + 1:
            raise ExportError(
                f"{source.path} gives {sizes.dim} scores; by its vocab_size it has {source.integer('vocab_size')} "
                "tokens and the blank"
            )
        super()._same_sizes(source, sizes, frames_per_step)


class NemoTransducerImporter(NemoImporter, TransducerImporter):
    layers = hidden = 0
    durations: tuple[int, ...] | None = None

    @property
    def dim(self) -> int:
        return max(self._sizes.dim, self.hidden)

    @property
    def states(self) -> tuple[State, ...]:
        """The predictor's, as the manifest has them."""
        return tuple(State(name=name, shape=(self.layers, self.hidden), dtype="float32") for name in ("hidden", "cell"))

    def parts(self) -> tuple[KindPart, ...]:
        settings = TransducerPart(
            context_size=1,
            start=(self.blank_id(),),
            states=self.states,
            durations=self.durations or (),
            max_symbols=MAX_SYMBOLS_TDT if self.durations else MAX_SYMBOLS,
        )
        return (settings,)

    def _same_sizes(self, source: Source, sizes: OfflineSizes, frames_per_step: int = 0) -> None:
        super()._same_sizes(source, sizes, frames_per_step)
        self.layers, self.hidden = source.integer("pred_rnn_layers"), source.integer("pred_hidden")

    def _add_predictor(self, precision: Precision, path: Path) -> None:
        source = read_source(path)
        check_types(source, (None, None, FLOAT, FLOAT), outputs=4)
        model = compose.stateful_predictor(source, self.states, self.blank_id(), self.hidden, self.dim)
        graph = opened(self.writer.folder / self._write("predictor", model, precision, path))
        random = np.random.default_rng(0)
        tokens = np.array([[0], [self.blank_id()], [len(self.tokens) // 2]])
        feed = {"context": tokens} | {
            state.name: random.normal(size=(3, self.layers, self.hidden)).astype(np.float32) for state in self.states
        }
        names = ["predictor_out", *(f"next_{state.name}" for state in self.states)]
        together = run(graph, source, feed, names)
        alone = [
            run(graph, source, {name: each[row : row + 1] for name, each in feed.items()}, names) for row in range(3)
        ]
        for name, found, rows in zip(names, together, zip(*alone, strict=True), strict=True):
            expected = np.concatenate(rows)
            wanted = (3, self.dim) if name == "predictor_out" else (3, self.layers, self.hidden)
            if found.shape != wanted:
                raise ExportError(f"{path}: {name} has the shape {found.shape}; expected {wanted} by the metadata")
            if precision == "fp32" and largest_difference(found, expected, name) > FLOAT_NOISE * typical_size(expected):
                raise ExportError(
                    f"{path}: rows of one call change each other; such a graph cannot be served in batches"
                )

    def _add_joiner(self, precision: Precision, path: Path) -> None:
        source = read_source(path)
        check_types(source, (FLOAT, FLOAT), outputs=1)
        sizes = (self._sizes.dim, self.hidden)
        vectors = (np.zeros((1, size, 1), np.float32) for size in sizes)
        feed = {tensor.name: vector for tensor, vector in zip(source.inputs, vectors, strict=True)}
        (scores,) = run(opened(path), source, feed, [source.outputs[0].name])
        more = scores.size - len(self.tokens)
        if not 0 <= more <= MAX_DURATIONS or self.durations not in (None, durations := tuple(range(more))):
            raise ExportError(
                f"{path} gives {scores.size} scores: those of {len(self.tokens)} tokens with the blank, and of the "
                f"durations of a TDT model, of which at most {MAX_DURATIONS} can be, as many in each precision"
            )
        self.durations = durations
        graph = opened(
            self.writer.folder
            / self._write("joiner", compose.joiner(source, self.dim, scores.size, sizes), precision, path)
        )
        zeros = np.zeros((3, self.dim), np.float32)
        (found,) = run(graph, source, {"encoder_out": zeros, "predictor_out": zeros}, ["logits"])
        if found.shape != (3, scores.size):
            raise ExportError(f"{path} gives {found.shape} scores of 3 rows, {scores.size} of one")
