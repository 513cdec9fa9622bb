"""A model's counters without Triton: what is told when, and that trouble with them never reaches a request."""

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tritone.errors import AudioError, OperatorError, ServerBusyError
from tritone.pipelines.graphs.work_log import Work

ARGS = {"model_name": "demo", "model_version": "3", "model_instance_name": "demo_0_1"}
WORK = Work(audio_s=2.0, padding_s=0.5, calls=1, network_s=0.2, search_s=0.1)


class Server:
    """Stands for Triton: keeps values by family name and labels, and the lines that were logged."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.log: list[str] = []
        self.told = 0
        self.is_broken = False
        self.now = 0.0

    def family(self, name: str, description: str, kind: str) -> Any:
        def metric(labels: dict[str, str]) -> Any:
            key = (kind, name, *labels.values())
            self.values.setdefault(key, 0.0)

            def change(value: float, old: float) -> None:
                if self.is_broken:
                    raise RuntimeError("no metrics any more")
                self.told += 1
                self.values[key] = old + value

            return SimpleNamespace(
                increment=lambda value: change(value, self.values[key]), set=lambda value: change(value, 0.0)
            )

        return SimpleNamespace(Metric=metric)

    def read(self, name: str, *labels: str) -> float:
        (value,) = [v for k, v in self.values.items() if k[1] == name and set(labels) <= set(k)]
        return value


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def module(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    family = server.family
    family_type = SimpleNamespace(COUNTER="counter", GAUGE="gauge")
    utils = SimpleNamespace(
        MetricFamily=type(
            "MetricFamily",
            (),
            {**vars(family_type), "__new__": lambda cls, name, description, kind: family(name, description, kind)},
        ),
        Logger=SimpleNamespace(log_warn=server.log.append),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "tritone.backend.metrics", raising=False)
    yield importlib.import_module("tritone.backend.metrics")
    sys.modules.pop("tritone.backend.metrics", None)


def metrics_of(module: Any, server: Server, **options: Any) -> Any:
    return module.Metrics(ARGS, **{"clock": lambda: server.now, **options})


def test_a_batch_is_told_with_model_and_version(module: Any, server: Server) -> None:
    metrics_of(module, server).count(["ok", "ok", "bad_input"], WORK, 0.4)
    told = {key[1:]: value for key, value in server.values.items() if value}
    assert told == {
        ("tritone_audio_seconds_total", "demo", "3"): 2.0,
        ("tritone_padding_seconds_total", "demo", "3"): 0.5,
        ("tritone_network_calls_total", "demo", "3"): 1,
        ("tritone_network_seconds_total", "demo", "3"): 0.2,
        ("tritone_search_seconds_total", "demo", "3"): 0.1,
        ("tritone_execute_seconds_total", "demo", "3"): 0.4,
        ("tritone_model_starts_total", "demo", "3"): 1,
        ("tritone_requests_total", "demo", "3", "ok"): 2,
        ("tritone_requests_total", "demo", "3", "bad_input"): 1,
    }


def test_an_offline_model_has_no_streams(module: Any, server: Server) -> None:
    metrics_of(module, server)
    assert not any(key[0] == "gauge" for key in server.values)


def test_batches_in_quick_succession_are_told_together_and_none_is_lost(module: Any, server: Server) -> None:
    metrics = metrics_of(module, server)
    for _ in range(10):
        metrics.count(["ok"], WORK, 0.1)
    assert server.read("tritone_requests_total", "ok") == 1
    before = server.told
    server.now += module.INTERVAL_S
    metrics.count(["ok"], WORK, 0.1)
    assert server.told - before == 7
    assert server.read("tritone_requests_total", "ok") == 11
    assert server.read("tritone_audio_seconds_total") == pytest.approx(22.0)


def test_the_end_of_a_model_tells_the_rest(module: Any, server: Server) -> None:
    metrics = metrics_of(module, server, slots=8)
    assert server.read("tritone_stream_slots", "demo_0_1") == 8
    metrics.count(["ok"], WORK, 0.1, streams=3)
    metrics.count(["ok"], WORK, 0.1, streams=4)
    assert server.read("tritone_open_streams", "demo_0_1") == 3
    metrics.report()
    assert server.read("tritone_requests_total", "ok") == 2
    assert server.read("tritone_open_streams", "demo_0_1") == 0


def test_batches_that_triton_sends_to_warm_up_are_not_counted(module: Any, server: Server) -> None:
    metrics = metrics_of(module, server, warmups=2)
    for _ in range(3):
        server.now += 1
        metrics.count(["ok"], WORK, 0.1)
    assert server.read("tritone_requests_total", "ok") == 1


def test_a_triton_without_custom_metrics_serves_without_and_says_so_once(module: Any, server: Server) -> None:
    del sys.modules["triton_python_backend_utils"].MetricFamily
    metrics = metrics_of(module, server)
    for _ in range(3):
        server.now += 1
        metrics.count(["ok"], WORK, 0.1)
    assert server.values == {}
    (line,) = server.log
    assert "demo version 3 has no metrics of its own" in line
    assert "MetricFamily" in line


def test_a_triton_that_stops_taking_numbers_is_left_alone(module: Any, server: Server) -> None:
    metrics = metrics_of(module, server, slots=8)
    server.is_broken = True
    for _ in range(3):
        server.now += 1
        metrics.count(["ok"], WORK, 0.1)
    assert len(server.log) == 1
    assert server.read("tritone_requests_total", "ok") == 0


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ("a transcript", "ok"),
        (AudioError("empty"), "bad_input"),
        (ServerBusyError("full"), "refused"),
        (OperatorError("broken"), "failed"),
        (MemoryError(), "failed"),
    ],
)
def test_an_outcome_tells_whose_turn_it_is(module: Any, result: object, outcome: str) -> None:
    assert module.outcome_of(result) == outcome


def test_that_the_last_stream_has_ended_is_told_at_once(module: Any, server: Server) -> None:
    metrics = metrics_of(module, server, slots=8)
    metrics.count(["ok"], WORK, 0.1, streams=226)
    server.now += 0.01  # too soon after that to tell anything else
    metrics.count(["ok"], WORK, 0.1, streams=100)
    assert server.read(module.STREAMS) == 226
    metrics.count(["ok"], WORK, 0.1, streams=0)
    assert server.read(module.STREAMS) == 0
    assert server.read(module.REQUESTS, "ok") == 3
