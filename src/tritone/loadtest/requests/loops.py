"""The loops that a worker runs: so many requests in flight (closed), or so many a second (open).

Closed: every answer is followed by the next request, so that a slow server is asked less. Latency counts from sending.
Open: requests come when they are due, whatever became of those before. Latency counts from the time when a request was
due, so that neither a late generator nor a server that holds it up makes the figures better ("coordinated omission").
"""

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tritone.audio.waveform import Waveform
from tritone.loadtest.processes.worker import Link
from tritone.loadtest.requests.arrivals import Arrivals, arrival_times
from tritone.loadtest.requests.windows import Tick
from tritone.loadtest.senders.wire import Body, Reply, Target, encode, open_sender, unreadable

UNREACHABLE = "no connection"


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What a worker still knows when it is stopped: when the requests began that had no answer then."""

    at: float
    begun: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class LoadJob(ABC):
    """What is common to both loops.

    `utterances`: (number, waveform) pairs that this process sends, `batch_size` in a request. `tick_s`: how often it
    reports. `drain_s`: how long answers are waited for after the end, which nobody counts: what comes next shall find a
    server that is free.
    """

    number: int
    target: Target
    utterances: Sequence[tuple[int, Waveform]]
    batch_size: int = 1
    timeout_s: float = 60.0
    tick_s: float = 0.5
    drain_s: float = 5.0
    connections: int = 1
    seed: int = 0

    @abstractmethod
    def run(self, link: Link) -> None: ...

    def _open(self) -> "Desk":
        order = np.random.default_rng([self.seed, self.number]).permutation(len(self.utterances))
        wanted = max(1, -(-len(order) // self.batch_size))
        places = itertools.cycle(map(int, order))  # the last request is filled up with those of the first
        requests = []
        for _ in range(wanted):
            members = [self.utterances[next(places)] for _ in range(self.batch_size)]
            body = encode(self.target, [waveform for _, waveform in members])
            requests.append(Request(body, tuple(number for number, _ in members)))
        return Desk(self, requests)


@dataclass(frozen=True)
class Request:
    body: Body
    members: tuple[int, ...]  # numbers of its utterances


@dataclass(frozen=True, kw_only=True)
class ClosedJob(LoadJob):
    """Keeps `concurrency` requests in flight."""

    concurrency: int

    def run(self, link: Link) -> None:
        with self._open() as desk:
            begin = _await(link)
            desk.restart(begin)
            desk.answered = lambda error: desk.rest() if error.startswith(UNREACHABLE) else desk.send()
            for _ in range(self.concurrency):
                desk.send()
            next_tick = begin + self.tick_s
            while not link.stopping.wait(max(0.0, next_tick - time.perf_counter())):
                link.tell(desk.take())
                next_tick += self.tick_s
                desk.wake()
            desk.finish(link)


@dataclass(frozen=True, kw_only=True)
class OpenJob(LoadJob):
    """Sends when requests are due, until more than `max_in_flight` of them wait for their answer.

    `rate` is that of all `shares` processes together, in requests per second.
    """

    rate: float
    arrivals: Arrivals
    share: int
    shares: int
    max_in_flight: int

    def run(self, link: Link) -> None:
        times = arrival_times(self.rate, self.arrivals, seed=self.seed, share=self.share, shares=self.shares)
        with self._open() as desk:
            begin = _await(link)
            desk.restart(begin)
            due = begin + next(times)
            next_tick = begin + self.tick_s
            while not link.stopping.is_set():
                now = time.perf_counter()
                if now >= next_tick:
                    link.tell(desk.take())
                    next_tick += self.tick_s
                elif now < due:
                    link.stopping.wait(min(due, next_tick) - now)
                elif desk.num_in_flight >= self.max_in_flight:
                    desk.overrun()
                    due = float("inf")
                else:
                    desk.send(due)
                    due = begin + next(times)
            desk.finish(link)


class Desk:
    """Sends requests in turn and writes down what comes back.

    Args:
        job: how.
        requests: the pool, used in this order again and again.
    """

    def __init__(self, job: LoadJob, requests: Sequence[Request]) -> None:
        self.answered: Callable[[str], None] = lambda error: None
        self._job = job
        self._requests = itertools.cycle(requests)
        self._serials = itertools.count()
        self._begun: dict[int, float] = {}  # of requests in flight: serial -> due or sent
        self._resting = 0
        self._closing = False
        self._lock = threading.Lock()
        self._sender = open_sender(job.target.endpoint, connections=job.connections)
        self.restart(time.perf_counter())

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._sender.close()

    @property
    def num_in_flight(self) -> int:
        return len(self._begun)

    def restart(self, begin: float) -> None:
        """Forget what was written down; what follows began at `begin`."""
        self._tick = Tick(begin, begin)
        self._cpu_s = time.process_time()

    def send(self, due: float | None = None) -> None:
        """Send the next request. Its latency counts from `due`, or from now."""
        if self._closing:
            return
        request, serial = next(self._requests), next(self._serials)
        begin = time.perf_counter() if due is None else due
        self._begun[serial] = begin
        with self._lock:
            self._tick.sent += 1
        self._sender.send(
            request.body, self._job.timeout_s, lambda reply: self._done(request, serial, begin, due is not None, reply)
        )

    def rest(self) -> None:
        """Send one request less until `wake`: who is not there need not be asked a thousand times a second."""
        with self._lock:
            self._resting += 1

    def wake(self) -> None:
        with self._lock:
            resting, self._resting = self._resting, 0
        for _ in range(resting):
            self.send()

    def overrun(self) -> None:
        """Write down that the server does not keep up."""
        with self._lock:
            self._tick.overrun = self.num_in_flight

    def take(self) -> Tick:
        """What was written down since the last time."""
        now, cpu_s = time.perf_counter(), time.process_time()
        with self._lock:
            tick, self._tick = self._tick, Tick(now, now)
        tick.end = now
        tick.cpu_s[self._job.number] = cpu_s - self._cpu_s
        self._cpu_s = cpu_s
        return tick

    def finish(self, link: Link) -> None:
        """Stop sending, report, and wait a moment for what is in flight."""
        self._closing = True
        link.tell(self.take())
        link.tell(Rest(at=time.perf_counter(), begun=list(self._begun.values())))
        deadline = time.perf_counter() + self._job.drain_s
        while self._begun and time.perf_counter() < deadline:
            time.sleep(0.01)

    def _done(self, request: Request, serial: int, begin: float, is_due: bool, reply: Reply) -> None:
        if reply.error is None and reply.rows != len(request.members):
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
                if reply.embeddings is None:
                    for utterance, text in zip(request.members, reply.texts, strict=True):
                        tick.add_text(utterance, text)
                else:
                    for utterance, embedding in zip(request.members, reply.embeddings, strict=True):
                        tick.embeddings.add(utterance, embedding)
            else:
                tick.add_error(error)
        self._begun.pop(serial, None)
        self.answered(error or "")


def _await(link: Link) -> float:
    begin = link.ready()
    link.stopping.wait(max(0.0, begin - time.perf_counter()))
    return begin
