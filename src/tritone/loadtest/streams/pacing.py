"""Streams played by the clock, as microphones would: a chunk is sent when its last sample has been spoken.

    Script (recordings as chunks), starts  ->  Player.play  ->  Log: a row for every chunk, errors, texts

A stream has one chunk in flight. If the answer before is late, the next chunk waits for it, but its latency counts from
the time when it was due all the same: a server cannot hide behind its own slowness. What is late for another reason is
the generator's fault and is recorded apart. A stream that ended or failed is followed by a new one in its place.
"""

import heapq
import secrets
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tritone.loadtest.options import LoadOptions
from tritone.loadtest.requests.windows import MAX_KINDS, OTHER
from tritone.loadtest.senders.sender import Sender
from tritone.loadtest.senders.wire import Body, Reply
from tritone.loadtest.workload.script import Script

LOOK_S = 0.1  # how often the plan is asked when to end
GRACE_S = 1.0  # that a sender has beyond a request's time limit before its answer counts as lost
GOODBYE_S = 5.0  # for the ENDs that free the server's slots when a run is over
GOODBYE = -1  # the "chunk" that frees a stream's slot
NEVER = float("inf")


class Column(IntEnum):
    """The columns of the log, which has a row for every chunk. Times are of the player's clock, in seconds."""

    BEGIN = 0  # when its stream began to be spoken
    DUE = 1  # when its last sample had been spoken
    READY = 2  # when it could be sent: it was due, and the chunk before had been answered
    SENT = 3  # when the sender began to write it
    RECEIVED = 4  # when its answer was there, or when it was given up
    AUDIO_S = 5
    KIND = 6  # some of `Kind`
    ERROR = 7  # index in `Log.messages`, -1 if there is none


class Kind(IntEnum):
    """Bits of `Column.KIND`."""

    FINAL = 1  # the last chunk of its stream
    FIRST_TEXT = 2  # the first answer of its stream with a text
    TEXTLESS = 4  # a final answer, and no text in it or before
    OPEN = 8  # not answered when the run ended; RECEIVED is that time
    UNSENT = 16  # due while its stream waited for an answer that became ERROR; RECEIVED is that time


@dataclass
class Log:
    """Everything that was seen of the streams."""

    values: "array[float]" = field(default_factory=lambda: array("d"))
    messages: list[str] = field(default_factory=list)
    texts: Counter[tuple[int, str]] = field(default_factory=Counter)  # final ones: (recording, text) -> streams
    notes: list[str] = field(default_factory=list)

    def add(self, row: tuple[float, ...]) -> None:
        self.values.extend(row)

    def error(self, message: str) -> int:
        """The index of an error message. Beyond `MAX_KINDS` different ones they count as one."""
        if message not in self.messages and len(self.messages) >= MAX_KINDS:
            message = OTHER
        if message not in self.messages:
            self.messages.append(message)
        return self.messages.index(message)

    def rows(self) -> npt.NDArray[np.float64]:
        """All rows so far, (chunks, columns)."""
        return np.array(self.values, dtype=np.float64).reshape(-1, len(Column))

    def take_rows(self) -> npt.NDArray[np.float64]:
        """All rows so far, which the log then forgets."""
        rows = self.rows()
        del self.values[:]
        return rows


class _Stream:
    """One microphone. `chunk` is the one that is in flight or waits to be spoken."""

    __slots__ = ("begin", "body", "chunk", "due", "has_text", "id", "ready", "recording", "sent", "started")

    def __init__(self, id: int, recording: int, begin: float) -> None:
        self.id, self.recording, self.begin = id, recording, begin
        self.chunk = 0
        self.due = self.ready = self.sent = begin
        self.body: Body
        self.started = self.has_text = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, with the stream and the chunk that it belongs to (or `GOODBYE`)."""

    stream: _Stream
    chunk: int
    reply: Reply


Inbox = SimpleQueue[Answer]


class Clock(Protocol):
    """The time, and waiting for it."""

    def now(self) -> float: ...

    def wait(self, inbox: Inbox, until: float) -> Answer | None:
        """Wait for an answer, at most until a time; None if there is none by then."""
        ...


class WallClock:
    """`time.perf_counter`, which counts from the same moment in all processes of a machine."""

    def now(self) -> float:
        return time.perf_counter()

    def wait(self, inbox: Inbox, until: float) -> Answer | None:
        try:
            return inbox.get(timeout=max(0.0, until - time.perf_counter()))
        except Empty:
            return None


class Player:
    """Plays streams from one thread. `play` is called once.

    Args:
        script: what is spoken.
        sender: it is not closed here.
        options: the length of chunks and the time limits. `timeout_s` is also how long the server may answer nothing
            at all before the run ends.
        clock: the time.
        rng: spreads the streams that follow failed ones, so that they do not tick together.
    """

    def __init__(
        self,
        script: Script,
        sender: Sender,
        options: LoadOptions,
        *,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.log = Log()
        self.gave_up: float | None = None  # when the server was found to have stalled
        self._script = script
        self._sender = sender
        self._options = options
        self._clock = clock or WallClock()
        self._rng = rng or np.random.default_rng()
        self._inbox: Inbox = SimpleQueue()
        # Ids live in one space per server: random ones keep generators apart. 0 means "no sequence".
        self._next_id = secrets.randbelow(2**62) + 1
        self._waiting: list[tuple[float, int, _Stream]] = []  # a heap by the time when they can be sent
        self._flying: dict[int, _Stream] = {}  # by id: those that wait for an answer
        self._deadlines: deque[tuple[float, _Stream, int]] = deque()  # in the order of sending
        self._resting: list[_Stream] = []  # their next chunk is due after the end
        self._score_from = -NEVER
        self._last_good = -NEVER
        self._failing_since = NEVER
        self._is_stalled = False
        self._goodbyes = 0  # that wait for an answer

    def play(self, starts: Sequence[float], plan: Callable[[float], float], *, score_from: float = -NEVER) -> None:
        """Keep a stream open for each of `starts` until the plan's end, and end them all.

        Args:
            starts: when the first streams begin, by the clock.
            plan: returns when to end, about ten times a second, given the time; infinity while that is not known.
                Chunks that are due before the end are played and waited for.
            score_from: texts count if their recording ended at this time or later.
        """
        self._score_from = score_from
        for start in starts:
            self._start(start)
        try:
            self._give_up(self._run(plan))
        finally:
            self._end_open()

    def _run(self, plan: Callable[[float], float]) -> float:
        end, look = NEVER, -NEVER
        while True:
            now = self._clock.now()
            if now >= look:
                end, look = min(end, plan(now)), now + LOOK_S
            self._send_due(now, end)
            self._give_up_lost(now)
            if self._is_stalled:
                limit = f"{self._options.timeout_s:g} s"
                self.log.notes.append(f"the server gave no good answer for {limit}, so the run ended early")
                self.gave_up = now
                return min(end, now)
            if now >= end and (not self._flying or now >= end + self._options.drain_s):
                return end
            soonest = self._waiting[0][0] if self._waiting else NEVER
            answer = self._clock.wait(self._inbox, min(soonest, look))
            if answer is not None:
                self._take(answer)
                for _ in range(self._inbox.qsize()):
                    self._take(self._inbox.get_nowait())

    def _send_due(self, now: float, end: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            stream = heapq.heappop(self._waiting)[2]
            if stream.due >= end:
                self._resting.append(stream)
                continue
            self._flying[stream.id] = stream
            stream.started = True
            stream.sent = self._clock.now()
            self._post(stream, stream.body)
            self._deadlines.append((stream.sent + self._options.timeout_s + GRACE_S, stream, stream.chunk))

    def _post(self, stream: _Stream, body: Body, *, goodbye: bool = False) -> None:
        inbox, chunk = self._inbox, GOODBYE if goodbye else stream.chunk
        timeout_s = min(self._options.timeout_s, GOODBYE_S) if goodbye else self._options.timeout_s
        self._sender.send(body, timeout_s, lambda reply: inbox.put(Answer(stream, chunk, reply)))

    def _start(self, begin: float) -> None:
        stream = _Stream(self._next_id, self._script.take(), begin)
        self._next_id += 1
        self._prepare(stream, begin)

    def _prepare(self, stream: _Stream, now: float) -> None:
        """Let a stream's next chunk wait until it is spoken. What costs time is done now, not when it is due."""
        stream.due = stream.begin + self._script.spoken_s(stream.recording, stream.chunk)
        stream.ready = max(stream.due, now)
        body = self._script.body(stream.recording, stream.chunk)
        stream.body = body.in_stream(stream.id, start=stream.chunk == 0, end=self._is_final(stream))
        heapq.heappush(self._waiting, (stream.ready, stream.id, stream))

    def _is_final(self, stream: _Stream) -> bool:
        return stream.chunk == self._script.count(stream.recording) - 1

    def _take(self, answer: Answer) -> None:
        stream, reply = answer.stream, answer.reply
        if answer.chunk == GOODBYE:
            self._goodbyes -= 1
        elif self._is_awaited(stream, answer.chunk):
            del self._flying[stream.id]
            stream.sent = max(stream.sent, reply.sent)
            error = reply.error
            if error is None and len(reply.texts) != 1:
                error = f"not a transcript: {len(reply.texts)} texts for one chunk"
            if error is None:
                self._accept(stream, reply.texts[0], reply.received)
            else:
                self._fail(stream, error, reply.received)

    def _is_awaited(self, stream: _Stream, chunk: int) -> bool:
        return stream.chunk == chunk and stream.id in self._flying  # else it has been given up

    def _accept(self, stream: _Stream, text: str, received: float) -> None:
        self._failing_since, self._last_good = NEVER, received
        kind = 0
        if text.strip() and not stream.has_text:
            stream.has_text = True
            kind |= Kind.FIRST_TEXT
        if not self._is_final(stream):
            self._record(stream, received, kind)
            stream.chunk += 1
            self._prepare(stream, received)
            return
        self._record(stream, received, kind | (0 if stream.has_text else Kind.TEXTLESS))
        if stream.due >= self._score_from:
            self.log.texts[stream.recording, text] += 1
        self._start(received)

    def _fail(self, stream: _Stream, error: str, now: float) -> None:
        self._failing_since = min(self._failing_since, max(stream.sent, self._last_good))
        self._is_stalled = now - self._failing_since >= self._options.timeout_s
        index = self.log.error(error)
        self._record(stream, now, 0, index)
        if not self._is_final(stream):
            self._dismiss([stream])
            self._record_rest(stream, now, now, Kind.UNSENT, index)
        # Streams that failed together must not go on in step.
        self._start(now + self._rng.uniform(0, self._options.chunk_s))

    def _record(self, stream: _Stream, received: float, kind: int, error: int = -1) -> None:
        before_s = self._script.spoken_s(stream.recording, stream.chunk - 1) if stream.chunk else 0.0
        audio_s = stream.due - stream.begin - before_s
        kind |= Kind.FINAL if self._is_final(stream) else 0
        self.log.add((stream.begin, stream.due, stream.ready, stream.sent, received, audio_s, kind, error))

    def _give_up_lost(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, stream, chunk = self._deadlines.popleft()
            if self._is_awaited(stream, chunk):
                del self._flying[stream.id]
                self._fail(stream, f"lost: neither an answer nor an error within {self._options.timeout_s:g} s", now)

    def _give_up(self, end: float) -> None:
        """Record what was due before the end and has no answer: it is as late as it is by now, at least."""
        now = self._clock.now()
        for stream in self._flying.values():
            self._record(stream, now, Kind.OPEN)
            self._record_rest(stream, end, now, Kind.OPEN)

    def _record_rest(self, stream: _Stream, before: float, now: float, kind: int, error: int = -1) -> None:
        """Record the chunks that were due before a time and that the one in flight held back."""
        while not self._is_final(stream):
            stream.chunk += 1
            stream.due = stream.begin + self._script.spoken_s(stream.recording, stream.chunk)
            if stream.due >= before:
                return
            stream.ready = stream.sent = now  # it waited for the server, not for us
            self._record(stream, now, kind, error)

    def _end_open(self) -> None:
        """End what is open, so that the server need not wait for it."""
        waiting = [stream for _, _, stream in self._waiting]
        self._dismiss(stream for stream in (*self._flying.values(), *waiting, *self._resting) if stream.started)
        self._flying.clear()
        limit = self._clock.now() + GOODBYE_S
        while self._goodbyes > 0 and self._clock.now() < limit:
            if answer := self._clock.wait(self._inbox, limit):
                self._take(answer)

    def _dismiss(self, streams: Iterable[_Stream]) -> None:
        for stream in streams:
            self._goodbyes += 1
            self._post(stream, self._script.goodbye().in_stream(stream.id, end=True), goodbye=True)
