"""Playing many files into streams, several at once, and noting when every answer came.

paths, a function that opens a stream  ->  results with all partials
"""

import math
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy.typing as npt

from tritone.audio.files import AudioBlocks, Selection
from tritone.client.defaults import DEFAULT_CHUNK_MS
from tritone.client.playback import OpenStream, TextStream, play
from tritone.errors import InputError, OperatorError, TritoneError
from tritone.result import Partial, TranscriptResult
from tritone.transcript import Segment, Transcript, main_language, mean_confidence

LEAVE_S = 6.0  # for streams that are given up to take leave of their server; a little more than the client gives it

Opener = Callable[[], AbstractContextManager[OpenStream]]
Results = Generator[TranscriptResult, None, None]

PartialListener = Callable[[int, Transcript], None]
"""Gets every answer of a stream: the index of its file, the text so far. May be called from several threads."""


@dataclass(frozen=True, kw_only=True)
class Playback:
    """How files are played into streams: `chunk_ms` of audio at a time, as fast as answers come or as it was spoken.

    `around`: what is opened in place of each stream, of what opens it and its sample rate in Hz, such as one that gives
    its words their speakers.
    """

    chunk_ms: float = DEFAULT_CHUNK_MS
    realtime: bool = False
    around: "Callable[[Opener, int], AbstractContextManager[OpenStream]] | None" = None

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_ms < math.inf:
            raise ValueError(f"chunk_ms must be at least 1, got {self.chunk_ms:g}")

    def describe(self) -> dict[str, str]:
        return {"chunk_ms": f"{self.chunk_ms:g}", "realtime": str(self.realtime).lower()}


class _GivenUpError(Exception):
    """The caller has left the loop, so that this stream is not needed any more."""


def play_files(
    paths: Iterable[str | Selection],
    open_stream: Opener,
    *,
    sample_rate: int,
    playback: Playback,
    concurrency: int,
    on_partial: PartialListener | None = None,
    pcm: bool = False,
) -> Results:
    """Play each file into a stream of its own, `concurrency` of them at a time.

    Args:
        open_stream: gives a context manager whose exit frees the stream; called from several threads.
        sample_rate: what the streams expect, in Hz.
        on_partial: gets every answer.
        pcm: whether the streams take int16 of files that have it.

    Yields:
        A result for each file, as soon as it is there; of a stream with endpoints its transcript is of all segments,
        see `whole`. A file that cannot be read, or whose stream broke, has its error there. Leaving the loop gives up
        the streams that are still being played.
    """
    given_up = threading.Event()
    if playback.around is not None:
        open_stream = partial(playback.around, open_stream, sample_rate)

    def work(index: int, path: str | Selection) -> TranscriptResult:
        blocks = partial(AudioBlocks, path, sample_rate, pcm=pcm)
        return _play_file(index, os.fspath(path), blocks, open_stream, sample_rate, playback, on_partial, given_up)

    numbered = enumerate(paths)
    if concurrency == 1:
        # No other thread: an interrupt then reaches the stream itself.
        yield from (work(index, path) for index, path in numbered)
    else:
        yield from _side_by_side(numbered, work, concurrency, given_up)


def _side_by_side(
    numbered: Iterator[tuple[int, str | Selection]],
    work: Callable[[int, str | Selection], TranscriptResult],
    concurrency: int,
    given_up: threading.Event,
) -> Results:
    jobs: SimpleQueue[tuple[int, str | Selection] | None] = SimpleQueue()
    done: SimpleQueue[TranscriptResult | BaseException] = SimpleQueue()

    def player() -> None:
        while (job := jobs.get()) is not None:
            try:
                done.put(work(*job))
            except BaseException as error:  # raised again in the caller's thread
                done.put(error)

    def take() -> TranscriptResult:
        finished = done.get()
        if isinstance(finished, BaseException):
            raise finished
        return finished

    # Daemons: one that waits for a silent server must not keep a process alive that was asked to end.
    threads: list[threading.Thread] = []
    playing = 0
    try:
        for job in numbered:
            jobs.put(job)
            playing += 1
            if playing > len(threads):
                threads.append(threading.Thread(target=player, name=f"stream-{len(threads)}", daemon=True))
                threads[-1].start()
            if playing == concurrency:
                yield take()
                playing -= 1
        while playing:
            yield take()
            playing -= 1
    finally:
        given_up.set()
        for _ in threads:
            jobs.put(None)
        deadline = time.monotonic() + LEAVE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _play_file(
    index: int,
    path: str,
    read: Callable[[], AudioBlocks],
    open_stream: Opener,
    sample_rate: int,
    playback: Playback,
    on_partial: PartialListener | None,
    given_up: threading.Event,
) -> TranscriptResult:
    partials: list[Partial] = []
    audio_s = compute_s = 0.0
    last: Transcript | None = None
    ended: list[Transcript] = []
    try:
        # A file that cannot be read opens no stream.
        with closing(read()) as blocks:
            audio_s = blocks.duration_s
            with open_stream() as opened:
                stream = _Clocked(opened, sample_rate, playback.realtime, given_up)
                try:
                    for last in play(
                        stream, blocks, sample_rate=sample_rate, chunk_ms=playback.chunk_ms, realtime=playback.realtime
                    ):
                        partials.append(stream.partial(last))
                        ended += last.ended
                        if on_partial is not None:
                            on_partial(index, last)
                finally:
                    compute_s = stream.waited_s
            audio_s = stream.spoken_s
        if last is None or not last.is_final:
            raise InputError(f"{path}: the stream gave no final result")
    except TritoneError as error:
        failure = error
    except _GivenUpError:
        raise
    except Exception as error:  # runtimes raise what they like, and one bad file must not end the others
        failure = OperatorError(f"{path}: recognition failed ({type(error).__name__}: {error})")
        failure.__cause__ = error
    else:
        return TranscriptResult(
            index=index,
            source=path,
            value=whole(last, ended),
            audio_s=audio_s,
            latency_s=partials[-1].latency_s,
            compute_s=compute_s,
            partials=tuple(partials),
        )
    return TranscriptResult(
        index=index, source=path, error=failure, audio_s=audio_s, compute_s=compute_s, partials=tuple(partials)
    )


def whole(last: Transcript, ended: Sequence[Transcript]) -> Transcript:
    """The transcript of a stream that is over, from its last segment and those that ended before.

    Text, tokens and words are of all segments; these are kept as `ended`, the last one too. A stream of one segment
    stays as it is.
    """
    if not ended:
        return last
    segments = (*ended, replace(last, ended=(), history=""))
    words = tuple(word for segment in segments for word in segment.words)
    return Transcript(
        text=last.whole_text,
        tokens=tuple(token for segment in segments for token in segment.tokens),
        words=words,
        confidence=mean_confidence(words) if words else last.confidence,
        audio_s=last.audio_s,
        segment=last.segment,
        ended=segments,
        language=main_language(
            Segment("", start_s, each.audio_s, language=each.language)
            for start_s, each in zip((0.0, *(each.audio_s for each in ended)), segments, strict=True)
        ),
    )


class _Clocked:
    """A stream that knows when its audio was spoken and when it answered; see `Partial` for the two clocks."""

    def __init__(self, stream: TextStream, sample_rate: int, realtime: bool, given_up: threading.Event) -> None:
        self._stream = stream
        self._sample_rate = sample_rate
        self._realtime = realtime
        self._given_up = given_up
        self._started = time.perf_counter()
        self._num_samples = 0
        self._answered_s = 0.0
        self._text = ""
        self.waited_s = 0.0

    def accept(self, samples: npt.NDArray[Any]) -> Transcript:
        self._num_samples += len(samples)
        return self._ask(lambda: self._stream.accept(samples))

    def finish(self) -> Transcript:
        return self._ask(self._stream.finish)

    def partial(self, transcript: Transcript) -> Partial:
        if (
            text := transcript.whole_text
        ) != self._text:  # else the same again: hours of text have thousands of answers
            self._text = text
        return Partial(
            text=self._text,
            spoken_s=self.spoken_s,
            answered_s=self._answered_s,
            is_final=transcript.is_final,
        )

    @property
    def spoken_s(self) -> float:
        return self._num_samples / self._sample_rate

    def _ask(self, question: Callable[[], Transcript]) -> Transcript:
        if self._given_up.is_set():
            raise _GivenUpError
        asked = time.perf_counter()
        try:
            return question()
        finally:
            answered = time.perf_counter()
            took_s = answered - asked
            self.waited_s += took_s
            if self._realtime:
                self._answered_s = answered - self._started
            else:
                self._answered_s = max(self._answered_s, self.spoken_s) + took_s
