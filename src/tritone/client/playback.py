"""Playing recorded audio into a stream, all at once or paced like a microphone."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tritone.audio.waveform import Samples
from tritone.transcript import Transcript


class TextStream(Protocol):
    """What `Client.stream` and `Recognizer.stream` have in common."""

    def accept(self, samples: npt.NDArray[Any]) -> Transcript: ...

    def finish(self) -> Transcript: ...


class OpenStream(TextStream, Protocol):
    """A stream that somebody has to close."""

    def close(self) -> None: ...


def play(
    stream: TextStream, audio: Iterable[Samples], *, sample_rate: int, chunk_ms: float, realtime: bool = False
) -> Iterator[Transcript]:
    """Send a waveform in chunks; it may be longer than there is memory for.

    Args:
        stream: an open stream; it is finished at the end.
        audio: the waveform in pieces of any length, (samples,) float32 at `sample_rate` (Hz), or int16 where the stream
            takes it; taken as they are needed.
        chunk_ms: audio sent at a time, in milliseconds.
        realtime: send no chunk before a microphone would have recorded it.

    Yields:
        The transcript after every chunk but the last, then the final one, by `is_final`. Segments that the last
        chunk ended come with the final one.
    """
    ended: tuple[Transcript, ...] = ()
    for chunk, is_last in paced(audio, sample_rate=sample_rate, chunk_ms=chunk_ms, realtime=realtime):
        transcript = stream.accept(chunk)
        if not is_last:
            yield transcript
        else:
            ended = transcript.ended
    final = stream.finish()
    yield replace(final, ended=ended + final.ended) if ended else final


def paced(
    audio: Iterable[Samples], *, sample_rate: int, chunk_ms: float, realtime: bool = False
) -> Iterator[tuple[Samples, bool]]:
    """The chunks of a waveform, each when it is to be sent, with whether it is the last; arguments as of `play`."""
    size = round(chunk_ms / 1000 * sample_rate)
    if size < 1:
        raise ValueError(f"chunk_ms must hold at least one sample, got {chunk_ms}")
    started = time.perf_counter()
    sent = 0
    for chunk, is_last in _chunks(audio, size):
        sent += len(chunk)
        if realtime:
            recorded = started + sent / sample_rate
            time.sleep(max(0.0, recorded - time.perf_counter()))
        yield chunk, is_last


def _chunks(audio: Iterable[Samples], size: int) -> Iterator[tuple[Samples, bool]]:
    """Audio recut into chunks of `size` samples, the last one shorter; with each whether it is the last."""
    pending: Samples = np.zeros(0, np.float32)
    for piece in audio:
        pending = np.concatenate([pending, piece]) if len(pending) else piece
        cut = 0
        while len(pending) - cut > size:
            yield pending[cut : cut + size], False
            cut += size
        pending = pending[cut:]
    if len(pending):
        yield pending, True
