"""Plans from invented reports, whose answers can be told by hand."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from load_reports import latency, measured, report, streams
from tritone.capacity.autoscaler import AutoscalerSettings, Target
from tritone.capacity.load import DAYS, Load, read_day
from tritone.capacity.page import tables_of, write_plan
from tritone.capacity.plan import make_plan, simulate_days
from tritone.capacity.replica import request_replica, stream_replica
from tritone.capacity.simulation import Arrivals, Fleet, simulate
from tritone.capacity.sizing import Goal, Hardware, erlang_b, refused_streams
from tritone.errors import InputError
from tritone.loadtest.findings.result import Report

# 5 s utterances: 2 a second with one in flight, 4 with two and with more.
CLOSED = report(
    measured(1, utterances=20, audio_s=100.0, requests=20),
    measured(2, utterances=40, audio_s=200.0, requests=40),
    measured(4, utterances=40, audio_s=200.0, requests=40),
    gpus=["A GPU"],
)
STREAMS = report(*(streams(count, p50_ms=1.5 * count) for count in (10, 50, 100)), streams(200, 400.0))
ONE = Hardware(gpus=1, cores=4, gpu_price=2.0)
FLAT = Load(utterances_per_hour=36_000, lengths="5")


def test_the_curve_of_a_replica_ends_where_more_requests_only_wait() -> None:
    found = request_replica(CLOSED)
    assert found.curve.rates == [10.0, 20.0]
    assert (found.lengths, found.mean_s, found.gpus, found.cores) == ("5", 5.0, 1, 4)
    assert found.notes == []


def test_doubts_about_the_measurements_come_with_the_replica() -> None:
    held = report(measured(2), measured(4, stable=False), measured(8, client_cpu=0.99), complete=False)
    text = " ".join(request_replica(held).notes)
    for words in (
        "smallest concurrency measured is 2",
        "1 of 3 measurements did not settle",
        "generator was busy",
        "still rising at the highest",
        "not complete",
    ):
        assert words in text


def test_streams_count_up_to_the_last_load_within_the_limit() -> None:
    found = stream_replica(STREAMS)  # a chunk has 640 ms; final texts have twice the latency of chunks
    assert found.slots == 100
    assert "200 streams" not in found.notes[0]
    assert "100 streams are the most" in found.notes[0]
    assert found.chunk_p95_ms[49] == pytest.approx(2 * 2 * 75.0)
    assert stream_replica(STREAMS, limit_ms=150).slots == 10
    with pytest.raises(InputError, match="already 10 streams did not keep"):
        stream_replica(STREAMS, limit_ms=1)


def test_reports_without_the_loop_that_is_needed_name_the_command() -> None:
    with pytest.raises(InputError, match=r"no measurements of requests.*--concurrency"):
        request_replica(STREAMS)
    with pytest.raises(InputError, match=r"no measurements of streams.*--streaming"):
        stream_replica(CLOSED)
    several = report(measured(1), measured(1, seconds="10"))
    with pytest.raises(InputError, match="several series of requests; name one of them with --series:\n  '5 s'\n"):
        request_replica(several)
    assert request_replica(several, series="10 s").lengths == "10"


def test_requests_are_sized_by_utilisation_and_latency() -> None:
    # 10 utterances a second are 50 s of audio a second; a replica has 20, of which 14 are used.
    plan = make_plan(request_replica(CLOSED), FLAT, Goal(), ONE, stamp=CLOSED.stamp)
    (now,) = plan.sizes
    assert (now.needed, now.replicas, now.gpus, now.cores) == (4, 5, 5, 20)
    assert now.streams == pytest.approx(50.0)
    assert now.utilisation == pytest.approx(0.5)
    assert now.cost_per_hour == 10.0
    assert now.cost_per_audio_hour == pytest.approx(10.0 / 50.0)
    # Alone an utterance takes 500 ms, so p95 <= 600 ms leaves hardly any load.
    tight = make_plan(request_replica(CLOSED), FLAT, Goal(limit_ms=600), ONE, stamp=CLOSED.stamp)
    assert tight.sizes[0].needed > 2 * now.needed
    assert tight.carries < plan.carries == pytest.approx(2.8)
    with pytest.raises(InputError, match="one replica without other load does not keep p95 <= 400 ms"):
        make_plan(request_replica(CLOSED), FLAT, Goal(limit_ms=400), ONE, stamp=CLOSED.stamp)


def test_streams_are_sized_so_that_few_are_refused() -> None:
    load = Load(utterances_per_hour=3600 * 200 / 60, lengths="60")  # 200 open on average
    for routing in ("least", "random"):
        plan = make_plan(
            stream_replica(STREAMS), load, Goal(refused=0.01), ONE, fleet=Fleet(routing=routing), stamp=STREAMS.stamp
        )
        needed = plan.sizes[0].needed
        assert refused_streams(200.0, 100, needed, routing) <= 0.01 < refused_streams(200.0, 100, needed - 1, routing)
    assert refused_streams(200.0, 100, 3, "least") == erlang_b(200.0, 300) < refused_streams(200.0, 100, 3, "random")


def test_growth_multiplies_the_load_year_by_year() -> None:
    plan = make_plan(request_replica(CLOSED), FLAT, Goal(), ONE, growth=1.0, years=2, stamp=CLOSED.stamp)
    assert [each.needed for each in plan.sizes] == [4, 8, 15]
    with pytest.raises(ValueError, match="growth is above -100 % a year"):
        make_plan(request_replica(CLOSED), FLAT, Goal(), ONE, growth=-1.0, stamp=CLOSED.stamp)


def test_arrivals_follow_the_shape_of_the_day() -> None:
    load = replace(FLAT, day=(0.0, 1.0), day_name="noon")
    assert load.mean_share == pytest.approx(0.5)
    found = load.arrivals(0.0, 86400.0)
    assert found.times.size == pytest.approx(36_000 * 12, rel=0.01)
    by_quarter = np.histogram(found.times, 4, (0, 86400))[0] / found.times.size
    assert by_quarter == pytest.approx([0.125, 0.375, 0.375, 0.125], abs=0.005)
    with pytest.raises(InputError, match="too many to simulate"):
        FLAT.grown(1000).arrivals(0.0, 86400.0)


def test_a_day_is_a_name_or_a_file(tmp_path: Path) -> None:
    assert read_day("office") == ("office", DAYS["office"])
    (tmp_path / "day.txt").write_text("1\n2\n", encoding="utf-8")
    assert read_day(str(tmp_path / "day.txt")) == ("day.txt", (1.0, 2.0))
    (tmp_path / "day.txt").write_text("-1\n2\n", encoding="utf-8")
    with pytest.raises(InputError, match="must hold numbers from 0"):
        read_day(str(tmp_path / "day.txt"))
    with pytest.raises(InputError, match="'night' is not one of flat, office and no file"):
        read_day("night")


AUTOSCALER = AutoscalerSettings(name="eager", least=1, most=8, targets=[Target(signal="open", value=40.0)])
SMALL = Load(utterances_per_hour=3600 * 100 / 300, lengths="300", day=DAYS["office"], day_name="office")


@pytest.fixture(scope="module")
def simulated() -> Any:
    plan = make_plan(stream_replica(STREAMS), SMALL, Goal(), ONE, fleet=Fleet(routing="random"), stamp=STREAMS.stamp)
    return simulate_days(
        plan, [AUTOSCALER, replace(AUTOSCALER, name="late", targets=[Target(signal="open", value=99.0)])]
    )


def test_autoscaling_costs_less_and_refuses_more_the_later_it_acts(simulated: Any) -> None:
    fixed, eager, late = simulated.days
    assert fixed.simulated.replica_s == pytest.approx(86400 * simulated.sizes[0].replicas)
    assert late.cost < eager.cost < fixed.cost
    assert fixed.simulated.refused_share <= 0.001
    assert late.simulated.refused_share > 10 * max(eager.simulated.refused_share, 1e-4)
    assert eager.simulated.arrived == fixed.simulated.arrived


def test_a_plan_is_written_in_every_form(simulated: Any, tmp_path: Path) -> None:
    files = write_plan(replace(simulated, title="<b>plan</b>"), tmp_path / "out")
    assert {each.name for each in files} >= {"plan.json", "plan.md", "plan.html", "day-0.png", "by-time.png"}
    found = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))
    assert found["sizes"][0]["replicas"] == simulated.sizes[0].replicas
    assert [each["name"] for each in found["days"]] == ["fixed", "eager", "late"]
    assert len(found["days"][1]["replicas_ready"]) == 288
    assert any("Autoscaling: decisions" in each for each in found["assumptions"])
    html = (tmp_path / "out" / "plan.html").read_text(encoding="utf-8")
    assert "<b>plan" not in html
    assert html.count("data:image/png") == 4
    assert "| late | 1-8 |" in (tmp_path / "out" / "plan.md").read_text(encoding="utf-8")


def test_days_that_refuse_too_much_are_marked(simulated: Any) -> None:
    _, days, _ = tables_of(simulated)
    assert days.tones == {2: "bad"}


def test_latency_of_streams_is_that_of_their_time() -> None:
    replica = stream_replica(STREAMS)
    occupancy = np.zeros(101)
    occupancy[10], occupancy[100] = 50.0, 5.0  # 500 stream-seconds each
    assert replica.streams_latency_ms(occupancy, 40) == pytest.approx(2 * 2 * 15.0)
    assert replica.streams_latency_ms(occupancy, 95) == pytest.approx(2 * 2 * 150.0)
    assert math.isnan(replica.streams_latency_ms(np.zeros(101), 95))


def test_short_utterances_in_place_of_long_ones_are_an_assumption() -> None:
    plan = make_plan(request_replica(CLOSED), replace(FLAT, lengths="2"), Goal(), ONE, stamp=CLOSED.stamp)
    assert any(re.search(r"measured with 5.0 s .* the load has 2.0 s", each) for each in plan.assumptions())


def test_measurements_of_one_load_count_once() -> None:
    twice = report(measured(1, p50_ms=10), measured(1, p50_ms=20, latency=latency(20)), measured(2))
    assert len(request_replica(twice).points) == 2


def test_closed_loops_of_a_real_report_predict_its_open_loops() -> None:
    held = Report.read(Path(__file__).parents[2] / "docs" / "performance" / "demo-cpu" / "report.json")
    replica = request_replica(held, series="7 s, dynamic")
    opened = [each for each in held.measurements if each.loop == "poisson"]
    assert [each.load for each in opened] == [5, 10, 20, 40]  # of 47 a second at most
    for each in opened:
        times = np.cumsum(np.random.default_rng(0).exponential(1 / each.load, 10_000))
        arrivals = Arrivals(times=times, lengths=np.full(times.size, 7.0))
        found = simulate(arrivals, replica.curve, replicas=1, end_s=float(times[-1]))
        # Measured for some seconds each, the rate as chance had it.
        assert found.latency_ms(50) == pytest.approx(each.latency.p50_ms, rel=0.2)
        assert found.latency_ms(95) == pytest.approx(each.latency.p95_ms, rel=0.3)
