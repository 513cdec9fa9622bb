"""Playing files into streams of a voice activity detector.

paths, a function that opens a stream  ->  the speech of each file, and every answer on the way
"""

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any, Protocol

import numpy.typing as npt

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.files import AudioBlocks
from tritone.client.playback import paced
from tritone.errors import TritoneError
from tritone.result import ActivityResult
from tritone.systems.streams import Playback


class SpeechStream(Protocol):
    """What `Client.detect_stream` and `Detector.stream` have in common."""

    def accept(self, samples: npt.NDArray[Any]) -> SpeechActivity: ...

    def finish(self) -> SpeechActivity: ...


AnswerListener = Callable[[int, SpeechActivity], None]
"""Gets every answer of a stream: the index of its file, and the segments that ended since the answer before."""


def play_activity(
    paths: Iterable[str],
    open_stream: Callable[[], AbstractContextManager[SpeechStream]],
    *,
    sample_rate: int,
    playback: Playback,
    on_answer: AnswerListener | None = None,
    pcm: bool = False,
) -> Generator[ActivityResult, None, None]:
    """Play each file into a stream of its own, one after the other.

    Args:
        open_stream: gives a context manager whose exit frees the stream.
        sample_rate: what the streams expect, in Hz.
        on_answer: gets every answer.
        pcm: whether the streams take int16 of files that have it.

    Yields:
        A result for each file: all its segments, or the error of a file that cannot be read or whose stream broke.
    """
    for index, path in enumerate(paths):
        found: list[SpeechSegment] = []
        waited_s = audio_s = 0.0
        try:
            with closing(AudioBlocks(path, sample_rate, pcm=pcm)) as blocks, open_stream() as stream:
                audio_s = blocks.duration_s
                chunks = paced(blocks, sample_rate=sample_rate, chunk_ms=playback.chunk_ms, realtime=playback.realtime)
                last: SpeechActivity | None = None
                while last is None or not last.is_final:
                    chunk = next(chunks, None)
                    asked = time.perf_counter()
                    last = stream.finish() if chunk is None else stream.accept(chunk[0])
                    latency_s = time.perf_counter() - asked
                    waited_s += latency_s
                    found += last.segments
                    if on_answer is not None:
                        on_answer(index, last)
        except TritoneError as error:
            yield ActivityResult(index=index, source=path, error=error, audio_s=audio_s, compute_s=waited_s)
        else:
            yield ActivityResult(
                index=index,
                source=path,
                value=replace(last, segments=tuple(found), probabilities=None),
                audio_s=last.audio_s,
                latency_s=latency_s,
                compute_s=waited_s,
            )
