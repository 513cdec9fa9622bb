"""A discrete-event simulation of replicas that come and go.

    arrivals, ServiceCurve, Fleet, autoscaler  ->  simulate  ->  Simulated

A replica works on up to `places` utterances at once; `curve.rates[n]` is what it gets done with n of them, shared
equally. Those beyond wait in the order in which they came, or are refused. That is a flow-equivalent server: its rates
are the throughput of closed loops (Chandy, Herzog and Woo, Parametric Analysis of Queuing Networks, IBM J. Res. Dev.
19, 1975). Live streams are the case where n streams progress at n seconds per second and nobody may wait. M/M/c, M/D/1,
processor sharing and Erlang's loss system are special cases, which the tests compare with their formulas.
"""

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

Routing = Literal["least", "round-robin", "random"]
Signal = Literal["open", "occupied", "in-flight", "waiting", "busy", "queue-s"]
Floats = npt.NDArray[np.float64]

SYNC_S = 15.0  # how often a controller looks, and metrics are scraped: the default of Kubernetes and of its adapters
BINS = 288  # of the simulated time, in what is drawn: five minutes of a day
MAX_ARRIVALS = 5_000_000  # some 10 s for each million on one core


@dataclass(frozen=True, kw_only=True)
class ServiceCurve:
    """How much one replica gets done. `rates[n - 1]`: seconds of audio per second with n utterances at work.

    `max_waiting`: seconds of audio that may be at work or wait; utterances beyond are refused. 0: nobody waits, and
    utterances are refused when all places are taken.
    """

    rates: Sequence[float]
    max_waiting: float = math.inf

    def __post_init__(self) -> None:
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"rates must be above 0, at least one of them, got {list(self.rates)}")

    @property
    def places(self) -> int:
        """Utterances at work at once."""
        return len(self.rates)

    @property
    def peak(self) -> float:
        """The highest throughput, in seconds of audio per second."""
        return max(self.rates)


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """Utterances or streams by the time of their arrival: seconds from the start, ascending; and seconds of audio."""

    times: Floats
    lengths: Floats

    def __post_init__(self) -> None:
        if self.times.shape != self.lengths.shape or self.times.ndim != 1:
            raise ValueError(f"{self.times.shape} times, but {self.lengths.shape} lengths")
        if self.times.size > MAX_ARRIVALS:
            raise ValueError(
                f"{self.times.size} arrivals are too many to simulate, at most {MAX_ARRIVALS}; simulate a part of the "
                "load, with the same utterances for each replica"
            )


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How replicas start, end and share the arrivals.

    `routing`: "least": to the one with the fewest utterances; "round-robin": in turn; "random": to any, as where a key
    of the stream is hashed. `start_up_s`: from the decision to readiness. `drain_s`: how long a replica that goes may
    work on what it has; what is left then is lost.
    """

    routing: Routing = "least"
    start_up_s: float = 60.0
    drain_s: float = math.inf

    def __post_init__(self) -> None:
        if self.routing not in get_args(Routing):
            raise ValueError(f"routing must be one of {', '.join(get_args(Routing))}, got {self.routing!r}")
        for name in ("start_up_s", "drain_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")


class Autoscaler(Protocol):
    """Decides on replicas, every `SYNC_S` seconds."""

    def decide(self, now_s: float, current: int, pods: Sequence[Mapping[Signal, float]], starting: int) -> int:
        """The number of replicas from now on.

        Args:
            now_s: seconds.
            current: replicas wanted until now, without those that drain.
            pods: the signals of each replica that has any.
            starting: replicas without, because they are not ready yet.
        """


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What became of the arrivals.

    `latencies_s`: from arrival to the end of work, of each that was answered, in the order of arrival; `waits_s`: the
    part before work began. `arrived`, `refused`, `lost` (cut off when a replica's time to drain was over) are counts,
    `replica_s` the seconds of all replicas from decision to end. `occupancy_s[n]`: replica-seconds with n utterances at
    work, of replicas that were ready or draining. The series have a value for each of `BINS` equal parts of the time:
    `wanted`, `ready` and `paid` replicas (means), `offered` (audio that arrived, in seconds per second),
    `arrived_by_bin`, `refused_by_bin` and `p95_by_bin` (of latency, in seconds, NaN where nothing was answered).
    """

    start_s: float
    end_s: float
    arrived: int
    refused: int
    lost: int
    latencies_s: Floats
    waits_s: Floats
    replica_s: float
    most_replicas: int
    occupancy_s: Floats
    wanted: Floats
    ready: Floats
    paid: Floats
    offered: Floats
    arrived_by_bin: Floats
    refused_by_bin: Floats
    p95_by_bin: Floats

    @property
    def refused_share(self) -> float:
        """The share of arrivals that were refused, 0..1."""
        return self.refused / self.arrived if self.arrived else 0.0

    def latency_ms(self, percentile: float) -> float:
        """A percentile of the latency; NaN if nothing was answered."""
        return 1000 * float(np.percentile(self.latencies_s, percentile)) if self.latencies_s.size else math.nan


@dataclass(eq=False)
class _Replica:
    """One replica. Work is shared equally, so that virtual time, the work that each has got, orders the ends."""

    curve: ServiceCurve
    occupancy_s: Floats
    ready_s: float
    is_ready: bool = False
    is_draining: bool = False
    version: int = 0  # of the next end; events of an older one are void
    changed_s: float = 0.0
    virtual: float = 0.0
    held: float = 0.0  # seconds of audio at work and waiting
    busy_s: float = 0.0
    waited_s: float = 0.0  # of what began since the last look
    begun: int = 0
    working: list[tuple[float, int]] = field(default_factory=list)  # a heap: virtual end, arrival
    waiting: deque[int] = field(default_factory=deque)

    @property
    def in_flight(self) -> int:
        return len(self.working) + len(self.waiting)

    def advance(self, now: float) -> None:
        count = len(self.working)
        passed = now - self.changed_s
        self.occupancy_s[count] += passed
        if count:
            self.busy_s += passed
            self.virtual += passed * self.curve.rates[count - 1] / count
        self.changed_s = now

    def next_end(self) -> float:
        count = len(self.working)
        return self.changed_s + max(0.0, self.working[0][0] - self.virtual) * count / self.curve.rates[count - 1]

    def signals(self) -> dict[Signal, float]:
        """What a scrape finds; starts a new period."""
        found: dict[Signal, float] = {
            "open": len(self.working),
            "occupied": len(self.working) / self.curve.places,
            "in-flight": self.in_flight,
            "waiting": len(self.waiting),
            "busy": self.busy_s / SYNC_S,
            "queue-s": self.waited_s / max(1, self.begun),
        }
        self.busy_s, self.waited_s, self.begun = 0.0, 0.0, 0
        return found


END, READY, LOOK, KILL = range(4)


def simulate(
    arrivals: Arrivals,
    curve: ServiceCurve,
    *,
    replicas: int,
    end_s: float,
    fleet: Fleet | None = None,
    autoscaler: Autoscaler | None = None,
    start_s: float = 0.0,
    seed: int = 0,
) -> Simulated:
    """Let arrivals meet replicas.

    Args:
        arrivals: who comes when.
        curve: what each replica gets done.
        replicas: ready at the time of the first arrival, all the time if there is no autoscaler.
        end_s: the end of the counted time. What arrived before is worked off after it.
        fleet: how replicas start, end and share arrivals.
        autoscaler: changes their number.
        start_s: the begin of the counted time; what came before fills the replicas.
        seed: of random routing.
    """
    return _Run(arrivals, curve, replicas, end_s, fleet or Fleet(), autoscaler, start_s, seed).run()


class _Run:
    def __init__(
        self,
        arrivals: Arrivals,
        curve: ServiceCurve,
        replicas: int,
        end_s: float,
        fleet: Fleet,
        autoscaler: Autoscaler | None,
        start_s: float,
        seed: int,
    ) -> None:
        if replicas < 0 or not start_s < end_s:
            raise ValueError(f"{replicas} replicas from {start_s} to {end_s} s cannot be simulated")
        self.arrivals, self.curve, self.fleet, self.autoscaler = arrivals, curve, fleet, autoscaler
        self.start_s, self.end_s = start_s, end_s
        times = arrivals.times
        self.now = float(min(times[0], start_s)) if times.size else start_s
        self.times: list[float] = times.tolist()  # numbers of Python: numpy's are slow one by one
        self.lengths: list[float] = arrivals.lengths.tolist()
        self.draws: list[float] = np.random.default_rng([seed, 1]).random(times.size).tolist()
        self.begin = np.full(times.size, np.nan)
        self.end = np.full(times.size, np.nan)
        self.refused = np.zeros(times.size, dtype=bool)
        self.occupancy_s = np.zeros(curve.places + 1)
        self.uncounted = np.zeros(curve.places + 1)  # before the counted time and after it
        self.events: list[tuple[float, int, int, _Replica | None, int]] = []
        self.order = 0
        self.turn = 0
        self.wanted = replicas
        self.all: list[_Replica] = []  # that cost something
        self.ready: list[_Replica] = []  # that take arrivals
        self.steps: list[tuple[float, int, int, int]] = []  # time; wanted, ready, all
        self.seen: dict[_Replica, dict[Signal, float]] = {}
        self.latest: dict[_Replica, dict[Signal, float]] = {}
        for _ in range(replicas):
            self._make_ready(self._start(self.now))
        self._note()
        if autoscaler is not None:
            self._push(self.now + SYNC_S, LOOK)

    def run(self) -> Simulated:
        index, count = 0, len(self.times)
        events = self.events
        while index < count or events:
            if index < count and (not events or self.times[index] <= events[0][0]):
                self.now = self.times[index]
                self._arrive(index)
                index += 1
                continue
            self.now, _, kind, replica, version = heapq.heappop(events)
            if kind == END and replica is not None:
                if version == replica.version:
                    self._finish(replica)
            elif kind == READY and replica is not None:
                if replica in self.all and not replica.is_draining:
                    self._make_ready(replica)
            elif kind == KILL and replica is not None:
                self._remove(replica)
            elif kind == LOOK and self.now < self.end_s:
                self._look()
                self._push(self.now + SYNC_S, LOOK)
        self.now = max(self.now, self.end_s)
        for replica in self.all:
            self._advance(replica)
        return self._simulated()

    def _push(self, when: float, kind: int, replica: "_Replica | None" = None, version: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.events, (when, self.order, kind, replica, version))

    def _note(self) -> None:
        self.steps.append((self.now, self.wanted, len(self.ready), len(self.all)))

    def _advance(self, replica: _Replica) -> None:
        # Occupancy counts within the counted time alone; its edges cut the time since the last change.
        for edge in (self.start_s, self.end_s):
            if replica.changed_s < edge < self.now:
                replica.advance(edge)
                self._count(replica, edge)
        replica.advance(self.now)
        self._count(replica, self.now)

    def _count(self, replica: _Replica, now: float) -> None:
        is_counted = self.start_s <= now < self.end_s
        replica.occupancy_s = self.occupancy_s if is_counted else self.uncounted

    def _start(self, ready_s: float) -> _Replica:
        replica = _Replica(self.curve, self.uncounted, ready_s, changed_s=ready_s)
        self.all.append(replica)
        return replica

    def _make_ready(self, replica: _Replica) -> None:
        replica.is_ready, replica.changed_s = True, self.now
        self._count(replica, self.now)
        self.ready.append(replica)
        self._note()

    def _choose(self, index: int) -> _Replica | None:
        if not self.ready:
            return None
        if self.fleet.routing == "least":
            return min(self.ready, key=lambda each: each.in_flight)
        if self.fleet.routing == "random":
            return self.ready[int(self.draws[index] * len(self.ready))]
        self.turn += 1
        return self.ready[self.turn % len(self.ready)]

    def _arrive(self, index: int) -> None:
        replica = self._choose(index)
        if replica is None or (
            len(replica.working) >= self.curve.places and replica.held + self.lengths[index] > self.curve.max_waiting
        ):
            self.refused[index] = True
            return
        replica.held += self.lengths[index]
        if len(replica.working) < self.curve.places:
            self._advance(replica)
            self._begin(replica, index)
            self._expect(replica)
        else:
            replica.waiting.append(index)

    def _begin(self, replica: _Replica, index: int) -> None:
        self.begin[index] = self.now
        replica.waited_s += self.now - self.times[index]
        replica.begun += 1
        heapq.heappush(replica.working, (replica.virtual + self.lengths[index], index))

    def _expect(self, replica: _Replica) -> None:
        replica.version += 1
        if replica.working:
            self._push(replica.next_end(), END, replica, replica.version)

    def _finish(self, replica: _Replica) -> None:
        self._advance(replica)
        _, index = heapq.heappop(replica.working)
        self.end[index] = self.now
        replica.held -= self.lengths[index]
        if replica.waiting:
            self._begin(replica, replica.waiting.popleft())
        self._expect(replica)
        if replica.is_draining and not replica.in_flight:
            self._remove(replica)

    def _remove(self, replica: _Replica) -> None:
        if replica in self.all:
            if replica.is_ready:
                self._advance(replica)
            replica.version += 1  # what it still has is lost
            self.all.remove(replica)
            self._note()

    def _look(self) -> None:
        # What a controller sees was scraped before: values are one period old.
        self.seen = self.latest
        self.latest = {}
        for replica in self.ready:
            self._advance(replica)
            self.latest[replica] = replica.signals()
        assert self.autoscaler is not None
        live = [each for each in self.all if not each.is_draining]
        pods = [self.seen[each] for each in live if each in self.seen]
        wanted = self.autoscaler.decide(self.now, self.wanted, pods, len(live) - len(pods))
        for _ in range(wanted - len(live)):
            ready_s = self.now + self.fleet.start_up_s
            self._push(ready_s, READY, self._start(ready_s))
        if wanted < len(live):
            # As a ReplicaSet chooses: those that are not ready go first, then those that were ready last.
            for replica in sorted(live, key=lambda each: (each.is_ready, -each.ready_s))[: len(live) - wanted]:
                self._drain(replica)
        if wanted != self.wanted:
            self.wanted = wanted
        self._note()

    def _drain(self, replica: _Replica) -> None:
        replica.is_draining = True
        if replica in self.ready:
            self.ready.remove(replica)
        if not replica.in_flight:
            self._remove(replica)
        elif self.fleet.drain_s < math.inf:
            self._push(self.now + self.fleet.drain_s, KILL, replica)

    def _simulated(self) -> Simulated:
        times = self.arrivals.times
        counted = (times >= self.start_s) & (times < self.end_s)
        answered = counted & ~np.isnan(self.end)
        latencies = (self.end - times)[answered]
        edges = np.linspace(self.start_s, self.end_s, BINS + 1)
        place = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, BINS - 1)
        width = (self.end_s - self.start_s) / BINS

        def sums(which: npt.NDArray[np.bool_], weights: Floats | None = None) -> Floats:
            found = np.bincount(place[which], None if weights is None else weights[which], BINS)
            return found.astype(np.float64)

        p95 = np.full(BINS, np.nan)
        order = place[answered]
        for index in range(BINS):
            within = latencies[np.searchsorted(order, index) : np.searchsorted(order, index + 1)]
            if within.size:
                p95[index] = np.percentile(within, 95)
        series = [_means(self.steps, column, edges) for column in (1, 2, 3)]
        return Simulated(
            start_s=self.start_s,
            end_s=self.end_s,
            arrived=int(counted.sum()),
            refused=int((counted & self.refused).sum()),
            lost=int((counted & ~self.refused & np.isnan(self.end)).sum()),
            latencies_s=latencies,
            waits_s=(self.begin - times)[answered],
            replica_s=float(series[2].sum()) * width,
            most_replicas=max(step[3] for step in self.steps),
            occupancy_s=self.occupancy_s,
            wanted=series[0],
            ready=series[1],
            paid=series[2],
            offered=sums(counted, self.arrivals.lengths) / width,
            arrived_by_bin=sums(counted),
            refused_by_bin=sums(counted & self.refused),
            p95_by_bin=p95,
        )


def _means(steps: Sequence[tuple[float, int, int, int]], column: int, edges: Floats) -> Floats:
    """The mean of a step function between edges."""
    times = np.array([step[0] for step in steps])
    values = np.array([step[column] for step in steps], dtype=np.float64)
    integral = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])
    index = np.clip(np.searchsorted(times, edges, side="right") - 1, 0, None)
    at_edges = integral[index] + values[index] * (edges - times[index])
    return np.diff(at_edges) / np.diff(edges)
