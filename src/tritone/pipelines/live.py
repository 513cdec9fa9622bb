"""One stream in this process: live audio going in, answers coming out.

with open_stream(pipeline, dropped) as stream: stream.accept(samples); stream.finish()
"""

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import soxr

from tritone.audio.files import check_sample_rate
from tritone.audio.waveform import check_waveform
from tritone.errors import StreamError
from tritone.pipelines.streams import Step, Streams

Answer = TypeVar("Answer")


def open_stream(
    pipeline: Streams[Answer], dropped: deque[int], sample_rate: int | None = None, options: Any = None
) -> "Stream[Answer]":
    """Start a stream, after closing those that were dropped before their end.

    Args:
        dropped: their slots; the new stream's slot is added should it be dropped, too.
        sample_rate: of its audio, in Hz; None means the model's.
        options: as of `StreamPipeline.open`, errors too.
    """
    with suppress(IndexError):  # other threads may be emptying it as well
        while True:
            pipeline.close(dropped.popleft())
    rate = pipeline.sample_rate if sample_rate is None else sample_rate
    return Stream(pipeline, rate, dropped.append, options)


class Stream(Generic[Answer]):
    """Live audio going in, transcripts or speech segments coming out.

    Ends with `finish`, or with `close` if the rest does not matter.
    """

    def __init__(
        self,
        pipeline: Streams[Answer],
        sample_rate: int,
        on_drop: Callable[[int], object],
        options: Any = None,
    ) -> None:
        """Open a stream; raises `ServerBusyError` if the pipeline has no free slot.

        `on_drop` gets the slot when the stream is garbage-collected before its end. That happens in any thread at
        any moment, also in one that the holder of the pipeline's lock waits for, so it must not wait for anything.
        """
        self.sample_rate = check_sample_rate(sample_rate)
        self._pipeline = pipeline
        self._resampler: soxr.ResampleStream | None = None
        if sample_rate != pipeline.sample_rate:
            self._resampler = soxr.ResampleStream(sample_rate, pipeline.sample_rate, 1, dtype="float32")
        self._slot = pipeline.open(options)
        # A stream that is dropped without a word must not keep its slot for ever.
        self._drop = weakref.finalize(self, on_drop, self._slot)
        self._drop.atexit = False

    def __enter__(self) -> "Stream[Answer]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def accept(self, samples: npt.ArrayLike) -> Answer:
        """Take the next samples, (samples,) of a floating type in [-1, 1], any number of them.

        Returns:
            Of a recogniser the transcript of all audio so far, or with endpoints of the segment under way; its end may
            still change. Of a detector the speech segments that have ended.

        Raises:
            AudioError: the samples cannot be used; the stream goes on without them.
            StreamError: the stream has ended.
        """
        return self._advance(samples, final=False)

    def finish(self) -> Answer:
        """End the stream and return its last answer; raises `StreamError` if it has ended before."""
        return self._advance(np.zeros(0, dtype=np.float32), final=True)

    def close(self) -> None:
        """Give the stream up; does nothing if it has ended."""
        if self._drop.detach():
            self._pipeline.close(self._slot)

    def _advance(self, samples: npt.ArrayLike, final: bool) -> Answer:
        if not self._drop.alive:
            raise StreamError("this stream has ended; start another one")
        checked = check_waveform(samples, sample_rate=self.sample_rate, allow_empty=True)
        if self._resampler is not None:
            checked = self._resampler.resample_chunk(checked, last=final)
        try:
            (answer,) = self._pipeline.advance([Step(self._slot, checked, final)])
        except Exception:
            if final:  # the resampler has given its last samples, so the end cannot be tried again
                self.close()
            raise
        if final:
            self._drop.detach()
        return answer
