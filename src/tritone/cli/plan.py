"""`tritone plan`: replicas, GPUs and cost for a load, from what one replica was measured to do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer

from tritone.capacity.autoscaler import AutoscalerSettings, read_autoscaler
from tritone.capacity.load import Load, read_day
from tritone.capacity.page import tables_of, to_json, write_plan
from tritone.capacity.plan import Plan, make_plan, simulate_days
from tritone.capacity.replica import Replica, request_replica, stream_replica
from tritone.capacity.simulation import Fleet, Routing, Signal
from tritone.capacity.sizing import Goal, Hardware, Percentile
from tritone.cli.bench.options import split_pair
from tritone.cli.bench.screen import show
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.outputs import check_outputs
from tritone.errors import InputError
from tritone.loadtest.findings.result import Report


@dataclass(frozen=True, kw_only=True)
class LoadChoice:
    """The load, at the busiest time of the day."""

    streams: Annotated[
        float | None, typer.Option(min=0.001, help="Live streams open at once, on average, at the busiest time.")
    ] = None
    utterances_per_hour: Annotated[
        float | None, typer.Option(min=0.001, help="Utterances at the busiest time of the day.")
    ] = None
    streaming: Annotated[
        bool, typer.Option("--streaming", help="The utterances of --utterances-per-hour are live streams.")
    ] = False
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTHS",
            help="Seconds of audio: 5, lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH, normal:MEAN,DEVIATION or file:PATH; "
            "those of the report if not given.",
        ),
    ] = None
    day: Annotated[
        str, typer.Option(help="The shape of a day: flat, office, or a file with numbers from midnight on.")
    ] = "flat"
    growth: Annotated[float, typer.Option(metavar="PERCENT", help="Growth of the load in a year.")] = 0.0
    years: Annotated[int | None, typer.Option(min=0, max=30, help="Years to look ahead; 3 if it grows.")] = None

    @property
    def is_live(self) -> bool:
        return self.streams is not None or self.streaming

    def read(self, replica: Replica) -> Load:
        """The load, with lengths of the report where none are given."""
        lengths = self.lengths or replica.lengths
        if not lengths:
            raise typer.BadParameter("the report was measured with files; say how long utterances are: --lengths 5")
        day_name, day = read_day(self.day)
        load = Load(utterances_per_hour=self.utterances_per_hour or 1, lengths=lengths, day=day, day_name=day_name)
        return load if self.streams is None else load.grown(self.streams / load.streams)


@dataclass(frozen=True, kw_only=True)
class GoalChoice:
    """What must be kept."""

    latency_limit_ms: Annotated[
        float | None,
        typer.Option(help="Of requests; of streams p95 of chunks and final texts (a chunk's duration if not given)."),
    ] = None
    percentile: Annotated[Percentile, typer.Option(help="Latency of requests that the limit applies to.")] = "p95"
    utilisation: Annotated[
        float, typer.Option(metavar="PERCENT", help="Of requests: share of a replica's highest throughput to use.")
    ] = 70.0
    max_refused: Annotated[
        float, typer.Option(metavar="PERCENT", help="Streams or requests that may be refused at the busiest time.")
    ] = 0.1
    spare: Annotated[int, typer.Option(min=0, help="Replicas more than needed, for one that fails or drains.")] = 1

    def goal(self) -> Goal:
        return Goal(
            limit_ms=self.latency_limit_ms,
            percentile=self.percentile,
            utilisation=self.utilisation / 100,
            refused=self.max_refused / 100,
            spare=self.spare,
        )


@dataclass(frozen=True, kw_only=True)
class HardwareChoice:
    """What a replica takes and costs."""

    gpus: Annotated[float | None, typer.Option(min=0, help="GPUs of a replica; those of the report if not given.")] = (
        None
    )
    cores: Annotated[float | None, typer.Option(min=0, help="Cores of a replica; those of the report.")] = None
    gpu_price: Annotated[float | None, typer.Option(min=0, help="Price of a GPU for an hour, in any currency.")] = None
    core_price: Annotated[float | None, typer.Option(min=0, help="Price of a core for an hour.")] = None
    replica_price: Annotated[
        float | None, typer.Option(min=0, help="Price of a replica for an hour, beside GPUs and cores.")
    ] = None

    def hardware(self, replica: Replica) -> Hardware:
        return Hardware(
            gpus=replica.gpus if self.gpus is None else self.gpus,
            cores=replica.cores if self.cores is None else self.cores,
            gpu_price=self.gpu_price,
            core_price=self.core_price,
            replica_price=self.replica_price,
        )


@dataclass(frozen=True, kw_only=True)
class DayChoice:
    """The days to simulate."""

    hpa: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.yaml", help="Simulate a day under this HorizontalPodAutoscaler; repeat it to compare several."
        ),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIGNAL", help=f"What a metric of --hpa counts: {', '.join(get_args(Signal))}; repeatable."
        ),
    ] = None
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulate a day with the replicas planned.")] = False
    days: Annotated[int, typer.Option(min=1, max=31, help="Days to simulate, in a row.")] = 1
    routing: Annotated[
        Routing | None,
        typer.Option(help="Who gets what comes: least, round-robin or random; streams random (as by key), else least."),
    ] = None
    start_up_s: Annotated[
        float, typer.Option(min=0, help="Seconds from the decision for a replica until it is ready.")
    ] = 60.0
    drain_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds that a replica that goes has to finish; no limit if not given.")
    ] = None
    max_queued_s: Annotated[
        float | None, typer.Option(min=0.001, help="Of requests: audio that a replica takes at once, as built.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0

    def fleet(self, replica: Replica) -> Fleet:
        routing: Routing = self.routing or ("random" if replica.kind == "streams" else "least")
        drain_s = math.inf if self.drain_s is None else self.drain_s
        return Fleet(routing=routing, start_up_s=self.start_up_s, drain_s=drain_s)

    def autoscalers(self) -> list[AutoscalerSettings]:
        names: dict[str, Signal] = {}
        for text in self.metric or ():
            name, signal = split_pair(text)
            if signal not in get_args(Signal):
                raise typer.BadParameter(f"--metric {text}: {signal!r} is not one of {', '.join(get_args(Signal))}")
            names[name] = signal  # type: ignore[assignment]  # checked above
        return [read_autoscaler(path, names) for path in self.hpa or ()]


@takes_option_classes()
def plan(
    report: Annotated[Path, typer.Argument(metavar="REPORT.json", help="A report of `tritone bench` on one replica.")],
    *,
    series: Annotated[
        str | None, typer.Option(help="Measurements to use, where the report has several series.")
    ] = None,
    load: LoadChoice,
    goal: GoalChoice,
    hardware: HardwareChoice,
    days: DayChoice,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plan.html, plan.md, plan.json and plots there.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the plan as JSON.")] = None,
    title: Annotated[str, typer.Option(help="Of the plan.")] = "Capacity plan",
) -> None:
    """Say how many replicas a load needs, and what they cost.

    REPORT is of one replica: `tritone bench --concurrency 1,2,4,8,16` for whole utterances, `--streaming --streams
    25,50,100` for live streams. With --hpa, days of autoscaling are simulated: who is refused, how long answers take,
    what it costs.
    """
    if (load.streams is None) == (load.utterances_per_hour is None):
        raise typer.BadParameter("give the load: --streams (live streams at once) or --utterances-per-hour")
    if days.metric and not days.hpa:
        raise typer.BadParameter("--metric says what a metric of --hpa counts; name the manifest too")
    check_outputs((json,), (report, *(days.hpa or ())))
    measured = Report.read(report)
    try:
        replica = _replica(measured, series, load, goal, days)
        found = make_plan(
            replica,
            load.read(replica),
            goal.goal(),
            hardware.hardware(replica),
            fleet=days.fleet(replica),
            growth=load.growth / 100,
            years=(3 if load.growth else 0) if load.years is None else load.years,
            title=title,
            stamp=measured.stamp,
        )
        if days.hpa or days.simulate:
            found = simulate_days(found, days.autoscalers(), days=days.days, seed=days.seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    show(tables_of(found))
    _write(found, output, json)


def _replica(report: Report, series: str | None, load: LoadChoice, goal: GoalChoice, days: DayChoice) -> Replica:
    if load.is_live:
        if days.max_queued_s is not None:
            raise typer.BadParameter("--max-queued-s is for whole utterances; streams do not wait")
        return stream_replica(report, series=series, limit_ms=goal.latency_limit_ms)
    most = math.inf if days.max_queued_s is None else days.max_queued_s
    return request_replica(report, series=series, max_queued_s=most)


def _write(found: Plan, output: Path | None, json: Path | None) -> None:
    written: Sequence[str] = []
    if json is not None:
        try:
            json.write_text(to_json(found), encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write the plan: {error}") from error
        written = [str(json)]
    if output is not None:
        written = [*written, f"{len(write_plan(found, output))} files to {output}, to begin with plan.html"]
    for each in written:
        typer.echo(f"wrote {each}", err=True)
