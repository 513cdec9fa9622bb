"""What one replica carries, read from a report of `tritone bench`.

Report (closed loop)           ->  request_replica  ->  Replica: its throughput by requests in flight
Report (streams in real time)  ->  stream_replica   ->  Replica: its streams, and how late chunks are by streams
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tritone.bench.ramp import Limit
from tritone.bench.series import Series, common, is_client_bound, is_number, series_of
from tritone.capacity.simulation import Floats, ServiceCurve
from tritone.errors import InputError
from tritone.loadtest.findings.result import Loop, Measurement, Report

FLAT = 0.95  # of the highest throughput: more requests in flight than that takes only wait
RISING = 1.1  # between the two highest loads: more might give more
SHORT = 0.8  # utterances of other lengths than this, or its inverse, were not measured

Kind = Literal["requests", "streams"]


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One replica as it was measured. `points`: of the curve: load, seconds of audio per second.

    `slots`: streams that it keeps within the limit, 0 of a model for whole utterances. `chunk_p95_ms`: of streams the
    worse p95 of chunks and final texts, by their number from 1 on; empty of requests. `lengths`: of the audio that was
    sent, as for `--lengths`; "" if that was files. `mean_s`: of the audio that was sent. `notes`: what to know of the
    measurements.
    """

    kind: Kind
    model: str
    settings: str
    curve: ServiceCurve
    points: Sequence[tuple[float, float]]
    slots: int = 0
    chunk_p95_ms: Sequence[float] = ()
    lengths: str
    mean_s: float
    gpus: int
    cores: int
    notes: Sequence[str] = ()

    def streams_latency_ms(self, occupancy_s: Floats, percentile: float) -> float:
        """A percentile, over the time of all streams, of the p95 that chunks have with as many streams on a replica."""
        weights = np.asarray(occupancy_s)[1:] * np.arange(1, len(occupancy_s))
        if not weights.sum():
            return math.nan
        reached = np.searchsorted(np.cumsum(weights), percentile / 100 * weights.sum())
        return float(np.asarray(self.chunk_p95_ms)[min(int(reached), len(self.chunk_p95_ms) - 1)])


def request_replica(report: Report, *, series: str | None = None, max_queued_s: float = math.inf) -> Replica:
    """The replica that closed loops of a report describe.

    Args:
        report: of one replica.
        series: its series, by name, where the report has several.
        max_queued_s: seconds of audio that it takes at once, as `tritone build --max-queued-s`.

    Raises:
        InputError: the report has no closed loop, or several series and none is named.
    """
    found = _series(report, "closed", "requests", "tritone bench --url URL --concurrency 1,2,4,8,16", series)
    held = _by_load(found.measurements)
    rates = {each.load: each.rtfx for each in held}
    best = max(rates.values())
    places = next(load for load, rate in rates.items() if rate >= FLAT * best)
    curve = ServiceCurve(
        rates=[float(each) for each in np.interp(range(1, int(places) + 1), list(rates), list(rates.values()))],
        max_waiting=max_queued_s,
    )
    notes = _doubts(held)
    if held[0].load > 1:
        notes.append(
            f"The smallest concurrency measured is {held[0].load:g}; one request alone is taken to be as fast."
        )
    *_, before, last = [math.nan, *rates.values()]
    if last > RISING * before or math.isnan(before):
        notes.append(
            f"Throughput was still rising at the highest concurrency measured ({held[-1].load:g}), so a replica may "
            "carry more; measure higher ones."
        )
    return _replica(report, found, "requests", held, curve, list(rates.items()), notes=notes)


def stream_replica(report: Report, *, series: str | None = None, limit_ms: float | None = None) -> Replica:
    """The replica that streams of a report describe.

    Args:
        report: of one replica.
        series: its series, by name, where the report has several.
        limit_ms: what p95 of chunks and of final texts may have; a chunk's duration if not given.

    Raises:
        InputError: the report has no streams, or several series and none is named, or its smallest load was too much.
    """
    found = _series(report, "streaming", "streams", "tritone bench --url URL --streaming --streams 25,50,100", series)
    held = [each for each in _by_load(found.measurements) if each.streaming is not None]
    chunk_ms = held[0].streaming.chunk_ms if held and held[0].streaming else 0.0
    limit = Limit(limit_ms=limit_ms or chunk_ms)
    slots, breach = 0, None
    for each in held:
        breach = limit.breach(each)
        if breach is not None:
            break
        slots = int(each.load)
    if not slots:
        raise InputError(f"already {held[0].load:g} streams did not keep {limit}: {breach}; measure fewer streams")
    loads = [each.load for each in held]
    p95 = [limit.latency_ms(each) for each in held]
    notes = _doubts([each for each in held if each.load <= slots])
    if breach is None:
        notes.append(f"The highest number of streams measured ({slots}) kept the limit, so a replica may carry more.")
    else:
        notes.append(f"{slots} streams are the most that kept {limit}; the next number measured did not: {breach}.")
    return _replica(
        report,
        found,
        "streams",
        held,
        ServiceCurve(rates=[float(each) for each in range(1, slots + 1)], max_waiting=0.0),
        [(load, load) for load in loads],
        slots=slots,
        chunk_p95_ms=[float(each) for each in np.interp(range(1, slots + 1), loads, p95)],
        notes=notes,
    )


def _series(report: Report, loop: Loop, what: str, command: str, name: str | None) -> Series:
    held = [each for each in report.measurements if each.loop == loop and each.batch_size == 1 and each.latency]
    if not held:
        raise InputError(f"the report has no measurements of {what}; make them with `{command}`")
    found = series_of(held)
    chosen = found if name is None else [each for each in found if each.name == name]
    if len(chosen) != 1:
        names = "\n".join(f"  {each.name!r}" for each in found)
        said = "has several series" if name is None else f"has no series {name!r}"
        raise InputError(f"the report {said} of {what}; name one of them with --series:\n{names}")
    return chosen[0]


def _by_load(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The last measurement of each load: a search measures some twice."""
    return list({each.load: each for each in sorted(measurements, key=lambda each: each.load)}.values())


def _doubts(measurements: Sequence[Measurement]) -> list[str]:
    checks: Sequence[tuple[str, Callable[[Measurement], bool]]] = (
        ("did not settle", lambda each: not each.stable),
        ("had failed requests", lambda each: bool(each.failed)),
        ("may be slow because the load generator was busy all the time", is_client_bound),
    )
    return [
        f"{count} of {len(measurements)} measurements {text}; measure again before you rely on them."
        for text, is_so in checks
        if (count := sum(map(is_so, measurements)))
    ]


def _replica(
    report: Report,
    series: Series,
    kind: Kind,
    held: Sequence[Measurement],
    curve: ServiceCurve,
    points: Sequence[tuple[float, float]],
    *,
    notes: Sequence[str],
    slots: int = 0,
    chunk_p95_ms: Sequence[float] = (),
) -> Replica:
    return Replica(
        kind=kind,
        model=held[0].model,
        settings=common(held),
        curve=curve,
        points=points,
        slots=slots,
        chunk_p95_ms=chunk_p95_ms,
        lengths=_lengths(held[0].seconds),
        mean_s=sum(each.audio_s for each in held) / max(1, sum(each.utterances for each in held)),
        gpus=len(report.stamp.gpus),
        cores=report.stamp.cores,
        notes=[*notes, *([] if report.complete else ["The report was interrupted and is not complete."])],
    )


def _lengths(seconds: str) -> str:
    """Lengths as a report names them, "lognormal(5, 0.5)", in the form of `--lengths`; "" of files."""
    if is_number(seconds):
        return seconds
    match = re.fullmatch(r"(lognormal|uniform|normal)\(([^,()]+), ([^,()]+)\)", seconds)
    return f"{match[1]}:{match[2]},{match[3]}" if match else ""
