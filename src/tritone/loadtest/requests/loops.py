"""The loops that a worker runs: a number of requests in flight (closed), or a number a second (open).

Closed: every answer is followed by the next request, so that a slow server is asked less. Latency counts from sending.
Open: requests come when they are due, whatever became of those before. Latency counts from the time when a request was
due, so that neither a late generator nor a server that holds it up makes the figures better ("coordinated omission").
"""

import itertools
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.loadtest.options import LoadOptions
from tritone.loadtest.processes.worker import Link
from tritone.loadtest.requests.arrivals import Arrivals, arrival_times
from tritone.loadtest.requests.windows import Tick
from tritone.loadtest.senders.open import open_sender
from tritone.loadtest.senders.samples import Sample, encoded, num_bytes
from tritone.loadtest.senders.shared_audio import SharedAudio, open_shared_audio
from tritone.loadtest.senders.wire import Body, Reply, Target, unreadable

UNREACHABLE = "no connection"


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """The begins of the requests that had no answer at the time when a worker was stopped."""

    at: float
    started: Sequence[float]


@dataclass(frozen=True)
class Request:
    """A request of the pool, with the indices of its utterances or samples."""

    body: Body
    members: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LoadJob(ABC):
    """A worker's share of the load: it sends its utterances or samples, in an order of its own, again and again.

    After the end answers are waited for, which do not count: the next measurement needs a server that is free.
    """

    index: int  # of the worker
    target: Target
    pool: Sequence[tuple[int, Waveform | Sample]]  # with their indices in the whole pool
    options: LoadOptions

    @abstractmethod
    def run(self, link: Link) -> None: ...

    def _open(self) -> "RequestLoop":
        size = self.options.batch_size
        order = np.random.default_rng([self.options.seed, self.index]).permutation(len(self.pool))
        indices = itertools.cycle(map(int, order))  # the last request is filled up with utterances of the first
        groups = [[self.pool[next(indices)] for _ in range(size)] for _ in range(max(1, -(-len(order) // size)))]
        sizes = [num_bytes(self.target, [each for _, each in members]) for members in groups]
        blocks = sum(len(each.inputs) if isinstance(each, Sample) else 1 for members in groups for _, each in members)
        shared = open_shared_audio(self.target, sum(sizes), blocks)
        place = None if shared is None else shared.place
        requests = [
            Request(encoded(self.target, [each for _, each in members], place), tuple(number for number, _ in members))
            for members in groups
        ]
        return RequestLoop(self, requests, shared)


@dataclass(frozen=True, kw_only=True)
class ClosedJob(LoadJob):
    """Keeps `concurrency` requests in flight."""

    concurrency: int

    def run(self, link: Link) -> None:
        tick_s = self.options.report_s
        with self._open() as loop:
            begin = loop.begin(link)
            loop.answered = lambda error: loop.rest() if error.startswith(UNREACHABLE) else loop.send()
            for _ in range(self.concurrency):
                loop.send()
            next_tick = begin + tick_s
            while not link.stopping.wait(max(0.0, next_tick - time.perf_counter())):
                link.report(loop.take())
                next_tick += tick_s
                loop.wake()
            loop.finish(link)


@dataclass(frozen=True, kw_only=True)
class OpenJob(LoadJob):
    """Sends when requests are due, until more than `max_in_flight` of them wait for their answer."""

    rate: float  # requests per second of all processes together
    arrivals: Arrivals
    processes: int
    max_in_flight: int

    def run(self, link: Link) -> None:
        times = arrival_times(self.rate, self.arrivals, seed=self.options.seed, share=self.index, shares=self.processes)
        with self._open() as loop:
            begin = loop.begin(link)
            due = begin + next(times)
            next_tick = begin + self.options.report_s
            while not link.stopping.is_set():
                now = time.perf_counter()
                if now >= next_tick:
                    link.report(loop.take())
                    next_tick += self.options.report_s
                elif now < due:
                    link.stopping.wait(min(due, next_tick) - now)
                elif loop.num_in_flight >= self.max_in_flight:
                    loop.overrun()
                    due = float("inf")
                else:
                    loop.send(due)
                    due = begin + next(times)
            loop.finish(link)


class RequestLoop:
    """Sends requests in turn and records their replies.

    Args:
        job: how.
        requests: the pool, used in this order again and again.
        shared: the memory that their audio lies in, if it does; it is closed with the loop.
    """

    def __init__(self, job: LoadJob, requests: Sequence[Request], shared: SharedAudio | None = None) -> None:
        self._shared = shared
        self.answered: Callable[[str], None] = lambda error: None
        self._job = job
        self._requests = itertools.cycle(requests)
        self._serials = itertools.count()
        self._streams = itertools.count(random.getrandbits(61) + 1)  # unlike those of other processes
        self._started: dict[int, float] = {}  # of requests in flight: serial -> due or sent
        self._resting = 0
        self._closing = False
        self._lock = threading.Lock()
        self._sender = open_sender(job.target.endpoint)
        self._tick = Tick(0.0, 0.0)
        self._cpu_s = 0.0
        self._restart(time.perf_counter())

    def __enter__(self) -> "RequestLoop":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._sender.close()
        if self._shared is not None:
            self._shared.close()

    @property
    def num_in_flight(self) -> int:
        return len(self._started)

    def begin(self, link: Link) -> float:
        """Wait until the load begins; returns that time."""
        begin = link.ready()
        link.stopping.wait(max(0.0, begin - time.perf_counter()))
        self._restart(begin)
        return begin

    def send(self, due: float | None = None) -> None:
        """Send the next request. Its latency counts from `due`, or from now."""
        if self._closing:
            return
        request, serial = next(self._requests), next(self._serials)
        body = request.body
        if self._job.target.usage == "stream":  # which is one of this request alone
            body = body.in_stream(next(self._streams), start=True, end=True)
        begin = time.perf_counter() if due is None else due
        self._started[serial] = begin
        with self._lock:
            self._tick.sent += 1
        timeout_s = self._job.options.timeout_s
        self._sender.send(body, timeout_s, lambda reply: self._done(request, serial, begin, due is not None, reply))

    def rest(self) -> None:
        """Send one request less until `wake`: an absent server need not be asked a thousand times a second."""
        with self._lock:
            self._resting += 1

    def wake(self) -> None:
        with self._lock:
            resting, self._resting = self._resting, 0
        for _ in range(resting):
            self.send()

    def overrun(self) -> None:
        """Record that the server does not keep up."""
        with self._lock:
            self._tick.overrun = self.num_in_flight

    def take(self) -> Tick:
        """Everything recorded since the last time."""
        now, cpu_s = time.perf_counter(), time.process_time()
        with self._lock:
            tick, self._tick = self._tick, Tick(now, now)
        tick.end = now
        tick.cpu_s[self._job.index] = cpu_s - self._cpu_s
        self._cpu_s = cpu_s
        return tick

    def finish(self, link: Link) -> None:
        """Stop sending, report, and wait a moment for what is in flight."""
        self._closing = True
        link.report(self.take())
        link.report(Unanswered(at=time.perf_counter(), started=list(self._started.values())))
        deadline = time.perf_counter() + self._job.options.drain_s
        while self._started and time.perf_counter() < deadline:
            time.sleep(0.01)

    def _restart(self, begin: float) -> None:
        self._tick = Tick(begin, begin)
        self._cpu_s = time.process_time()

    def _done(self, request: Request, serial: int, begin: float, is_due: bool, reply: Reply) -> None:
        if reply.error is None and reply.answers is None and reply.rows != len(request.members):
            reply.error = unreadable(request.body, f"{reply.rows} rows for {len(request.members)} utterances")
        error = reply.error
        with self._lock:
            tick = self._tick
            if is_due:
                tick.lateness.append(max(0.0, reply.sent - begin))
            if error is None:
                tick.latencies.append(reply.received - begin)
                tick.utterances += len(request.members)
                tick.audio_s += sum(request.body.audio_s)
                if reply.answers is not None:
                    tick.answers += reply.answers
                    if reply.first:
                        tick.firsts.append(reply.first - begin)
                elif reply.embeddings is None:
                    for utterance, text in zip(request.members, reply.texts, strict=True):
                        tick.add_text(utterance, text)
                else:
                    for utterance, embedding in zip(request.members, reply.embeddings, strict=True):
                        tick.embeddings.add(utterance, embedding)
            else:
                tick.add_error(error)
        self._started.pop(serial, None)
        self.answered(error or "")
