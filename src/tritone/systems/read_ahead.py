"""Decoding audio files ahead of whoever needs them, in threads of its own.

    paths  ->  Decoded(index, path, waveform | error), in any order

libsndfile decodes without Python's lock, so a model that computes meanwhile loses next to nothing.
"""

import threading
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from tritone.audio.files import read_audio
from tritone.audio.waveform import Waveform
from tritone.errors import OperatorError, TritoneError
from tritone.runtime.device import usable_cpus

MAX_DECODERS = 8  # threads; one decodes several hundred times as fast as audio plays
ROOM_S = 600.0  # audio that waits to be taken, in seconds: 38 MB at 16 kHz
ROOM_FILES = 4096  # and files, which may be short


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A file that was read, or the error that took its place; `index` is its place among the paths."""

    index: int
    path: str
    waveform: Waveform | None = None
    error: TritoneError | None = None


def read_ahead(
    paths: Iterable[str], sample_rate: int, *, max_audio_s: float | None = None, room_s: float = ROOM_S
) -> Generator[Decoded, None, None]:
    """Read files as mono at a sample rate, each as soon as it is decoded.

    Args:
        paths: of any length; taken when there is room.
        sample_rate: in Hz.
        max_audio_s: longer files are an error, in seconds; None takes any.
        room_s: how much decoded audio may wait, in seconds; one file for each thread may be on top.

    Raises:
        Exception: whatever `paths` raises.
    """
    decoders = min(usable_cpus(), MAX_DECODERS)
    shelf = _Shelf(paths, sample_rate, max_audio_s, room_s, decoders)
    threads = [threading.Thread(target=shelf.fill, name=f"decoder-{n}", daemon=True) for n in range(decoders)]
    for thread in threads:
        thread.start()
    try:
        yield from shelf.take()
    finally:
        shelf.close()


class _Shelf:
    def __init__(
        self, paths: Iterable[str], sample_rate: int, max_audio_s: float | None, room_s: float, decoders: int
    ) -> None:
        self._paths = enumerate(paths)
        self._sample_rate = sample_rate
        self._max_audio_s = max_audio_s
        self._room = room_s * sample_rate
        self._taking = threading.Lock()  # only one thread at a time asks `paths`, which may be a generator
        self._change = threading.Condition()
        self._ready: deque[Decoded] = deque()
        self._waiting = 0  # samples in `_ready`
        self._busy = decoders  # threads that may still add something
        self._failure: BaseException | None = None
        self._closed = False

    def fill(self) -> None:
        """Decode until there is nothing left; the work of one thread."""
        try:
            while (job := self._next()) is not None:
                decoded = self._read(*job)
                with self._change:
                    self._ready.append(decoded)
                    self._waiting += _size(decoded)
                    self._change.notify_all()
        except BaseException as error:  # `paths` broke; whoever takes shall see it
            with self._change:
                self._failure = error
        finally:
            with self._change:
                self._busy -= 1
                self._change.notify_all()

    def take(self) -> Generator[Decoded, None, None]:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._ready or not self._busy)
                if not self._ready:
                    if self._failure is not None:
                        raise self._failure
                    return
                decoded = self._ready.popleft()
                self._waiting -= _size(decoded)
                self._change.notify_all()
            yield decoded

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._ready.clear()
            self._change.notify_all()

    def _next(self) -> tuple[int, str] | None:
        with self._taking:
            with self._change:
                self._change.wait_for(
                    lambda: self._closed or (self._waiting < self._room and len(self._ready) < ROOM_FILES)
                )
                if self._closed or self._failure is not None:
                    return None
            return next(self._paths, None)

    def _read(self, index: int, path: str) -> Decoded:
        try:
            waveform = read_audio(path, self._sample_rate, max_audio_s=self._max_audio_s)
        except TritoneError as error:
            return Decoded(index=index, path=path, error=error)
        except Exception as error:  # one file of many must not end the others
            failure = OperatorError(f"{path}: cannot be read ({type(error).__name__}: {error})")
            failure.__cause__ = error
            return Decoded(index=index, path=path, error=failure)
        return Decoded(index=index, path=path, waveform=waveform)


def _size(decoded: Decoded) -> int:
    return 0 if decoded.waveform is None else len(decoded.waveform)
