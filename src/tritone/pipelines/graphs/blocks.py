"""Waveforms as blocks, which a model's graphs for whole utterances take.

waveforms of any lengths  ->  which of them share a call, padded to what length
waveforms, length         ->  {"waveform": (rows, samples) float32 or int16, "num_samples": (rows,) int64}
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples
from tritone.bundle.manifest import Manifest
from tritone.errors import AudioError, InputError
from tritone.pipelines.graphs.batching import (
    EVERY_LENGTH,
    Batch,
    BatchLimits,
    Sizes,
    bucket_length,
    plan_batches,
    plan_buckets,
)
from tritone.pipelines.graphs.filling import fill_rows
from tritone.pipelines.kind import kind_named
from tritone.runtime.graph import Array, Bucket, TensorSpec


class Blocks:
    """The audio that a model and its graphs take, and how it is put into blocks.

    `sample_rate` in Hz; `min_samples`, `tail` in samples: the shortest a graph takes, and the silence that every
    utterance gets. `max_samples`: the longest a graph takes, or None.
    """

    def __init__(self, manifest: Manifest, waveform: TensorSpec | None = None) -> None:
        """Take a bundle's manifest, and the input of its graph, which may have limits of its own, as engines do."""
        self.sample_rate = manifest.sample_rate
        self.min_samples = manifest.encoder.min_samples
        self.tail = manifest.encoder.tail_samples
        self._frame_length = manifest.features.frame_length
        self._equal = manifest.encoder.equal_lengths
        self.max_samples: int | None = None
        self._max_rows: int | None = None
        self._single_rows = waveform is not None and waveform.shape[0] == 1
        if waveform is not None and waveform.most:
            self._max_rows, self.max_samples = waveform.most
            self.min_samples = max(self.min_samples, waveform.least[1])
        self._shortest = manifest.encoder.min_samples  # that gives a frame
        # What rows that nobody needs say they have: an embedding of nothing may be no number, and slow ones at that.
        least = 0 if kind_named(manifest.kind).allows_silence else self._shortest
        self._silent = None if self._equal else least

    def is_audible(self, num_samples: int) -> bool:
        """Is there a whole feature frame of audio, and with the tail a frame of the encoder?"""
        return num_samples >= self._frame_length and num_samples + self.tail >= self._shortest

    @property
    def max_audio_s(self) -> float:
        """The longest audio that a graph takes, in seconds; infinite where there is no limit."""
        return float("inf") if self.max_samples is None else (self.max_samples - self.tail) / self.sample_rate

    def check(self, num_samples: int) -> None:
        """Make sure that the graph takes audio of so many samples.

        Raises:
            InputError: it does not; says what it takes.
        """
        if self.max_samples is not None and num_samples + self.tail > self.max_samples:
            raise InputError(
                f"the audio is {num_samples / self.sample_rate:.3f} s long, and the engine that serves this model was "
                f"built for up to {self.max_audio_s:g} s. Cut it or stream it; or build the engine for more (`tritone "
                "engine --max`), or run the model with another runtime."
            )

    @property
    def least_embeddable(self) -> int:
        """Samples of the shortest audio that has an embedding. Where padding is heard, an engine's least counts."""
        return max(self._frame_length, self.min_samples if self._equal else self._shortest)

    def check_embeddable(self, num_samples: int) -> None:
        """Make sure that audio of so many samples has an embedding.

        Raises:
            AudioError: it is too short; says what would do.
        """
        if num_samples < (least := self.least_embeddable):
            raise AudioError(
                f"the audio is {num_samples / self.sample_rate:.3f} s long ({num_samples} samples at "
                f"{self.sample_rate} Hz), an embedding needs at least {least / self.sample_rate:.3f} s ({least} "
                "samples). Send longer audio; silence around it would change the embedding."
            )

    def within(self, limits: BatchLimits) -> BatchLimits:
        """Limits that the graph can keep, too. One that takes single rows hears padding, so there is none."""
        if self._single_rows:
            return replace(limits, max_batch=1, steps_per_octave=EVERY_LENGTH)
        if self._max_rows is None:
            return limits
        return replace(limits, max_batch=min(limits.max_batch, self._max_rows))

    def sizes(self, buckets: Sequence[Bucket], has_room: Callable[[int, int], bool]) -> Sizes:
        """The sizes that the graph is compiled for, as `plan` takes them; `has_room`: as of `plan_batches`."""
        return Sizes(buckets, equal=self._equal, has_room=has_room)

    def plan(
        self,
        lengths: Sequence[int],
        limits: BatchLimits,
        has_room: Callable[[int, int], bool] = lambda rows, num_samples: True,
        sizes: Sizes | None = None,
    ) -> list[Batch]:
        """Group utterances of so many samples for calls, tails included; `Batch.indices` are places in `lengths`.

        `has_room`, `sizes`: as of `plan_batches` and `plan_buckets`.
        """
        with_tails = [length + self.tail for length in lengths]
        asked: dict[str, Any] = {
            "sample_rate": self.sample_rate,
            "min_samples": self.min_samples,
            "max_samples": self.max_samples,
        }
        if sizes is not None:
            return plan_buckets(with_tails, limits, sizes, **asked)
        return plan_batches(with_tails, limits, equal=self._equal, has_room=has_room, **asked)

    def standard_length(self, longest: int, steps_per_octave: int) -> int:
        """The length that utterances of up to `longest` samples are padded to where few lengths are wanted."""
        padded = max(longest + self.tail, self.min_samples)
        return padded if self._equal else bucket_length(padded, steps_per_octave)

    def fill(
        self,
        empty: Callable[[tuple[int, ...], npt.DTypeLike], Array],
        waveforms: Sequence[Samples],
        padded: int,
        *,
        narrow: bool = False,
        rows: int = 0,
    ) -> tuple[dict[str, Array], list[int]]:
        """Put waveforms into one block of `padded` samples a row; `empty` makes it.

        If there are more `rows` than waveforms, the rest are silence. The block is float32, or with `narrow`, where all
        waveforms are int16, int16 as well.

        Returns:
            The inputs of a call, and the rows whose samples are not finite or far beyond [-1, 1].
        """
        narrow = narrow and all(waveform.dtype == np.int16 for waveform in waveforms)
        block = empty((rows or len(waveforms), padded), np.int16 if narrow else np.float32)
        unfit = fill_rows(block, waveforms)
        num_samples = [min(len(waveform) + self.tail, padded) for waveform in waveforms]
        num_samples += [self._silent if self._silent is not None else padded] * (len(block) - len(waveforms))
        return {"waveform": block, "num_samples": np.array(num_samples, dtype=np.int64)}, unfit

    def lengths_to_warm_up(self, longest: int, steps_per_octave: int) -> list[int]:
        """Lengths in samples up to `longest`, each twice the one before it, as they are padded."""
        lengths = [longest]
        while lengths[-1] >= 2 * self.min_samples:
            lengths.append(lengths[-1] // 2)
        padded = [bucket_length(max(length, self.min_samples), steps_per_octave) for length in reversed(lengths)]
        return [length if self.max_samples is None else min(length, self.max_samples) for length in padded]
