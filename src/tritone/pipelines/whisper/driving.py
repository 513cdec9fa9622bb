"""Answering courses from one thread: they join at any time, and leave when they have their result.

courses  ->  rounds of whoever has the network, while there is work  ->  transcripts
"""

import atexit
import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from tritone.errors import RetryError, TritoneError
from tritone.pipelines.isolation import as_value
from tritone.pipelines.whisper.course import Ask, Course
from tritone.transcript import Transcript

LOGGER = logging.getLogger(__name__)
UNDER_WAY = 2  # recordings for each window that there is room for: the next ones are there when one is free
LOOK_S, LOOKED_AT = 0.05, 4  # between two looks for requests that were given up, and at how many, as asking takes time
END_S = 10.0  # most time that the end of the process waits for a round

Done = Callable[[Transcript | TritoneError], None]


def nothing() -> None:
    """Do nothing."""


@dataclass(eq=False)
class RecordingUnderWay:
    """A recording under way: its course, who waits for it, what it asks, and its window."""

    course: Course
    done: Done
    given_up: Callable[[], bool]
    begun: Callable[[], None] = nothing  # called once, when its first window is in work or never will be
    window: Any = None  # features (frames, bins), on the host or on the device; or samples
    since: float = 0.0  # when its window began to wait, by `time.perf_counter`
    slot: int | None = None
    ask: Any = None  # the last one, where it is kept
    text: Any = None  # what is being written for it, on a device
    is_alone: bool = False  # its texts are written in no company, where that has failed


class Driver(ABC):
    """Answers what courses ask, in rounds of a thread that is there while there is work. Takes calls of any thread."""

    def __init__(self, windows: int) -> None:
        """Take for how many windows there is room at once."""
        self.windows = windows
        self._lock = threading.Lock()
        self._arrived: deque[RecordingUnderWay] = deque()
        self._thread: threading.Thread | None = None
        self._is_over = False
        atexit.register(_end, weakref.ref(self))  # a thread that Python kills within C++ ends the process with an error
        self._forget()

    def _forget(self) -> None:
        """Start again, with nothing under way."""
        self._ready: deque[tuple[RecordingUnderWay, object]] = deque()  # for their next answer
        self._recordings: dict[RecordingUnderWay, None] = {}  # in the order in which they are looked at
        self._looked = self._counted = time.perf_counter()

    @abstractmethod
    def _round(self) -> None:
        """Do everything that can be done now; an error ends all recordings that are under way."""

    @abstractmethod
    def _take(self, recording: RecordingUnderWay, ask: Ask) -> None:
        """Take what a recording asks next."""

    @abstractmethod
    def _leave(self, recording: RecordingUnderWay) -> None:
        """Free what the recording's window has, if it has one."""

    @abstractmethod
    def _drop(self, recording: RecordingUnderWay) -> bool:
        """Forget what a recording waits for; False: not now, as it is in work."""

    def _has_more(self) -> bool:
        """Whether there is work without recordings."""
        return False

    def run(self, courses: Iterable[Course]) -> list[Any]:
        """What each course returns, or the error that it caused; the first begin while the last are made."""
        found: dict[int, Any] = {}
        over = threading.Semaphore(0)

        def done(index: int, result: Transcript | TritoneError) -> None:
            found[index] = result
            over.release()

        count = ended = 0
        for course in courses:
            self.submit(course, partial(done, count))
            count += 1
            if count - ended >= UNDER_WAY * self.windows:  # features of all would take too much memory
                over.acquire()
                ended += 1
        for _ in range(count - ended):
            over.acquire()
        return [found[index] for index in range(count)]

    def submit(
        self,
        course: Course,
        done: Done,
        given_up: Callable[[], bool] = lambda: False,
        begun: Callable[[], None] = nothing,
    ) -> None:
        """Have a course answered.

        Args:
            done: is called with its transcript or error, in the thread that works.
            given_up: whether nobody waits for it any more; asked now and then.
            begun: is called when its first window is in work, or never will be.
        """
        with self._lock:
            self._arrived.append(RecordingUnderWay(course, done, given_up, begun))
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name="whisper", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Leave what is under way, for ever."""
        self._is_over = True
        if (thread := self._thread) is not None:
            thread.join(END_S)

    def _drive(self) -> None:
        """Work until there is none."""
        self._counted = time.perf_counter()
        while True:
            with self._lock:
                arrived = [*self._arrived]
                self._arrived.clear()
                if self._is_over or not (arrived or self._recordings or self._has_more()):
                    self._thread = None
                    return
            self._recordings.update(dict.fromkeys(arrived))
            self._ready += [(each, None) for each in arrived]
            try:
                self._round()
            except Exception as error:  # nobody knows what the network's memory holds
                fault = as_value(error)
                lost = [*self._recordings]
                self._forget()
                for each in lost:
                    self._close(each, fault)

    def _answer(self, recording: RecordingUnderWay, answer: object) -> None:
        """Give a course the answer that it waits for, and take what it asks next."""
        if recording not in self._recordings:
            return  # given up meanwhile
        try:
            self._take(recording, recording.course.send(answer))
        except StopIteration as end:
            self._leave(recording)
            self._close(recording, end.value)
        except Exception as error:
            self._leave(recording)
            self._close(recording, as_value(error))

    @staticmethod
    def _has_begun(recording: RecordingUnderWay) -> None:
        """Tell that a recording's window is in work."""
        begun, recording.begun = recording.begun, nothing
        begun()

    def _close(self, recording: RecordingUnderWay, result: Transcript | TritoneError) -> None:
        self._recordings.pop(recording, None)
        self._has_begun(recording)
        recording.course.close()
        try:
            recording.done(result)
        except Exception:
            LOGGER.exception("an answer could not be sent")

    def _look(self) -> bool:
        """Drop what nobody waits for any more."""
        if (now := time.perf_counter()) - self._looked < LOOK_S:
            return False
        self._looked = now
        some = [*islice(self._recordings, LOOKED_AT)]
        for recording in some:
            del self._recordings[recording]  # to the end of the row
            self._recordings[recording] = None
            if recording.given_up() and self._drop(recording):
                self._leave(recording)
                self._close(
                    recording, RetryError("the request was cancelled, or its deadline passed, before it was done")
                )
        return False


def _end(driver: "weakref.ref[Driver]") -> None:
    if (found := driver()) is not None:
        found.end()
