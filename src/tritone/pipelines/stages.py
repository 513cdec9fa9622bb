"""Offline recognition in three stages, each of which may be somewhere else.

    FeaturePipeline    waveforms                              ->  features, num_samples
    AcousticPipeline   features, num_samples                  ->  outputs of the network
    DecodingPipeline   outputs of the network, num_samples    ->  transcripts

One after the other they are `OfflinePipeline`, whose parts they share. A *job* is what one client sent: some rows.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tritone.audio.waveform import Samples
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, TritoneError
from tritone.pipelines.graphs.batching import Batch, BatchLimits, plan_batches
from tritone.pipelines.graphs.blocks import Blocks
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.runner import WARM_UP_S, Filled, GraphRunner, Outputs
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.isolation import isolated
from tritone.pipelines.kind import kind_of
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.readings import utterance
from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchOptions
from tritone.transcript import Transcript

Tensors = Mapping[str, Array]

STEPS_PER_OCTAVE = 16  # lengths that features have, between each length and its double


class FeaturePipeline:
    """Makes features of whole utterances, padded to few different lengths: servers batch what has one shape.

    Has no state between calls; may be called from several threads.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        placement: Placement = ON_CPU,
        max_audio_s: float,
        min_padded_s: float = 0.0,
        limits: BatchLimits | None = None,
        steps_per_octave: int = STEPS_PER_OCTAVE,
    ) -> None:
        """Open the graph of a bundle; arguments and errors as of `OfflinePipeline`.

        Args:
            max_audio_s: the longest utterance, in seconds: features are of no longer audio.
            min_padded_s: the shortest that it is padded to, where the network has a least size.
            steps_per_octave: how many lengths there are, see `BatchLimits`.
        """
        self.bundle = bundle
        self.runner = GraphRunner(bundle, "features", placement, limits=limits)
        self.work = self.runner.work
        self._blocks = self.runner.blocks
        self._steps = steps_per_octave
        self._least, self._most = (
            int(seconds * bundle.manifest.sample_rate) for seconds in (min_padded_s, max_audio_s)
        )

    def check(self, waveform: Samples) -> None:
        """Make sure that the graph takes a waveform, and that its kind has a result for audio so short.

        Raises:
            InputError: it does not; says what would do.
        """
        self._blocks.check(len(waveform))
        if not kind_of(self.bundle).allows_silence:
            self._blocks.check_embeddable(len(waveform))

    def run(self, jobs: Sequence[Sequence[Samples]]) -> list[Tensors | TritoneError]:
        """Make features of the waveforms of some jobs, each (samples,) float32, checked with `check_waveform`.

        Returns:
            For each job `features` (rows, frames, bins) float32 and `num_samples` (rows,) int64, those of the audio
            with its tail, and 0 where it is too short for one frame of the encoder; or the error that it caused.
        """
        return isolated(self._extract, jobs)

    def warm_up(self) -> None:
        """Run silence of several lengths, so that the first real request finds everything ready."""
        longest = int(min(self._most, min(WARM_UP_S, self._blocks.max_audio_s) * self._blocks.sample_rate))
        lengths = self._blocks.lengths_to_warm_up(longest, self._steps)
        self.runner.warm_up(lengths, lambda length: self._extract([[np.zeros(length, np.float32)]]))

    def _extract(self, jobs: Sequence[Sequence[Samples]]) -> list[Tensors]:
        rows = [(index, waveform) for index, job in enumerate(jobs) for waveform in job]
        lengths = [self._padded(job) for job in jobs]
        found: list[Array] = [np.empty(0)] * len(rows)
        counts = np.zeros(len(rows), np.int64)

        def fill(batch: Batch) -> Filled:
            waveforms = [rows[each][1] for each in batch.indices]
            audible = [each if self._blocks.is_audible(len(each)) else each[:0] for each in waveforms]
            filled = self.runner.filled(audible, batch.num_samples)
            filled.inputs["num_samples"][[len(each) == 0 for each in audible]] = 0
            counts[list(batch.indices)] = filled.inputs["num_samples"]
            return filled

        def take(batch: Batch, outputs: Outputs) -> None:
            for each, row in zip(batch.indices, outputs["features"], strict=True):
                found[each] = row

        self.runner.run(
            self._batches([lengths[index] for index, _ in rows]),
            fill,
            lambda batch, inputs: self.runner.compute(inputs, ("features",)),
            take,
        )
        return [
            {"features": together(found[first:end]), "num_samples": counts[first:end]} for first, end in _spans(jobs)
        ]

    def _batches(self, lengths: Sequence[int]) -> list[Batch]:
        return plan_batches(lengths, self.runner.limits, sample_rate=self._blocks.sample_rate, equal=True)

    def _padded(self, job: Sequence[Samples]) -> int:
        longest = max((len(each) for each in job if self._blocks.is_audible(len(each))), default=0)
        longest = max(longest, self._least)
        # An engine has room for the longest audio, and not for the next standard length.
        most = max(self._most, longest) + self._blocks.tail
        padded = min(self._blocks.standard_length(longest, self._steps), max(most, self._blocks.min_samples))
        return padded if self._blocks.max_samples is None else min(padded, self._blocks.max_samples)


class AcousticPipeline:
    """Runs the network on features. Has no state between calls; may be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        outputs: Sequence[str],
        *,
        placement: Placement = ON_CPU,
        limits: BatchLimits | None = None,
    ) -> None:
        """Open the graph of a bundle; arguments and errors as of `OfflinePipeline`.

        Args:
            outputs: what is wanted of the graph; `num_frames` among it where it has an output for each frame.
        """
        self.bundle = bundle
        self.runner = GraphRunner(bundle, "acoustic", placement, limits=limits)
        self.work = self.runner.work
        self._outputs = tuple(outputs)
        self._kind = kind_of(bundle)
        self._shift = bundle.manifest.features.frame_shift

    def run(self, jobs: Sequence[Tensors]) -> list[Tensors | TritoneError]:
        """Run the network.

        Args:
            jobs: `features` (rows, frames, bins) and `num_samples` (rows,) each. Features of equal lengths share
                calls; none are padded, since only who made them knows what with.

        Returns:
            For each job the outputs, without what is beyond the frames of all its rows; or the error that it caused.
        """
        return isolated(self._compute, jobs)

    def warm_up(self, max_audio_s: float) -> None:
        """Run silence of several lengths, so that the first real request finds everything ready."""
        manifest = self.bundle.manifest
        frames = int(min(max_audio_s, WARM_UP_S) * manifest.sample_rate) // self._shift
        least = -(-manifest.encoder.min_samples // self._shift) + 1
        sizes = [frames]
        while sizes[-1] > 2 * least:
            sizes.append(sizes[-1] // 2)

        def run(frames: int) -> None:
            block = np.zeros((1, max(frames, least), manifest.features.num_mel_bins), np.float32)
            self._compute([{"features": block, "num_samples": np.array([(block.shape[1] - 1) * self._shift])}])

        self.runner.warm_up(sizes, run)

    def _compute(self, jobs: Sequence[Tensors]) -> list[Tensors | TritoneError]:
        rows = [row for job in jobs for row in zip(job["features"], job["num_samples"].tolist(), strict=True)]
        found: list[Tensors] = [{} for _ in rows]

        def fill(batch: Batch) -> Filled:
            inputs = {
                "features": together([rows[each][0] for each in batch.indices]),
                "num_samples": np.array([rows[each][1] for each in batch.indices], np.int64),
            }
            audio = int(inputs["num_samples"].sum())
            return Filled(inputs, audio, max(0, len(batch.indices) * batch.num_samples - audio))

        def take(batch: Batch, outputs: Outputs) -> None:
            for row, each in enumerate(batch.indices):
                found[each] = {name: array[row] for name, array in outputs.items()}

        lengths = [len(features) * self._shift for features, _ in rows]
        self.runner.run(
            plan_batches(lengths, self.runner.limits, sample_rate=self.bundle.manifest.sample_rate, equal=True),
            fill,
            lambda batch, inputs: self.runner.compute(inputs, self._outputs),
            take,
        )
        joined = (self._joined(found[first:end]) for first, end in _spans([job["features"] for job in jobs]))
        return [self._kind.checked(outputs) for outputs in joined]

    @staticmethod
    def _joined(rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        if "num_frames" not in rows[0]:
            return {name: together([row[name] for row in rows]) for name in rows[0]}
        counts = np.array([row["num_frames"] for row in rows], np.int64)
        frames = max(1, int(counts.max()))  # Triton has trouble with tensors without elements
        return {
            name: counts if name == "num_frames" else together([row[name][:frames] for row in rows]) for name in rows[0]
        }


@dataclass(frozen=True)
class DecodingJob:
    """Outputs of the network for some rows, the samples of each row's audio without its tail, and how to search."""

    results: Mapping[str, Array]
    num_samples: Sequence[int]
    options: SearchOptions


@dataclass(frozen=True)
class _Row:
    """One row of a job."""

    job: DecodingJob
    index: int

    @property
    def num_frames(self) -> int:
        return int(self.job.results["num_frames"][self.index])

    def output(self, name: str) -> Array:
        """What the network returned for its frames."""
        return self.job.results[name][self.index, : self.num_frames]


@dataclass(frozen=True)
class _Passed:
    outputs: Collection[str]


class DecodingPipeline:
    """Decodes outputs of the network to transcripts. May be called from several threads."""

    def __init__(
        self,
        bundle: Bundle,
        passed: Collection[str],
        *,
        placement: Placement = ON_CPU,
        search: SearchSettings | None = None,
        limits: BatchLimits | None = None,
    ) -> None:
        """Prepare for a bundle; arguments and errors as of `OfflinePipeline`.

        Args:
            passed: the outputs of the network that jobs have.
            placement: of the graphs that the search itself needs.
        """
        self.bundle = bundle
        self.limits = limits or BatchLimits.for_device(placement.device)
        self.work = WorkLog(bundle.manifest.sample_rate)
        self._passed = tuple(passed)
        kind = kind_of(bundle)
        self.searching = kind.open_searching(bundle, _Passed(self._passed), search, placement)
        self._modes = kind.modes
        self._blocks = Blocks(bundle.manifest)
        manifest = bundle.manifest
        self._frame = manifest.features.frame_shift * manifest.encoder.subsampling_rate

    @property
    def options(self) -> SearchOptions:
        """How jobs are searched that ask for nothing else."""
        return self.searching.options

    def can_search(self, options: SearchOptions) -> bool:
        """Whether the network hands on what a search needs."""
        return set(self.searching.outputs([options])) <= set(self._passed)

    def check(self, options: SearchOptions) -> SearchOptions:
        """The same options, after checking that the search can have them.

        Raises:
            InputError: they ask for what the model does not have, or need outputs that the network does not pass on.
        """
        lacking = set(self.searching.outputs([options])) - set(self._passed)
        if lacking and options.mode in self._modes:
            # Whether the whole bundle has an attention decoder cannot be seen here: a stage has what it needs alone.
            condition = ", if it has an attention decoder" if options.mode == "rescoring" else ""
            raise InputError(
                f"search {options.mode} needs {' and '.join(sorted(lacking))} of the network, which this model's "
                f"stages do not hand on. Use {self.searching.options.mode}, or ask the operator to build the model "
                f"with --search {options.mode}{condition}"
            )
        return self.searching.check(options)

    def run(self, jobs: Sequence[DecodingJob]) -> list[list[Transcript] | TritoneError]:
        """Search the rows of some jobs, whose options are checked.

        Returns:
            For each job the transcripts of its rows, or the error that it caused.
        """
        return isolated(self._decode, jobs)

    def _decode(self, jobs: Sequence[DecodingJob]) -> list[list[Transcript]]:
        rows = [_Row(job, index) for job in jobs for index in range(len(job.num_samples))]
        hypotheses: list[list[Hypothesis]] = [[Hypothesis((), 0.0)] for _ in rows]
        decoded = [place for place, row in enumerate(rows) if row.num_frames and self._is_audible(row)]
        lengths = [rows[place].num_frames * self._frame for place in decoded]
        start = time.perf_counter()
        for batch in plan_batches(lengths, self.limits, sample_rate=self.bundle.manifest.sample_rate):
            places = [decoded[index] for index in batch.indices]
            options = [rows[place].job.options for place in places]
            outputs = {
                name: np.array([rows[place].num_frames for place in places])
                if name == "num_frames"
                else together([rows[place].output(name) for place in places])
                for name in self.searching.outputs(options)
            }
            for place, nbest in zip(places, self.searching.search(outputs, options), strict=True):
                hypotheses[place] = nbest
        self.work.add_search(time.perf_counter() - start)
        transcripts = iter(
            utterance(self.bundle, found, row.job.num_samples[row.index], row.job.options)
            for found, row in zip(hypotheses, rows, strict=True)
        )
        return [[next(transcripts) for _ in job.num_samples] for job in jobs]

    def class_ids(self, results: Mapping[str, Array]) -> Array:
        """The best token of each frame of a job, (rows, frames) int32; the blank beyond a row's frames.

        There are as many frames as divide by the number of rows without rest: NVIDIA's client cuts a row so.
        """
        best = results["best_tokens"] if "best_tokens" in results else results["log_probs"].argmax(axis=2)
        rows, frames = best.shape
        ids = np.full((rows, -(-frames // rows) * rows), self.bundle.manifest.tokens.blank_id, np.int32)
        for row, tokens, count in zip(ids, best, results["num_frames"].tolist(), strict=True):
            row[:count] = tokens[:count]
        return ids

    def warm_up(self) -> None:
        """Compile and open all that the default options need, so that no request waits for it."""
        self.searching.warm_up()

    def _is_audible(self, row: "_Row") -> bool:
        return self._blocks.is_audible(row.job.num_samples[row.index])


def together(rows: Sequence[Array]) -> Array:
    """Arrays (frames, ...) as one, (rows, frames, ...), with zeros where one is shorter; one alone is not copied."""
    if len(rows) == 1:
        return rows[0][None]
    longest = max(map(len, rows))
    block = np.empty((len(rows), longest, *rows[0].shape[1:]), rows[0].dtype)
    for place, row in zip(block, rows, strict=True):
        place[: len(row)] = row
        place[len(row) :] = 0
    return block


def _spans(jobs: Sequence[Any]) -> list[tuple[int, int]]:
    """Where the rows of each job begin and end among those of all."""
    ends = np.cumsum([len(job) for job in jobs]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))
