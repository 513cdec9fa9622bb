"""FunASR's models in sherpa-onnx's folders: SenseVoice and Paraformer.

    model.onnx, tokens.txt  ->  a graph of role encoder

The graphs take rows of features side by side, scaled by statistics that the metadata has with the size of these rows.
Facts: sherpa-onnx, csrc/offline-sense-voice-model.cc, offline-recognizer-sense-voice-impl.h and
offline-paraformer-model.cc, scripts/sense-voice and scripts/paraformer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from tritone.bundle.manifest import Encoder, Features, Precision, Vocabulary
from tritone.errors import ExportError
from tritone.families.funasr.config import SENSE_VOICE_TAGS
from tritone.families.funasr.stream_files import is_for_streams
from tritone.families.onnx.builder import EMBEDDED, Builder
from tritone.families.onnx.front_end import cut_frames, least_samples, utterance_features
from tritone.families.onnx.source import Source, check_types, read_source
from tritone.families.onnx.trial import FLOAT_NOISE, MAX_DIFFERENCE, fbank, largest_difference, opened, run, signal
from tritone.families.onnx.trial import typical_size as size_of
from tritone.families.ready_made.compose import FLOAT, INT64, METADATA, Spec
from tritone.families.ready_made.importer import SAMPLE_RATE, Importer
from tritone.families.ready_made.measure import Leak
from tritone.runtime import Graph

SENSE_VOICE, PARAFORMER = "sense_voice_ctc", "paraformer"
NUM_TAGS = len(SENSE_VOICE_TAGS)
MAX_NUMBERS = 65536  # of a vector of statistics
MAX_WIDTH = 64
LENGTHS = (16000, 9000, 400, 23000, 12345)  # samples of utterances that graphs are tried with
LANGUAGE = "lang_"

Floats = npt.NDArray[np.float32]


def statistics(source: Source, key: str) -> Floats:
    """A vector of the metadata: numbers with commas.

    Raises:
        ExportError: it is missing, or something else.
    """
    text = source.metadata.get(key, "")
    try:
        found = np.array([float(each) for each in text.split(",", MAX_NUMBERS)], np.float32)
    except ValueError as error:
        raise ExportError(
            f"{source.path}: the metadata should have numbers with commas as {key}, got {text[:40]!r}"
        ) from error
    if not np.isfinite(found).all():
        raise ExportError(f"{source.path}: {key} of the metadata has numbers that are not finite")
    return found


class Rows:
    """Rows of features side by side as a graph of FunASR's takes them, by its metadata."""

    def __init__(self, source: Source) -> None:
        """Read the metadata.

        Raises:
            ExportError: something is missing or does not fit.
        """
        self.width, self.step = (source.integer(f"lfr_window_{name}") for name in ("size", "shift"))
        self.shift, self.scale = statistics(source, "neg_mean"), statistics(source, "inv_stddev")
        size = len(self.shift)
        if not self.step <= self.width <= MAX_WIDTH or size % self.width or len(self.scale) != size:
            raise ExportError(
                f"{source.path}: lfr_window_size {self.width}, lfr_window_shift {self.step}, {size} numbers of "
                f"neg_mean and {len(self.scale)} of inv_stddev do not fit together"
            )
        scaled = source.metadata.get("normalize_samples", "0") == "0"
        self.features = Features(
            window="hamming", num_mel_bins=size // self.width, sample_scale=32768.0 if scaled else 1.0
        )

    def nodes(self, b: Builder) -> tuple[str, str]:
        """Nodes that make them of waveforms: the names of (batch, rows, size), and of each utterance's count."""
        x, valid = utterance_features(b, self.features, SAMPLE_RATE, 1)
        bins = self.features.num_mel_bins
        at = b.op("Reshape", b.op("Max", b.op("Sub", valid, b.constant(1)), b.constant(0)), b.constant([-1, 1, 1]))
        last = b.op("GatherElements", x, b.op("Expand", at, b.constant([1, 1, bins])), axis=1)
        frames = b.slice(b.op("Shape", x), 1, 2, axis=0)
        places = b.op("Range", b.constant(0), b.op("Reshape", frames, b.constant(np.zeros(0))), b.constant(1))
        beyond = b.op("Less", at, b.op("Reshape", places, b.constant([1, -1, 1])))
        x = b.op("Where", beyond, last, x)
        before = (self.width - 1) // 2
        first = [b.slice(x, 0, 1, axis=1)] * before
        x = b.op("Concat", *first, x, *[last] * (self.width - 1 - before), axis=1)
        flat = b.op("Reshape", x, b.constant([0, -1]))
        rows = cut_frames(b, flat, self._count(b, frames), self.width * bins, self.step * bins)
        return b.op("Mul", b.op("Add", rows, b.real(self.shift)), b.real(self.scale)), self._count(b, valid)

    def _count(self, b: Builder, frames: str) -> str:
        return b.op("Div", b.op("Add", frames, b.constant(self.step - 1)), b.constant(self.step))

    def of(self, waveform: Floats) -> Floats:
        """The rows of a waveform, computed apart from the nodes."""
        frames = fbank(waveform, self.features, SAMPLE_RATE)
        before = (self.width - 1) // 2
        places = np.arange(-(-len(frames) // self.step))[:, None] * self.step + np.arange(self.width) - before
        stacked = frames[np.clip(places, 0, len(frames) - 1)].reshape(len(places), -1)
        found: Floats = (stacked + self.shift) * self.scale
        return found


class SenseVoiceImporter(Importer):
    """SenseVoice-Small: a CTC model that is asked four questions, which its first frames answer."""

    output = "log_probs"
    main = "model"
    languages: Mapping[str, int] = {}  # each has its own
    forms = (0, 0)
    step = 0

    def add(self, precision: Precision) -> None:
        path = self.files.graphs[precision]["model"]
        self.progress(f"reading {path.name}")
        source = read_source(path)
        check_types(source, (TensorProto.FLOAT, None, None, None), outputs=1)
        if len(source.inputs[0].shape) != 3 or source.inputs[0].shape[0] is not None:
            raise ExportError(f"{path} takes {source.inputs[0]}; features should come for any number of utterances")
        rows, self.model_type = Rows(source), SENSE_VOICE
        self.features = rows.features
        self._read_numbers(source, rows)
        name = self._write("encoder", self._composed(source, rows), precision, path)
        self.progress(f"checking {name}")
        self._check(opened(self.writer.folder / name), opened(path), source, rows, name, precision)

    def _read_numbers(self, source: Source, rows: Rows) -> None:
        """What requests may ask for, and the sizes; the same in all precisions."""
        languages = {
            key.removeprefix(LANGUAGE): source.integer(key, 0) for key in source.metadata if key.startswith(LANGUAGE)
        }
        forms = source.integer("without_itn", 0), source.integer("with_itn", 0)
        found = languages, forms, source.integer("vocab_size"), rows.step
        if "auto" not in languages:
            raise ExportError(f"{source.path}: the metadata has no lang_auto, which utterances without language get")
        if self.artifacts and found != (self.languages, self.forms, len(self.tokens), self.step):
            raise ExportError(f"{source.path} has other sizes than the files of another precision")
        self.languages, self.forms, size, self.step = found
        self.set_tokens(size, source)

    def encoder(self, tail_samples: int) -> Encoder:
        return Encoder(
            subsampling_rate=self.step,
            output_dim=len(self.tokens),
            min_samples=least_samples(self.features, 1),
            tail_samples=tail_samples,
            equal_lengths=any(leak.depends_on_padding for leak in self.leaks.values()),
            languages=dict(self.languages),
            language="auto",
            text_forms=self.forms,
            tags=SENSE_VOICE_TAGS,
        )

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(
            size=len(self.tokens),
            units="bpe",
            blank_id=0,
            sos_id=self._find(("<s>",)),
            eos_id=self._find(("</s>",)),
            has_marks=True,
        )

    def _composed(self, source: Source, rows: Rows) -> onnx.ModelProto:
        b = Builder()
        x, counts = rows.nodes(b)
        b.op("Identity", x, output=EMBEDDED + source.inputs[0].name)
        given = (b.op("Max", counts, b.constant(1)), "language", "use_itn")
        for ours, theirs in zip(given, source.inputs[1:], strict=True):
            b.op("Cast", ours, output=EMBEDDED + theirs.name, to=theirs.dtype)
        b.embed(source.model)
        scores = b.op("LogSoftmax", EMBEDDED + source.outputs[0].name, axis=-1)
        b.op("Identity", b.slice(scores, NUM_TAGS, 2**62, axis=1), output="log_probs")
        b.op("ArgMax", b.slice(scores, 0, NUM_TAGS, axis=1), output="tags", axis=2, keepdims=0)
        b.op("Identity", counts, output="num_frames")
        row: Spec = (INT64, ["batch"])
        inputs: Mapping[str, Spec] = {
            "waveform": (FLOAT, ["batch", "samples"]),
            "num_samples": row,
            "language": row,
            "use_itn": row,
        }
        outputs: Mapping[str, Spec] = {
            "log_probs": (FLOAT, ["batch", "frames", len(self.tokens)]),
            "num_frames": row,
            "tags": (INT64, ["batch", NUM_TAGS]),
        }
        return b.model(inputs, outputs, METADATA)

    def _check(self, ours: Graph, theirs: Graph, source: Source, rows: Rows, name: str, precision: Precision) -> None:
        """Compare our graph with the folder's on single utterances, and in batches with itself."""
        waveforms = [signal(length, SAMPLE_RATE, seed) for seed, length in enumerate(LENGTHS)]
        known = list(self.languages.values())
        asked = [(known[index % len(known)], self.forms[index % 2]) for index in range(len(waveforms))]
        alone = [_encoded(ours, source, [each], [one]) for each, one in zip(waveforms, asked, strict=True)]
        worst = 0.0
        for waveform, one, [(found, tags)] in zip(waveforms, asked, alone, strict=True):
            x = rows.of(waveform)[None]
            values: Sequence[Any] = (x, *(np.array([each]) for each in (x.shape[1], *one)))
            feed = {
                tensor.name: value.astype(theirs.inputs[tensor.name].dtype)
                for tensor, value in zip(source.inputs, values, strict=True)
            }
            (scores,) = run(theirs, source, feed, [source.outputs[0].name])
            if scores.ndim != 3 or scores.shape[2] != len(self.tokens):
                raise ExportError(
                    f"{source.path} gives {scores.shape}; by its vocab_size it has {len(self.tokens)} tokens"
                )
            wanted = scores[0] - np.logaddexp.reduce(scores[0].astype(np.float64), axis=-1, keepdims=True)
            expected = wanted[NUM_TAGS : NUM_TAGS + x.shape[1]].astype(np.float32)
            worst = max(worst, largest_difference(found, expected, name) / size_of(expected))
            if precision == "fp32" and not np.array_equal(tags, scores[0, :NUM_TAGS].argmax(axis=1)):
                raise ExportError(f"{name} gives other tags than {source.path}. Please report this.")
        self.differences[name] = worst
        if precision == "fp32" and worst > MAX_DIFFERENCE:
            raise ExportError(
                f"{name} differs from {source.path} by {worst:.2g} of the size of its results, the limit is "
                f"{MAX_DIFFERENCE:g}. Please report this with the version of onnx."
            )
        size = size_of(np.concatenate([found for [(found, _)] in alone]))
        together = _encoded(ours, source, waveforms, asked)
        padding = max(largest_difference(a, b, name) for [(a, _)], (b, _) in zip(alone, together, strict=True))
        mates = _encoded(ours, source, [waveforms[1], waveforms[0][: LENGTHS[1]]], asked[1::-1])[0][0]
        leak = Leak(padding / size, largest_difference(alone[1][0][0], mates, name) / size)
        if precision == "fp32" and leak.mates > FLOAT_NOISE:
            raise ExportError(
                f"{source.path}: an utterance's result changes by {leak.mates:.2g} of its size with what else is in "
                "the batch, even at equal lengths. Such a graph cannot be served in batches."
            )
        self.leaks[name] = leak


def _encoded(
    graph: Graph, source: Source, waveforms: Sequence[Floats], asked: Sequence[tuple[int, int]]
) -> list[tuple[Floats, npt.NDArray[np.int64]]]:
    """Log-probabilities and tags of each row of one call of a graph of ours."""
    block = np.zeros((len(waveforms), max(map(len, waveforms))), np.float32)
    for row, waveform in zip(block, waveforms, strict=True):
        row[: len(waveform)] = waveform
    language, form = (np.array(each) for each in zip(*asked, strict=True))
    feed = {"waveform": block, "num_samples": np.array([*map(len, waveforms)]), "language": language, "use_itn": form}
    found = run(graph, source, feed, ["log_probs", "num_frames", "tags"])
    return [(row[:count], tags) for row, count, tags in zip(*found, strict=True)]


class ParaformerImporter(Importer):
    """A Paraformer, predictor and decoder in one graph, which gives scores of tokens and how many there are.

    Where tokens are it does not say. The weights of frames, of which it counts them, are the result of the only sigmoid
    in it: that is made an output, and what it counts to is compared with the graph's own numbers.
    """

    output = "log_probs"
    main = "model"
    kind = PARAFORMER
    step = 0

    def add(self, precision: Precision) -> None:
        path = self.files.graphs[precision]["model"]
        self.progress(f"reading {path.name}")
        source = read_source(path)
        check_types(source, (TensorProto.FLOAT, None), outputs=2)
        if len(source.inputs[0].shape) != 3 or source.inputs[0].shape[0] is not None:
            raise ExportError(f"{path} takes {source.inputs[0]}; features should come for any number of utterances")
        rows, self.model_type = Rows(source), PARAFORMER
        size = source.integer("vocab_size")
        if self.artifacts and (rows.step, size) != (self.step, len(self.tokens)):
            raise ExportError(f"{path} has other sizes than the files of another precision")
        self.features, self.step = rows.features, rows.step
        self.set_tokens(size, source)
        name = self._write("encoder", self._composed(source, rows), precision, path)
        self.progress(f"checking {name}")
        self._check(opened(self.writer.folder / name), opened(path), source, rows, name, precision)

    def encoder(self, tail_samples: int) -> Encoder:
        return Encoder(
            subsampling_rate=self.step,
            output_dim=len(self.tokens),
            min_samples=least_samples(self.features, 1),
            tail_samples=tail_samples,
            equal_lengths=any(leak.depends_on_padding for leak in self.leaks.values()),
        )

    def vocabulary(self) -> Vocabulary:
        blank = self._find(("<blank>", "<blk>"))
        if blank is None:
            raise ExportError(f"{self.files.tokens} has no <blank>, which a Paraformer's tokens begin with")
        return Vocabulary(
            size=len(self.tokens),
            units="continued",
            blank_id=blank,
            unk_id=self._find(("<unk>",)),
            sos_id=self._find(("<s>",)),
            eos_id=self._find(("</s>",)),
        )

    def _composed(self, source: Source, rows: Rows) -> onnx.ModelProto:
        b = Builder()
        x, counts = rows.nodes(b)
        b.op("Identity", x, output=EMBEDDED + source.inputs[0].name)
        lengths = b.op("Max", counts, b.constant(1))
        b.op("Cast", lengths, output=EMBEDDED + source.inputs[1].name, to=source.inputs[1].dtype)
        b.embed(source.model)
        b.op("LogSoftmax", EMBEDDED + source.outputs[0].name, output="log_probs", axis=-1)
        weights = b.op("Reshape", EMBEDDED + _weights(source), b.op("Slice", *self._shape(b, x)))
        frames = b.op("Reshape", b.slice(b.op("Shape", x), 1, 2, axis=0), b.constant(np.zeros(0)))
        places = b.op("Reshape", b.op("Range", b.constant(0), frames, b.constant(1)), b.constant([1, -1]))
        inside = b.op("Less", places, b.op("Reshape", counts, b.constant([-1, 1])))
        weighted = b.op("Cast", b.op("Where", inside, weights, b.real(0)), to=TensorProto.DOUBLE)
        b.op("Cast", b.op("CumSum", weighted, b.constant(1)), output="token_sums", to=TensorProto.FLOAT)
        number = b.op("Reshape", b.op("Cast", EMBEDDED + source.outputs[1].name, to=INT64), b.constant([-1]))
        b.op("Where", b.op("Less", b.constant(0), counts), number, b.constant(0), output="num_tokens")
        b.op("Identity", counts, output="num_frames")
        row: Spec = (INT64, ["batch"])
        inputs: Mapping[str, Spec] = {"waveform": (FLOAT, ["batch", "samples"]), "num_samples": row}
        outputs: Mapping[str, Spec] = {
            "log_probs": (FLOAT, ["batch", "tokens", len(self.tokens)]),
            "num_frames": row,
            "token_sums": (FLOAT, ["batch", "frames"]),
            "num_tokens": row,
        }
        return b.model(inputs, outputs, METADATA)

    def _shape(self, b: Builder, x: str) -> tuple[str, ...]:
        """The first two axes of a tensor, as inputs of `Slice`."""
        return (b.op("Shape", x), b.constant([0]), b.constant([2]), b.constant([0]), b.constant([1]))

    def _check(self, ours: Graph, theirs: Graph, source: Source, rows: Rows, name: str, precision: Precision) -> None:
        """Compare our graph with the folder's on single utterances, and in batches with itself."""
        waveforms = [signal(length, SAMPLE_RATE, seed) for seed, length in enumerate(LENGTHS)]
        alone = [_written(ours, source, [each])[0] for each in waveforms]
        worst = 0.0
        for waveform, (found, sums) in zip(waveforms, alone, strict=True):
            x = rows.of(waveform)[None]
            feed = {
                tensor.name: value.astype(theirs.inputs[tensor.name].dtype)
                for tensor, value in zip(source.inputs, (x, np.array([x.shape[1]])), strict=True)
            }
            scores, number = run(theirs, source, feed, [tensor.name for tensor in source.outputs[:2]])
            if scores.ndim != 3 or scores.shape[2] != len(self.tokens):
                raise ExportError(
                    f"{source.path} gives {scores.shape}; by its vocab_size it has {len(self.tokens)} tokens"
                )
            wanted = scores[0] - np.logaddexp.reduce(scores[0].astype(np.float64), axis=-1, keepdims=True)
            expected = wanted[: int(number.reshape(-1)[0])].astype(np.float32)
            if precision == "fp32":
                worst = max(worst, largest_difference(found, expected, name) / size_of(expected))
            if not len(expected) - 1 <= float(sums[-1]) + FLOAT_NOISE <= len(expected) + 1 + FLOAT_NOISE:
                raise ExportError(
                    f"{source.path} counts {len(expected)} tokens, but the weights of its frames sum up to "
                    f"{sums[-1]:.3f}: where tokens are cannot be seen in this graph"
                )
        if precision == "fp32":
            self.differences[name] = worst
            if worst > MAX_DIFFERENCE:
                raise ExportError(
                    f"{name} differs from {source.path} by {worst:.2g} of the size of its results, the limit is "
                    f"{MAX_DIFFERENCE:g}. Please report this with the version of onnx."
                )
        size = size_of(np.concatenate([found for found, _ in alone]))
        together = _written(ours, source, waveforms)
        self.leaks[name] = Leak(max(map(_moved, alone, together)) / size, 0.0)


def _weights(source: Source) -> str:
    """The output of the only sigmoid of a graph."""
    found = [node.output[0] for node in source.model.graph.node if node.op_type == "Sigmoid"]
    if len(found) != 1:
        raise ExportError(
            f"{source.path} has {len(found)} sigmoids; the weights of its frames, which say where tokens are, cannot "
            "be told apart. Export FunASR's own folder: tritone export funasr"
        )
    return found[0]


def _moved(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> float:
    """How far log-probabilities of tokens are apart; without bounds where there are others."""
    return float(np.abs(one[0] - other[0]).max(initial=0)) if one[0].shape == other[0].shape else np.inf


def _written(graph: Graph, source: Source, waveforms: Sequence[Floats]) -> list[tuple[Floats, Floats]]:
    """Log-probabilities of tokens and sums of weights of each row of one call of a graph of ours."""
    block = np.zeros((len(waveforms), max(map(len, waveforms))), np.float32)
    for row, waveform in zip(block, waveforms, strict=True):
        row[: len(waveform)] = waveform
    feed = {"waveform": block, "num_samples": np.array([*map(len, waveforms)])}
    found = run(graph, source, feed, ["log_probs", "num_tokens", "token_sums", "num_frames"])
    return [(row[:count], sums[:frames]) for row, count, sums, frames in zip(*found, strict=True)]


IMPORTERS: Mapping[str, type[Importer]] = {SENSE_VOICE: SenseVoiceImporter, PARAFORMER: ParaformerImporter}
"""By the model type in the metadata."""


def reader_of(kind: str, metadata: Mapping[str, str]) -> type[Importer] | bool:
    """What reads a ready-made model with this metadata, see `Family.reader`."""
    if kind == "pair":
        return is_for_streams(metadata)
    return IMPORTERS.get(metadata.get("model_type", ""), False) if kind == "ctc" else False
