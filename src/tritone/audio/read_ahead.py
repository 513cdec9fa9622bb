"""Audio decoded ahead of the model that needs it, in threads of its own.

    files and arrays  ->  Result(index, source, waveform | blocks | error), ... in their order

libsndfile decodes without Python's lock, so a model that computes meanwhile loses next to nothing.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Sized
from typing import Any

import numpy.typing as npt

from tritone.audio.files import AudioBlocks
from tritone.audio.inputs import AudioInput, source_of
from tritone.container import usable_cpus
from tritone.errors import OperatorError, TritoneError
from tritone.result import Result

MAX_READERS = 8  # threads; one decodes several hundred times as fast as audio plays
ROOM_S = 600.0  # audio that waits to be taken, in seconds: 38 MB at 16 kHz
ROOM_INPUTS = 4096  # and inputs, which may be short

Recording = Result[npt.NDArray[Any]]


def read_ahead(
    inputs: Iterable[AudioInput], read: Callable[[AudioInput], "npt.NDArray[Any] | AudioBlocks"], sample_rate: int
) -> Generator[Recording, None, None]:
    """Read inputs before they are asked for; the results come in the order of the inputs.

    Args:
        inputs: of any number; taken when there is room for `ROOM_S` seconds of audio.
        read: returns the samples of an input at `sample_rate` (Hz), or opens it; what it raises is the error of that
            input. Called from several threads. What was opened and is not taken is closed.

    Raises:
        Exception: whatever `inputs` raises.
    """
    readers = min(usable_cpus(), MAX_READERS)
    if isinstance(inputs, Sized) and len(inputs) < 2:  # nothing to read while the first one is waited for
        yield from (_read(read, index, item, sample_rate) for index, item in enumerate(inputs))
        return
    ahead = _Ahead(inputs, read, sample_rate, readers)
    for number in range(readers):
        threading.Thread(target=ahead.fill, name=f"reader-{number}", daemon=True).start()
    try:
        yield from ahead.take()
    finally:
        ahead.close()


class _Ahead:
    """What has been read and not been taken, and the work of the threads that read."""

    def __init__(
        self,
        inputs: Iterable[AudioInput],
        read: Callable[[AudioInput], "npt.NDArray[Any] | AudioBlocks"],
        sample_rate: int,
        readers: int,
    ) -> None:
        self._inputs = enumerate(inputs)
        self._read = read
        self._sample_rate = sample_rate
        self._taking = threading.Lock()  # only one thread at a time asks `inputs`, which may be a generator
        self._change = threading.Condition()
        self._ready: dict[int, Recording] = {}
        self._waiting_s = 0.0  # audio in `_ready`
        self._readers = readers  # threads that may still add something
        self._failure: BaseException | None = None
        self._closed = False

    def fill(self) -> None:
        """Read until there is nothing left; the work of one thread."""
        try:
            while (job := self._next()) is not None:
                recording = _read(self._read, *job, self._sample_rate)
                with self._change:
                    if self._closed:
                        _discard(recording)
                        return
                    self._ready[recording.index] = recording
                    self._waiting_s += recording.audio_s
                    self._change.notify_all()
        except BaseException as error:  # `inputs` broke, which the caller must see
            with self._change:
                self._failure = error
        finally:
            with self._change:
                self._readers -= 1
                self._change.notify_all()

    def take(self) -> Generator[Recording, None, None]:
        index = 0
        while True:
            with self._change:
                # What was taken from `inputs` is read without waiting for room, so the next one always comes.
                while index not in self._ready and self._readers:
                    self._change.wait()
                if index not in self._ready:
                    if self._failure is not None:
                        raise self._failure
                    return
                recording = self._ready.pop(index)
                self._waiting_s -= recording.audio_s
                self._change.notify_all()
            yield recording
            del recording  # while the next one is waited for, the caller alone holds it
            index += 1

    def close(self) -> None:
        with self._change:
            self._closed = True
            for recording in self._ready.values():
                _discard(recording)
            self._ready.clear()
            self._change.notify_all()

    def _next(self) -> tuple[int, AudioInput] | None:
        with self._taking:
            with self._change:
                self._change.wait_for(
                    lambda: self._closed or (self._waiting_s < ROOM_S and len(self._ready) < ROOM_INPUTS)
                )
                if self._closed or self._failure is not None:
                    return None
            return next(self._inputs, None)


def _discard(recording: Recording) -> None:
    if isinstance(recording.value, AudioBlocks):
        recording.value.close()


def _read(
    read: "Callable[[AudioInput], npt.NDArray[Any] | AudioBlocks]", index: int, item: AudioInput, sample_rate: int
) -> Recording:
    source = source_of(item, index)
    try:
        found: Any = read(item)
    except TritoneError as error:
        return Recording(index=index, source=source, error=error)
    except Exception as error:  # one input of many must not end the others
        failure = OperatorError(f"{source}: cannot be read ({type(error).__name__}: {error})")
        failure.__cause__ = error
        return Recording(index=index, source=source, error=failure)
    audio_s = found.duration_s or ROOM_S if isinstance(found, AudioBlocks) else len(found) / sample_rate
    return Recording(index=index, source=source, value=found, audio_s=audio_s)
