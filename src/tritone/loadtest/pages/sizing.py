"""How many replicas a load takes, from what one was measured to carry.

    Report  ->  sizing_of  ->  Table: loads, and the replicas for each

Streams that nobody may wait for are Erlang's loss system: the slots of all replicas are one pool if a stream goes to
the replica with the fewest. Requests wait, so a replica is asked for a share of its highest throughput.
"""

import math
from collections.abc import Mapping, Sequence

from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.findings.series import is_clean, is_client_bound, unit_of
from tritone.report.table import Cell, Column, Table

LOADS = (10, 100, 1000, 10_000)  # recordings that are spoken, or sent as fast as they are spoken, at the busiest time
UTILISATION = 0.7  # of a replica's highest throughput
REFUSED = 0.001  # the share of streams that may find no free slot
SPARE = 1  # replicas more, which may fail or drain
IN_TIME = 0.99


def sizing_of(report: Report) -> Table:
    """Table of replicas for loads of several sizes; no rows where nothing clean was measured of one server."""
    clean = [each for each in report.measurements if is_clean(each) and not is_client_bound(each)]
    columns = [Column("load", "at the busiest time"), Column("basis", "a replica carries"), Column("count", "replicas")]
    rows = [*_of_streams(clean), *_of_requests(clean)]
    return Table(f"Replicas for a load, {SPARE} to spare", columns, rows)


def slots_for(streams: float, refused: float = REFUSED) -> int:
    """The fewest slots of which streams that arrive independently, and do not wait, find none with this probability.

    Args:
        streams: how many there are on average: arrivals a second times their mean duration in seconds.
        refused: the share that may find all slots taken, above 0.

    Source: A. K. Erlang's formula B, 1917; the recursion over slots is exact and cannot overflow.
    """
    if streams < 0 or not refused > 0:
        raise ValueError(f"streams must be 0 or more and refused above 0, got {streams} and {refused}")
    slots, blocked = 0, 1.0
    while blocked > refused:
        slots += 1
        blocked = streams * blocked / (slots + streams * blocked)
    return slots


def replicas_for_streams(streams: float, slots: int) -> int:
    """The fewest replicas of so many slots that refuse at most `REFUSED` of streams that are `streams` on average."""
    return max(1, math.ceil(slots_for(streams) / slots))


def _of_streams(clean: Sequence[Measurement]) -> list[Mapping[str, Cell]]:
    kept = [each for each in clean if each.streaming is not None and each.streaming.in_time >= IN_TIME]
    if not kept:
        return []
    slots = int(max(each.load for each in kept))
    return [
        {
            "load": f"{load} streams",
            "basis": f"{slots} streams in time",
            "count": replicas_for_streams(load, slots) + SPARE,
        }
        for load in LOADS
    ]


def _of_requests(clean: Sequence[Measurement]) -> list[Mapping[str, Cell]]:
    closed = [each for each in clean if each.loop == "closed" and each.utterances]
    rates, load_unit, unit = [each.rtfx for each in closed if each.audio_s], "hours of audio an hour", "hours an hour"
    if not rates:
        load_unit = unit = f"{unit_of(closed)} a second"
        rates = [each.throughput for each in closed if not each.has_audio]
    if not rates:
        return []
    carried = UTILISATION * max(rates)
    return [
        {
            "load": f"{load} {load_unit}",
            "basis": f"{carried:.1f} {unit}, {UTILISATION:.0%} of its highest throughput",
            "count": math.ceil(load / carried) + SPARE,
        }
        for load in LOADS
    ]
