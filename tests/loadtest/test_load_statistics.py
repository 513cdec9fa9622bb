"""What the server counts, from its own JSON and its metrics page."""

from collections import Counter
from typing import Any

import pytest

from tritone.loadtest.findings.statistics import Look, model_counters, server_side

MS = 1_000_000  # nanoseconds


def statistics(requests: int, queue_ms: int, infer_ms: int, batches: dict[int, int], text: bool = True) -> Any:
    """Triton's answer; over gRPC its 64-bit numbers are strings, and zeros are left out."""

    def number(value: int) -> Any:
        return str(value) if text else value

    return {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "inference_stats": {
                    "success": {"count": number(requests), "ns": number(99)},
                    "fail": {"count": number(3)},
                    "queue": {"count": number(requests), "ns": number(queue_ms * MS)},
                    "compute_input": {"count": number(requests), "ns": number(requests * MS)},
                    "compute_infer": {"count": number(requests), "ns": number(infer_ms * MS)},
                    "compute_output": {},
                },
                "batch_stats": [
                    {"batch_size": number(size), "compute_infer": {"count": number(count), "ns": number(1)}}
                    for size, count in batches.items()
                ],
            }
        ]
    }


@pytest.mark.parametrize("text", [True, False])
def test_the_difference_of_two_looks_is_what_happened_between(text: bool):
    before = Look.of(statistics(100, 500, 1000, {1: 20, 4: 20}, text))
    after = Look.of(statistics(140, 700, 1800, {1: 24, 4: 26, 12: 1}, text))
    side = before.until(after)
    assert (side.requests, side.failures) == (40, 0)
    assert side.queue_ms == pytest.approx(200 / 40)
    assert side.compute_input_ms == pytest.approx(1)
    assert side.compute_infer_ms == pytest.approx(800 / 40)
    assert side.compute_output_ms == 0
    assert side.batches == {1: 4, 4: 6, 12: 1}
    assert side.mean_batch == pytest.approx(40 / 11)
    assert side.padding_waste is None


def test_versions_of_a_model_add_up():
    one = statistics(10, 0, 0, {2: 5})
    one["model_stats"] += statistics(5, 0, 0, {1: 3, 2: 1})["model_stats"]
    look = Look.of(one)
    assert (look.requests, look.failures) == (15, 6)
    assert look.batches == Counter({2: 6, 1: 3})


def test_a_server_without_statistics_of_the_model_counts_nothing():
    assert Look.of({}) == Look(total_ns=dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 0))


def test_no_requests_have_no_means():
    look = Look.of(statistics(5, 7, 7, {}))
    assert look.until(look).queue_ms == 0


PAGE = """\
# HELP tritone_audio_seconds_total Seconds of audio
# TYPE tritone_audio_seconds_total counter
tritone_audio_seconds_total{model="m",version="1"} 30.5
tritone_audio_seconds_total{model="m",version="2"} 1.5
tritone_audio_seconds_total{model="m-streaming",version="1"} 1000
tritone_padding_seconds_total{version="1",model="m"} 8
tritone_broken{model="m"} what
nv_inference_request_success{model="m",version="1"} 1.2e+02
nv_odd{model="m",note="a \\"quoted\\", comma"} 4 1700000000
nv_gpu_power_usage 12
nv_without_labels{} 1
"""


def test_a_metrics_page_is_read_for_one_model():
    assert model_counters(PAGE.splitlines(), "m") == {
        "tritone_audio_seconds_total": 32.0,
        "tritone_padding_seconds_total": 8.0,
        "nv_inference_request_success": 120.0,
        "nv_odd": 4.0,
    }


def test_padding_waste_is_the_padded_share_of_what_was_computed():
    before = Look.of({}, {"tritone_audio_seconds_total": 2.0, "tritone_padding_seconds_total": 8.0})
    after = Look.of({}, {"tritone_audio_seconds_total": 32.0, "tritone_padding_seconds_total": 18.0})
    side = before.until(after)
    assert (side.audio_s, side.padding_s) == (30.0, 10.0)
    assert side.padding_waste == 0.25
    assert before.until(Look.of({}, {})).padding_waste is None


@pytest.mark.parametrize(("answered", "believed"), [(500, True), (495, True), (0, False), (900, False)])
def test_a_metrics_page_that_counts_other_answers_is_of_another_server(answered: int, believed: bool):
    def look(requests: int, counted: float, audio_s: float) -> Look:
        metrics = {"nv_inference_request_success": counted, "tritone_audio_seconds_total": audio_s}
        return Look.of(statistics(requests, 0, 0, {}), metrics | {"tritone_padding_seconds_total": 0.0})

    # At first both servers have answered about as many requests, as servers do that were started together.
    side, notes = server_side(look(100, 110, 200.0), look(600, 110 + answered, 700.0), 500, slack=20)
    assert side is not None
    assert side.audio_s == (500.0 if believed else None)
    assert any("metrics page is of another server" in note for note in notes) is not believed
