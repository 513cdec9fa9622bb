"""Audio files and arrays for a model in this process: read ahead of it, computed in batches, a result for each.

["a.wav", array, ...]  ->  batches of waveforms  ->  Result, Result, ...
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from tritone.audio.files import AudioBlocks, check_sample_rate, read_or_blocks
from tritone.audio.inputs import AudioInput, is_file, load
from tritone.audio.read_ahead import Recording, read_ahead
from tritone.audio.waveform import Waveform, widened
from tritone.errors import TritoneError
from tritone.longform import LEAST_PIECE_S
from tritone.longform.longform import LongForm, PieceRecording
from tritone.result import AnyResult

PIECES_S = 300.0  # audio of pieces of long recordings given to the model at once
MAX_BATCH_S = 1800.0  # audio given to the model at once, seconds; bounds memory when there are thousands of files

Read = Callable[[AudioInput], Waveform | AudioBlocks]
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
        long_form: LongForm | None = None,
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
            long_form: cuts longer recordings than the model takes, and is to `join` the results; None refuses them.

        Raises:
            ValueError: `sample_rate` is no rate that audio has, or `batch_inputs` is below 1.
        """
        if sample_rate is not None:
            check_sample_rate(sample_rate)
        if batch_inputs is not None and batch_inputs < 1:
            raise ValueError(f"concurrency must be at least 1, got {batch_inputs}")
        most_s = MAX_BATCH_S if batch_s is None else batch_s
        if long_form is None:
            opened: Read = partial(self.read, sample_rate=sample_rate)
        else:
            opened = partial(self._open, sample_rate=sample_rate)
        return self._each(inputs, opened, compute, result, batch_inputs, most_s, long_form)

    def _open(self, source: AudioInput, sample_rate: int | None) -> Waveform | AudioBlocks:
        if self.max_audio_s < LEAST_PIECE_S:
            return self.read(source, sample_rate)
        if is_file(source):
            found = read_or_blocks(source, self.sample_rate, self.max_audio_s, pcm=False)
            return found if isinstance(found, AudioBlocks) else widened(found)
        return load(source, sample_rate, self.sample_rate, check=True)

    def _each(
        self,
        inputs: Iterable[AudioInput],
        read: Read,
        compute: Compute,
        result: type[AnyResult],
        batch_inputs: int | None,
        batch_s: float,
        long_form: LongForm | None,
    ) -> Generator[AnyResult, None, None]:
        batch: list[Recording] = []
        waiting_s, most_s, round_ = 0.0, batch_s, 0
        # Closing it ends the threads that read, also when the caller leaves the loop.
        with closing(read_ahead(inputs, read, self.sample_rate)) as whole, ExitStack() as stack:
            recordings = whole if long_form is None else stack.enter_context(closing(long_form.cut(whole)))
            for recording in recordings:
                is_piece = isinstance(recording, PieceRecording)
                index = recording.of if isinstance(recording, PieceRecording) else recording.index
                before, round_ = round_, index // batch_inputs if batch_inputs is not None else 0
                if batch and round_ != before:  # pieces, of which nobody knew which would be the last
                    yield from _results(batch, compute, result)
                    batch, waiting_s, most_s = [], 0.0, batch_s
                # Counted with those that cannot be read: who starts at a multiple of it gets the same batches.
                full = batch_inputs is not None and not is_piece and (index + 1) % batch_inputs == 0
                if recording.error is not None:
                    yield result(index=recording.index, source=recording.source, error=recording.error)
                else:
                    batch.append(recording)
                    waiting_s += recording.audio_s
                if is_piece:
                    most_s = min(batch_s, PIECES_S)
                    full = batch_inputs is not None and len(batch) >= batch_inputs
                del recording  # the batch alone holds it
                if batch and (full or waiting_s > most_s):
                    yield from _results(batch, compute, result)
                    batch, waiting_s, most_s = [], 0.0, batch_s
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
