"""Playing recorded audio into a stream, all at once or paced like a microphone."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from tritone.audio.waveform import Waveform
from tritone.transcript import Transcript


class TextStream(Protocol):
    """What `Client.stream` and `Recognizer.stream` have in common."""

    def accept(self, samples: Waveform) -> Transcript: ...

    def finish(self) -> Transcript: ...


def play(
    stream: TextStream, waveform: Waveform, *, sample_rate: int, chunk_ms: float, realtime: bool = False
) -> Iterator[Transcript]:
    """Send a waveform in chunks.

    Args:
        stream: an open stream; it is finished at the end.
        waveform: (samples,) float32 at `sample_rate` (Hz).
        chunk_ms: audio sent at a time, in milliseconds.
        realtime: send no chunk before a microphone would have recorded it.

    Yields:
        The transcript after every chunk but the last, then the final one: `is_final` tells. Segments that the last
        chunk ended are told with the final one.
    """
    size = round(chunk_ms / 1000 * sample_rate)
    if size < 1:
        raise ValueError(f"chunk_ms must hold at least one sample, got {chunk_ms}")
    started = time.perf_counter()
    ended: tuple[Transcript, ...] = ()
    for start in range(0, len(waveform), size):
        chunk = waveform[start : start + size]
        if realtime:
            recorded = started + (start + len(chunk)) / sample_rate
            time.sleep(max(0.0, recorded - time.perf_counter()))
        transcript = stream.accept(chunk)
        if start + size < len(waveform):
            yield transcript
        else:
            ended = transcript.ended
    final = stream.finish()
    yield replace(final, ended=ended + final.ended) if ended else final
