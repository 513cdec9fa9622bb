"""Audio files and arrays for a model in this process: read ahead of it, computed in batches, a result for each.

["a.wav", array, ...]  ->  batches of waveforms  ->  Result, Result, ...
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from tritone.audio.files import check_sample_rate
from tritone.audio.inputs import AudioInput, load
from tritone.audio.read_ahead import Recording, read_ahead
from tritone.audio.waveform import Waveform
from tritone.errors import TritoneError
from tritone.result import AnyResult

MAX_BATCH_S = 1800.0  # audio given to the model at once, seconds; bounds memory when there are thousands of files

Compute = Callable[[list[Waveform]], Sequence[Any]]
"""Returns, for each waveform, what the model makes of it, or a `TritoneError`."""


class Sources:
    """Reads audio for a model of `sample_rate` Hz that takes up to `max_audio_s` seconds of it at once."""

    def __init__(self, sample_rate: int, max_audio_s: float) -> None:
        self.sample_rate = sample_rate
        self.max_audio_s = max_audio_s

    def read(self, source: AudioInput, sample_rate: int | None) -> Waveform:
        """Read a file, or check an array of that rate (Hz; None is the model's). Raises as `audio.inputs.load` does."""
        return load(source, sample_rate, self.sample_rate, max_audio_s=self.max_audio_s, check=True)

    def each(
        self,
        inputs: Iterable[AudioInput],
        compute: Compute,
        result: type[AnyResult],
        *,
        sample_rate: int | None,
        batch_inputs: int | None = None,
        batch_s: float | None = None,
    ) -> Generator[AnyResult, None, None]:
        """Yield a result for each input: those of a batch in their order, of one that cannot be read at once.

        Args:
            inputs: of any number; read ahead of the model, but not all at once.
            compute: the model.
            result: what is yielded.
            sample_rate: of the arrays, in Hz; None means the model's.
            batch_inputs, batch_s: inputs given to the model together, and seconds of their audio; None: any number of
                inputs, `MAX_BATCH_S`. No batch goes beyond a multiple of `batch_inputs`, so that parts of the inputs
                that begin at multiples have the same batches, and the same results to the last bit, as all of them.

        Raises:
            ValueError: `sample_rate` is no rate that audio has, or `batch_inputs` is below 1.
        """
        if sample_rate is not None:
            check_sample_rate(sample_rate)
        if batch_inputs is not None and batch_inputs < 1:
            raise ValueError(f"concurrency must be at least 1, got {batch_inputs}")
        most_s = MAX_BATCH_S if batch_s is None else batch_s
        return self._each(inputs, partial(self.read, sample_rate=sample_rate), compute, result, batch_inputs, most_s)

    def _each(
        self,
        inputs: Iterable[AudioInput],
        read: Callable[[AudioInput], Waveform],
        compute: Compute,
        result: type[AnyResult],
        batch_inputs: int | None,
        batch_s: float,
    ) -> Generator[AnyResult, None, None]:
        batch: list[Recording] = []
        waiting_s = 0.0
        # Closing it ends the threads that read, also when the caller leaves the loop.
        with closing(read_ahead(inputs, read, self.sample_rate)) as recordings:
            for recording in recordings:
                # Counted with those that cannot be read: who starts at a multiple of it gets the same batches.
                full = batch_inputs is not None and (recording.index + 1) % batch_inputs == 0
                if recording.error is not None:
                    yield result(index=recording.index, source=recording.source, error=recording.error)
                else:
                    batch.append(recording)
                    waiting_s += recording.audio_s
                del recording  # the batch alone holds it
                if batch and (full or waiting_s > batch_s):
                    yield from _results(batch, compute, result)
                    batch, waiting_s = [], 0.0
        if batch:
            yield from _results(batch, compute, result)


def _results(batch: Sequence[Recording], compute: Compute, result: type[AnyResult]) -> list[AnyResult]:
    started = time.perf_counter()
    values = compute([recording.get() for recording in batch])
    took_s = time.perf_counter() - started
    total_s = sum(recording.audio_s for recording in batch)
    return [
        result(
            index=recording.index,
            source=recording.source,
            value=None if isinstance(value, TritoneError) else value,
            error=value if isinstance(value, TritoneError) else None,
            audio_s=recording.audio_s,
            latency_s=took_s,
            compute_s=took_s * recording.audio_s / total_s if total_s else 0.0,
        )
        for recording, value in zip(batch, values, strict=True)
    ]
