"""How many replicas carry a load, and what that costs.

    Replica, Load, Goal  ->  size(...)  ->  Size: replicas, GPUs, cores, cost per hour and per hour of audio

Streams that nobody may wait for are Erlang's loss system. Of requests one replica is simulated with arrivals of its own
share, until the highest rate is known that keeps the goal.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from tritone.capacity.load import Load
from tritone.capacity.replica import Replica
from tritone.capacity.simulation import Arrivals, Fleet, Routing, simulate
from tritone.errors import InputError

PERCENTS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
Percentile = Literal["p50", "p90", "p95", "p99"]
MAX_REPLICAS = 10_000
TRIAL = 10_000  # utterances of a simulation of one replica; the first tenth fills it
STEPS = 8  # halvings of the range in which the rate lies


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What must be kept, at the busiest time.

    `limit_ms`: of requests, the latency that `percentile` may have; None: only `utilisation` counts. `utilisation`: the
    share of its highest throughput that a replica may be asked for. `refused`: the share of streams or requests that
    may be refused. `spare`: replicas more than needed, which may fail or drain.
    """

    limit_ms: float | None = None
    percentile: Percentile = "p95"
    utilisation: float = 0.7
    refused: float = 0.001
    spare: int = 1

    def __post_init__(self) -> None:
        if self.limit_ms is not None and not 0 < self.limit_ms < math.inf:
            raise ValueError(f"the latency limit must be above 0 ms, got {self.limit_ms:g}")
        if self.percentile not in get_args(Percentile):
            raise ValueError(f"percentile must be one of {', '.join(PERCENTS)}, got {self.percentile!r}")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation is a share above 0 and at most 100 %, got {100 * self.utilisation:g} %")
        if not 0 < self.refused < 1:
            raise ValueError(f"the share refused must be above 0 and below 100 %, got {100 * self.refused:g} %")
        if self.spare < 0:
            raise ValueError(f"spare replicas must be 0 or more, got {self.spare}")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What one replica takes, and the price of an hour of it, in any currency; None if nobody said."""

    gpus: float
    cores: float
    gpu_price: float | None = None
    core_price: float | None = None
    replica_price: float | None = None

    @property
    def price(self) -> float | None:
        """Of a replica for an hour."""
        parts = [
            (1.0, self.replica_price),
            (self.gpus, self.gpu_price),
            (self.cores, self.core_price),
        ]
        known = [count * price for count, price in parts if price is not None]
        return sum(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Size:
    """Replicas for a load. `needed` keep the goal at the busiest time; `replicas` has those to spare too.

    `utilisation`: of all replicas at the busiest time, of their throughput or of their slots. `cost_per_audio_hour` is
    that of replicas that run all day.
    """

    utterances_per_hour: float
    streams: float
    needed: int
    replicas: int
    gpus: float
    cores: float
    utilisation: float
    audio_h_per_day: float
    cost_per_hour: float | None
    cost_per_audio_hour: float | None


def erlang_b(erlangs: float, slots: int) -> float:
    """The share of arrivals that find all slots taken, if they come independently and nobody waits.

    Args:
        erlangs: arrivals per second times their mean duration in seconds.
        slots: how many fit at once.

    Source: A. K. Erlang, 1917; the recursion over slots is exact and cannot overflow.
    """
    if erlangs < 0 or slots < 0:
        raise ValueError(f"erlangs and slots must be 0 or more, got {erlangs} and {slots}")
    blocked = 1.0
    for count in range(1, slots + 1):
        blocked = erlangs * blocked / (count + erlangs * blocked)
    return blocked


def refused_streams(streams: float, slots: int, replicas: int, routing: Routing) -> float:
    """The share of streams that are refused, if so many are open on average.

    Where each goes to the replica with the fewest, all slots are one pool. Where a key decides, each replica has its
    share of the streams and may be full while others are not.
    """
    if not replicas:
        return 1.0
    if routing == "least":
        return erlang_b(streams, replicas * slots)
    return erlang_b(streams / replicas, slots)


def highest_rate(replica: Replica, load: Load, goal: Goal, seed: int = 0) -> float:
    """Utterances per second, arriving at random, with which one replica keeps the goal.

    Raises:
        InputError: even one utterance alone does not keep it.
    """
    rng = np.random.default_rng([seed, 2])
    gaps, lengths = rng.exponential(1.0, TRIAL), load.draw(TRIAL, rng)
    highest = goal.utilisation * replica.curve.peak / float(lengths.mean())

    def keeps(rate: float) -> bool:
        times = np.cumsum(gaps) / rate
        end_s = float(times[-1])
        found = simulate(
            Arrivals(times=times, lengths=lengths), replica.curve, replicas=1, start_s=end_s / 10, end_s=end_s
        )
        is_quick = goal.limit_ms is None or found.latency_ms(PERCENTS[goal.percentile]) <= goal.limit_ms
        return is_quick and found.refused_share <= goal.refused

    if keeps(highest):
        return highest
    low, high = 0.0, highest
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    if not low:
        raise InputError(
            f"one replica without other load does not keep {goal.percentile} <= {goal.limit_ms or 0:g} ms and at most "
            f"{100 * goal.refused:g} % refused for utterances of {load.mean_s:.1f} s on average; raise the limit, or "
            "measure a faster replica"
        )
    return low


def size(replica: Replica, load: Load, goal: Goal, hardware: Hardware, fleet: Fleet, rate: float | None = None) -> Size:
    """Find the fewest replicas that keep a goal at the busiest time of the day, and what they cost.

    Args:
        replica, load, goal, hardware, fleet: what is asked. Of the fleet only its routing counts.
        rate: of requests, what `highest_rate` found, where it is known already.

    Raises:
        InputError: one utterance alone does not keep the goal, or far too many replicas would be needed.
    """
    if replica.kind == "streams":
        needed = _needed_for_streams(load.streams, replica.slots, goal, fleet.routing)
        throughput = float(replica.slots)
    else:
        needed = math.ceil(round(load.rate / (rate or highest_rate(replica, load, goal)), 9))
        throughput = replica.curve.peak
    if needed > MAX_REPLICAS:
        raise InputError(f"more than {MAX_REPLICAS} replicas would be needed ({needed}); see whether the load is right")
    replicas = needed + goal.spare
    cost = None if hardware.price is None else replicas * hardware.price
    return Size(
        utterances_per_hour=load.utterances_per_hour,
        streams=load.streams,
        needed=needed,
        replicas=replicas,
        gpus=replicas * hardware.gpus,
        cores=replicas * hardware.cores,
        utilisation=load.streams / (replicas * throughput),
        audio_h_per_day=load.audio_h_per_day,
        cost_per_hour=cost,
        cost_per_audio_hour=None if cost is None else 24 * cost / load.audio_h_per_day,
    )


def _needed_for_streams(streams: float, slots: int, goal: Goal, routing: Routing) -> int:
    # More streams than slots: most of them would be refused. From there the share falls with every replica.
    low = max(1, math.ceil(streams / slots * (1 - goal.refused)))
    high = low
    while refused_streams(streams, slots, high, routing) > goal.refused and high <= MAX_REPLICAS:
        high = max(high + 1, int(high * 1.2))
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if refused_streams(streams, slots, middle, routing) <= goal.refused else (middle + 1, high)
        )
    return low
