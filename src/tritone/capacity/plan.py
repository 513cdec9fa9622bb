"""A plan: replicas and cost for a load and for its growth, and days of autoscaling with what users feel.

Replica, Load, Goal, Hardware, Fleet  ->  make_plan  ->  Plan
... and AutoscalerSettings            ->  simulate_days  ->  Plan with days
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tritone.capacity.autoscaler import AutoscalerSettings, Controller
from tritone.capacity.load import DAY_S, HOUR_S, Load
from tritone.capacity.replica import SHORT, Replica
from tritone.capacity.simulation import SYNC_S, Fleet, Simulated, simulate
from tritone.capacity.sizing import Goal, Hardware, Size, highest_rate, refused_streams, size
from tritone.errors import InputError
from tritone.report.stamp import Stamp
from tritone.report.table import SIGNIFICANT

SCHEMA = 1
FIXED = "fixed"
LEAD_S = HOUR_S  # before midnight, in which replicas fill


@dataclass(frozen=True, kw_only=True)
class Day:
    """One simulated day. `least`, `most`: replicas that the settings allow; both the same without an autoscaler."""

    name: str
    least: int
    most: int
    simulated: Simulated
    cost: float | None
    cost_per_audio_hour: float | None

    def latency_ms(self, replica: Replica, percentile: float) -> float:
        """Of requests from arrival to answer; of streams the p95 of chunks, as measured with as many streams."""
        if replica.kind == "requests":
            return self.simulated.latency_ms(percentile)
        return replica.streams_latency_ms(self.simulated.occupancy_s, percentile)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a load needs. `sizes`: by year, the first of now. `carries`: utterances per second, or streams of a fleet
    of that size, that one replica carries within the goal. `stamp`: the conditions of the measurements."""

    title: str
    replica: Replica
    load: Load
    goal: Goal
    hardware: Hardware
    fleet: Fleet
    growth: float
    sizes: Sequence[Size]
    carries: float
    stamp: Stamp
    days: Sequence[Day] = ()

    @property
    def carried_audio(self) -> float:
        """Seconds of audio per second that one replica carries within the goal."""
        return self.carries if self.replica.kind == "streams" else self.carries * self.load.mean_s

    def assumptions(self) -> list[str]:
        """What the figures rest on, in sentences."""
        return _assumptions(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        load, hardware, replica = self.load, self.hardware, self.replica
        return {
            "schema": SCHEMA,
            "title": self.title,
            "replica": {
                "kind": replica.kind,
                "model": replica.model,
                "settings": replica.settings,
                "slots": replica.slots or None,
                "points": [list(point) for point in replica.points],
                "carries": self.carries,
                "gpus": hardware.gpus,
                "cores": hardware.cores,
                "price_per_hour": hardware.price,
            },
            "load": {
                "utterances_per_hour": load.utterances_per_hour,
                "streams": load.streams,
                "lengths": load.lengths,
                "mean_s": load.mean_s,
                "day": list(load.day),
                "growth_per_year": self.growth,
            },
            "goal": {name: getattr(self.goal, name) for name in self.goal.__dataclass_fields__},
            "routing": self.fleet.routing,
            "sizes": [{"year": year, **vars(each)} for year, each in enumerate(self.sizes)],
            "days": [_day_dict(each, replica) for each in self.days],
            "assumptions": self.assumptions(),
            "measured": dict(self.stamp.rows()),
        }


def make_plan(
    replica: Replica,
    load: Load,
    goal: Goal,
    hardware: Hardware,
    *,
    stamp: Stamp,
    fleet: Fleet | None = None,
    growth: float = 0.0,
    years: int = 0,
    title: str = "Capacity plan",
) -> Plan:
    """Size a load now and in the years to come.

    Args:
        replica: as measured.
        load, goal, hardware, fleet: what is asked.
        stamp: the conditions of the measurement.
        growth: share by which the load grows every year, 0.3 for 30 %.
        years: how many of them to look ahead.
        title: of the plan.

    Raises:
        InputError: one replica cannot keep the goal for a single utterance.
        ValueError: growth or years make no sense.
    """
    if not -1 < growth < 100 or not 0 <= years <= 30:
        raise ValueError(f"growth is above -100 % a year, over 0 to 30 years; got {100 * growth:g} % and {years}")
    fleet = fleet or Fleet()
    rate = highest_rate(replica, load, goal) if replica.kind == "requests" else None
    sizes = [size(replica, load.grown((1 + growth) ** year), goal, hardware, fleet, rate) for year in range(years + 1)]
    return Plan(
        title=title,
        replica=replica,
        load=load,
        goal=goal,
        hardware=hardware,
        fleet=fleet,
        growth=growth,
        sizes=sizes,
        carries=load.streams / sizes[0].needed if rate is None else rate,
        stamp=stamp,
    )


def simulate_days(plan: Plan, autoscalers: Sequence[AutoscalerSettings] = (), *, days: int = 1, seed: int = 0) -> Plan:
    """Let the load of some days meet the replicas of a plan, fixed in number and under each autoscaler.

    All meet the same arrivals. Before midnight there is an hour in which replicas fill, which does not count.

    Args:
        plan: of `make_plan`; its first size is the fixed number.
        autoscalers: the settings to compare.
        days: in a row.
        seed: of the arrivals.

    Raises:
        InputError: too many arrivals, or two autoscalers of one name.
    """
    names = [FIXED, *(each.name for each in autoscalers)]
    if len(set(names)) < len(names):
        raise InputError(
            f"each autoscaler needs a name of its own, which is that of its file; got {', '.join(names[1:])}"
        )
    arrivals = plan.load.arrivals(-LEAD_S, days * DAY_S, seed)
    at_start = float(plan.load.share_at(np.array([-LEAD_S]))[0]) * plan.load.streams / plan.carried_audio
    found = []
    for settings in (None, *autoscalers):
        fixed = plan.sizes[0].replicas
        least, most = (fixed, fixed) if settings is None else (settings.least, settings.most)
        simulated = simulate(
            arrivals,
            plan.replica.curve,
            replicas=min(max(math.ceil(at_start), least), most),
            end_s=days * DAY_S,
            fleet=plan.fleet,
            autoscaler=None if settings is None else Controller(settings),
            seed=seed,
        )
        price = plan.hardware.price
        cost = None if price is None else simulated.replica_s / HOUR_S * price
        answered_h = (1 - simulated.refused_share) * plan.load.audio_h_per_day * days
        found.append(
            Day(
                name=FIXED if settings is None else settings.name,
                least=least,
                most=most,
                simulated=simulated,
                cost=cost,
                cost_per_audio_hour=None if cost is None or not answered_h else cost / answered_h,
            )
        )
    return replace(plan, days=found)


def _day_dict(day: Day, replica: Replica) -> dict[str, Any]:
    simulated = day.simulated
    latencies = {f"p{percentile}_ms": day.latency_ms(replica, percentile) for percentile in (50, 95, 99)}
    series: Mapping[str, Any] = {
        "replicas_wanted": simulated.wanted,
        "replicas_ready": simulated.ready,
        "replicas_paid": simulated.paid,
        "offered_audio_s_per_s": simulated.offered,
        "arrived": simulated.arrived_by_bin,
        "refused": simulated.refused_by_bin,
        "latency_p95_s": simulated.p95_by_bin,
    }
    return {
        "name": day.name,
        "least": day.least,
        "most": day.most,
        "arrived": simulated.arrived,
        "refused": simulated.refused,
        "lost": simulated.lost,
        **{name: _number(value) for name, value in latencies.items()},
        "replica_hours": simulated.replica_s / HOUR_S,
        "most_replicas": simulated.most_replicas,
        "cost": day.cost,
        "cost_per_audio_hour": day.cost_per_audio_hour,
        "bin_s": (simulated.end_s - simulated.start_s) / len(simulated.ready),
        **{name: [_number(float(each)) for each in values] for name, values in series.items()},
    }


def _number(value: float) -> float | None:
    """A figure with the digits that mean something; None where there is none, which JSON has no word for."""
    return float(f"{value:.{SIGNIFICANT + 2}g}") if math.isfinite(value) else None


def _assumptions(plan: Plan) -> list[str]:
    replica, load, goal = plan.replica, plan.load, plan.goal
    found = [
        "A replica is what the report was measured on. Replicas do not slow each other down, and what is in front of "
        "them (proxy, network) is no bottleneck.",
        f"Utterances arrive independently of each other, at the busiest time {load.utterances_per_hour:.0f} an hour, "
        f"{load.mean_s:.1f} s long on average; the day is {load.day_name!r}.",
    ]
    if replica.kind == "requests":
        kept = [f"{goal.percentile} <= {goal.limit_ms:g} ms"] if goal.limit_ms is not None else []
        kept.append(f"at most {100 * goal.utilisation:g} % of its highest throughput")
        found += [
            f"One replica carries {plan.carries * HOUR_S:.0f} utterances an hour ({plan.carried_audio:.1f} s of audio "
            f"a second of {replica.curve.peak:.1f} at most) with {' and '.join(kept)}, if it gets a random share of "
            "them. Sending each to the replica with the fewest does better than that.",
            f"It works on up to {replica.curve.places} utterances at once, which share its measured throughput; others "
            "wait. Work is proportional to the length of the audio.",
        ]
    else:
        share = refused_streams(load.streams, replica.slots, plan.sizes[0].needed, plan.fleet.routing)
        found += [
            f"One replica holds {replica.slots} streams. A stream ends when its audio does. One that finds no room is "
            f"refused and does not come back: {100 * share:.2g} % at the busiest time, without the spare replicas.",
            "A stream goes to the replica with the fewest."
            if plan.fleet.routing == "least"
            else "A key decides which replica takes a stream, so each is filled by chance, and may be full while "
            "others are not.",
        ]
    if replica.mean_s and not SHORT <= load.mean_s / replica.mean_s <= 1 / SHORT and replica.kind == "requests":
        found.append(
            f"The report was measured with {replica.mean_s:.1f} s of audio on average, the load has {load.mean_s:.1f} "
            "s: short utterances cost more a second than long ones. Measure with `--lengths` of the load."
        )
    hardware = plan.hardware
    found.append(
        f"A replica takes {hardware.gpus:g} GPUs and {hardware.cores:g} cores. "
        + (
            "No price was given."
            if hardware.price is None
            else f"It costs {hardware.price:g} an hour; the replicas of the plan run all day."
        )
    )
    found.append(f"{goal.spare} of the replicas are spare: for one that fails, drains or is upgraded.")
    if plan.days:
        drain = plan.fleet.drain_s
        found.append(
            f"Autoscaling: decisions and metrics every {SYNC_S:g} s, metrics one period old; a replica is ready "
            f"{plan.fleet.start_up_s:g} s after the decision, and has no metrics until then; there are machines for "
            f"it. Routing: {plan.fleet.routing}. A replica that goes finishes what it has"
            + ("" if math.isinf(drain) else f" within {drain:g} s and loses the rest")
            + ", and costs until then."
        )
    return [*found, *replica.notes]
