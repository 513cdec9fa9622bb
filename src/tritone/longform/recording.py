"""A file, or what else has audio, as pieces that a model takes at once: decoded as it is cut.

pieces("three-hours.flac", 16000)  ->  Piece, Piece, ...
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy.typing as npt

from tritone.audio.block import BLOCK
from tritone.audio.files import AudioBlocks, Source, StoredAudio
from tritone.audio.inputs import StreamResampler, mono
from tritone.audio.waveform import Samples, check_level
from tritone.longform.cutting import ActivityStream, Cutter, Cutting, Piece

OpenActivity = Callable[[], ActivityStream]
"""Opens a stream of voice activity for a recording."""


class Pieces:
    """The pieces of one recording, an iterator to be closed. `audio_s`: of the recording, as far as it was read."""

    def __init__(
        self,
        blocks: Iterable[Samples],
        sample_rate: int,
        *,
        cutting: Cutting | None = None,
        activity: OpenActivity | None = None,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin with blocks of samples at `sample_rate` Hz; `close` frees what they come from."""
        self._activity = None if activity is None else activity()
        self._cutter = Cutter(sample_rate, cutting, self._activity)
        self._close = close
        self._pieces = self._cut(blocks)

    @property
    def audio_s(self) -> float:
        return self._cutter.audio_s

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def __next__(self) -> Piece:
        return next(self._pieces)

    def _cut(self, blocks: Iterable[Samples]) -> Iterator[Piece]:
        for block in blocks:
            yield from self._cutter.push(block)
        yield from self._cutter.finish()

    def close(self) -> None:
        """Close the source and the stream of voice activity; closing twice is fine."""
        try:
            if self._activity is not None:
                self._activity.close()
        finally:
            self._close()

    def __enter__(self) -> "Pieces":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pieces(
    source: Source | StoredAudio | AudioBlocks | npt.NDArray[Any],
    sample_rate: int,
    *,
    rate: int | None = None,
    cutting: Cutting | None = None,
    activity: OpenActivity | None = None,
    pcm: bool = False,
) -> Pieces:
    """Cut a recording of any length.

    Args:
        source: a path, the bytes of a file, an open file (a pipe, too), or an array as of `audio.inputs.load`.
        sample_rate: of the pieces, in Hz.
        rate: of an array, in Hz; None means `sample_rate`.
        cutting: how; see `Cutting.within` for a model that takes less at once.
        activity: opens a stream of voice activity at `sample_rate`; None cuts without.
        pcm: whether files of 16 bits at that rate give int16.

    Raises:
        AudioError: the audio cannot be read. What is wrong in its middle is raised after the pieces before it.
    """
    if isinstance(source, str | bytes | AudioBlocks) or hasattr(source, "__fspath__") or hasattr(source, "read"):
        blocks = source if isinstance(source, AudioBlocks) else AudioBlocks(source, sample_rate, pcm=pcm)
        try:
            return Pieces(blocks, sample_rate, cutting=cutting, activity=activity, close=blocks.close)
        except BaseException:
            blocks.close()
            raise
    return Pieces(_array_blocks(source, sample_rate, rate), sample_rate, cutting=cutting, activity=activity)


def _array_blocks(array: Any, sample_rate: int, rate: int | None) -> Iterator[Samples]:
    samples, own = mono(array, whole=True), sample_rate if rate is None else rate
    resampler = StreamResampler(own, sample_rate)
    for start in range(0, len(samples), BLOCK):
        block = samples[start : start + BLOCK]
        check_level(block, sample_rate=own)
        yield resampler.push(block)
    yield resampler.flush()
