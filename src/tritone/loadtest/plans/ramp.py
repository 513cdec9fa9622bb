"""Search for the largest load that a server sustains within a limit: double it until it fails, then halve the gap.

    measure(load)  ->  largest_load  ->  Ramp: what was measured, the best of it, what stopped it

Of streams, of requests in flight or of requests per second: the search knows loads as whole numbers only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.findings.series import is_client_bound
from tritone.loadtest.requests.offline import Interrupted

NARROW = 1.5  # times the limit: a latency beyond is no noise, so it is not measured again

Cause = Literal["errors", "generator", "text", "late"]
Percentile = Literal["mean", "p50", "p90", "p95", "p99", "max"]


@dataclass(frozen=True)
class Breach:
    """Why a measurement does not keep a limit: the cause, in words, and whether noise may be the reason."""

    cause: Cause
    text: str
    is_narrow: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What a measurement must keep for its load to count as sustained.

    `percentile` of the latencies is at most `limit_ms`; of streams the worse of the chunks' and the final texts'.
    `in_time` is the least share of a stream's chunks that must be answered before the next is spoken; `max_wer` bounds
    the word error rate, where there are references, so that a fast wrong server cannot win. No request may fail, and
    the load must be the generator's true doing.
    """

    limit_ms: float
    percentile: Percentile = "p95"
    in_time: float = 0.99
    max_wer: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.limit_ms < math.inf:
            raise ValueError(f"the latency limit must be above 0 ms, got {self.limit_ms:g}")
        if self.percentile not in get_args(Percentile):
            raise ValueError(f"percentile must be one of {', '.join(get_args(Percentile))}, got {self.percentile!r}")

    def __str__(self) -> str:
        return f"{self.percentile} <= {self.limit_ms:g} ms"

    def latency_ms(self, measurement: Measurement) -> float:
        """The latency that is compared with the limit; infinite when nothing was answered, or it is not known."""
        streaming = measurement.streaming
        found = (measurement.latency,) if streaming is None else (streaming.chunk, streaming.final)
        known = [getattr(latency, f"{self.percentile}_ms") for latency in found if latency is not None]
        return max((math.inf if value is None else float(value) for value in known), default=math.inf)

    def breach(self, measurement: Measurement) -> Breach | None:
        """The first breach of the limit, None if there is none. What spoils the other figures comes first."""
        if measurement.failed:
            message, count = max(measurement.errors.items(), key=lambda item: item[1])
            return Breach(
                "errors",
                f"{measurement.failed} of {measurement.requests} requests failed, {count} with: {message}",
                is_narrow=measurement.failed < 0.01 * measurement.requests,
            )
        if self.max_wer is not None and measurement.wer is not None and measurement.wer > self.max_wer:
            return Breach("text", f"WER {100 * measurement.wer:.2f} %, at most {100 * self.max_wer:.2f} % is allowed")
        late, drift_ms = self._lateness(measurement), _drift_ms(measurement)
        if drift_ms and (late or drift_ms > _gross_ms(measurement)):
            cause = f"the generator sent chunks late by itself (p99 {drift_ms:.1f} ms)"
            advice = "give it more processes, or another machine"
            text = f"{late}, but {cause}; {advice}" if late else f"{cause}; {advice}"
            return Breach("generator", text, is_narrow=late is None or late.is_narrow)
        if late is not None and is_client_bound(measurement):
            used = f"{measurement.client_cpu:.2f} of {measurement.client_processes} cores"
            return Breach("generator", f"{late}, but the generator used {used}: it may be what was slow")
        return late

    def _lateness(self, measurement: Measurement) -> Breach | None:
        streaming, found = measurement.streaming, self.latency_ms(measurement)
        if math.isinf(found):
            return Breach("late", "nothing was answered")
        if found > self.limit_ms:
            text = f"{self.percentile} latency {found:.1f} ms, at most {self.limit_ms:g} ms is allowed"
            return Breach("late", text, is_narrow=found <= NARROW * self.limit_ms)
        if streaming is not None and streaming.in_time < self.in_time:
            text = (
                f"{100 * streaming.in_time:.2f} % of the chunks answered in time, {100 * self.in_time:g} % are needed"
            )
            return Breach("late", text, is_narrow=streaming.in_time >= 1 - 2 * (1 - self.in_time))
        return None


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """The result of a search.

    `measurements`: all, in the order in which they were made. `best`: of the largest load that kept the limit, None if
    none did. `breach`: why the next larger one that was tried did not, None if there is none. `complete` is False
    when the search was interrupted.
    """

    measurements: Sequence[Measurement]
    best: Measurement | None
    breach: Breach | None
    breach_load: int | None = None
    complete: bool = True
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        found = "no load kept the limit" if self.best is None else f"{self.best.load:g} is the largest load that did"
        if not self.complete:
            return f"interrupted; so far {found}"
        return f"{found}; {self.breach_load}: {self.breach}" if self.breach else f"{found}, and the largest to be tried"


@dataclass
class _Search:
    measure: Callable[[int], Measurement]
    limit: Limit
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sustains(self, load: int) -> tuple[Measurement | None, Breach | None]:
        """Measure a load, and once more what noise may have decided."""
        first, breach = self._once(load)
        if breach is None and first.stable:
            return first, None
        if breach is not None and not breach.is_narrow:
            return None, breach
        second, again = self._once(load)
        if again is None and not (second.stable or breach is None):
            # Once beyond the limit, once within it but restless: the benefit of the doubt would make lucky winners.
            again = Breach("late", f"not stable, and {breach} when measured before")
        if again is not None:
            return None, again
        if not second.stable:
            self.notes.append(f"load {load} kept the limit twice, but was not stable: see its notes")
        return second, None

    def _once(self, load: int) -> tuple[Measurement, Breach | None]:
        measurement = self.measure(load)
        self.measurements.append(measurement)
        return measurement, self.limit.breach(measurement)


def largest_load(
    measure: Callable[[int], Measurement], limit: Limit, start: int, maximum: int, *, precision: float = 0.05
) -> Ramp:
    """Search for the largest load that keeps a limit.

    Args:
        measure: measures one load; `KeyboardInterrupt` in it ends the search with what there is.
        limit: what must be kept.
        start, maximum: the first load to try and the largest, from 1.
        precision: the search ends when the gap is at most this share of the load, or one.

    Raises:
        ValueError: `start` is not from 1 to `maximum`.
    """
    if not 1 <= start <= maximum:
        raise ValueError(f"start must be from 1 to the maximum of {maximum}, got {start}")
    search = _Search(measure, limit)
    best: Measurement | None = None
    breach: Breach | None = None
    low, high, load = 0, maximum + 1, start
    complete = True
    try:
        while load > low:
            found, why = search.sustains(load)
            if found is not None:
                best, low = found, load
            else:
                breach, high = why, load
            load = _next(low, high, maximum, precision, doubling=breach is None)
    except KeyboardInterrupt as interrupt:
        complete = False
        if isinstance(interrupt, Interrupted) and interrupt.measurement is not None:
            search.measurements.append(interrupt.measurement)
    return Ramp(
        measurements=search.measurements,
        best=best,
        breach=breach,
        breach_load=high if breach else None,
        complete=complete,
        notes=search.notes,
    )


def _next(low: int, high: int, maximum: int, precision: float, *, doubling: bool) -> int:
    """The next load to try between one that is sustained and one that is not; `low` when they are close enough."""
    if doubling:
        return min(2 * low, maximum)
    return (low + high) // 2 if high - low > max(1, round(precision * low)) else low


def _drift_ms(measurement: Measurement) -> float:
    return measurement.sent_late.p99_ms if measurement.has_drifted and measurement.sent_late else 0.0


def _gross_ms(measurement: Measurement) -> float:
    """From where on streams were not those that were asked for. Below, a generator that is late makes figures worse and
    never better, so that a limit that is kept all the same is kept."""
    return max(10.0, 0.05 * measurement.streaming.chunk_ms) if measurement.streaming else 0.0
