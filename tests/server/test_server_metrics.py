"""Metrics of `tritone serve` where nothing runs yet, and of a repository that is looked at."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tritone.errors import ServerUnreachableError
from tritone.net.prometheus import text
from tritone.server.metrics import ServerMetrics


def lines(metrics: ServerMetrics) -> list[str]:
    return [line for line in text(metrics.all()).splitlines() if not line.startswith("#")]


def running(models: list[dict[str, str]] | None, preparing: Path | None = None) -> Any:
    def asked(timeout_s: float) -> list[dict[str, str]]:
        if models is None:
            raise ServerUnreachableError("no answer")
        return models

    options = SimpleNamespace(has_control=True)
    return SimpleNamespace(options=options, control=SimpleNamespace(models=asked), preparing=preparing)


def test_starts_are_counted_from_the_first_and_models_asked_for_while_triton_runs() -> None:
    metrics = ServerMetrics()
    assert not any("starts" in line or "ready" in line or "repository" in line for line in lines(metrics))
    states = ("READY", "UNAVAILABLE"), ("UNAVAILABLE", "READY"), ("UNAVAILABLE", None)
    listed = [
        {"name": f"m{number}"} | ({"state": state} if state else {})
        for number, pair in enumerate(states)
        for state in pair
    ]
    metrics.started(running([*listed, {"name": "_draining", "state": "UNAVAILABLE"}]))
    found = lines(metrics)
    assert "tritone_server_starts_total 1.0" in found
    ready = [line for line in found if line.startswith("tritone_model_ready")]
    assert ready == [f'tritone_model_ready{{model="m{number}"}} {value:.1f}' for number, value in enumerate((1, 1, 0))]
    metrics.ended()
    metrics.started(running(None))  # it stands still: nothing is known of its models
    assert "tritone_server_starts_total 2.0" in lines(metrics)
    assert not any("ready" in line for line in lines(metrics))


def test_models_that_answer_and_still_prepare_are_told(tmp_path: Path) -> None:
    for name, state in {"a@1@0": "compiling 2 of 5", "b@3@0": "ready"}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"state": state}), encoding="utf-8")
    metrics = ServerMetrics()
    metrics.started(running([], tmp_path))
    assert [line for line in lines(metrics) if line.startswith("tritone_model_preparing")] == [
        'tritone_model_preparing{model="a",version="1"} 1.0',
        'tritone_model_preparing{model="b",version="3"} 0.0',
    ]


@pytest.mark.parametrize("reachable", [True, False])
def test_what_a_repository_in_storage_did_is_told(reachable: bool) -> None:
    updates: Any = SimpleNamespace(reachable=reachable, rejected={"b", "a"})
    found = [line for line in lines(ServerMetrics(updates)) if line.startswith("tritone_repository")]
    assert found == [
        f"tritone_repository_reachable {reachable:.1f}",
        'tritone_repository_version_rejected{model="a"} 1.0',
        'tritone_repository_version_rejected{model="b"} 1.0',
    ]
