"""The autoscaler against cases whose answers Kubernetes' documentation and sources give."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tritone.capacity.autoscaler import (
    AutoscalerSettings,
    Controller,
    Direction,
    Policy,
    Target,
    quantity,
    read_autoscaler,
)
from tritone.errors import InputError

OPEN = Target(signal="open", value=10.0)
FREE_DOWN = Direction(window_s=0.0, policies=(Policy(kind="Percent", value=100, period_s=15.0),))


def controller(**changes: object) -> Controller:
    return Controller(AutoscalerSettings(**{"name": "asr", "most": 100, "targets": [OPEN], **changes}))


def pods(*values: float) -> list[dict[str, float]]:
    return [{"open": value, "busy": value, "queue-s": value} for value in values]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((10.0, 10.0), 2),
        ((11.0, 11.0), 2),  # within the tolerance of a tenth
        ((12.0, 11.0), 3),
        ((9.0, 9.0), 2),
        ((8.0, 9.0), 2),  # ceil(1.7)
        ((2.0, 2.0), 1),
        ((0.0, 0.0), 1),  # never below minReplicas
    ],
)
def test_desired_replicas_are_the_ceiling_of_the_ratio(values: tuple[float, ...], wanted: int) -> None:
    assert controller(down=FREE_DOWN).decide(0.0, 2, pods(*values), 0) == wanted


@pytest.mark.parametrize(
    ("value", "starting", "wanted"),
    [
        (30.0, 2, 2 + 2),  # 60 for 4 pods, two of them idle: 1.5 of 4 is 6, but 4 are there: see below
        (11.0, 2, 4),  # counted with idle pods the direction would change: stay
        (2.0, 2, 3),  # fewer: pods without metrics count as on target, 0.6 of 4
    ],
)
def test_pods_without_metrics_damp_the_change(value: float, starting: int, wanted: int) -> None:
    expected = 6 if value == 30.0 else wanted
    assert controller(down=FREE_DOWN).decide(0.0, 2 + starting, pods(value, value), starting) == expected


def test_without_any_metrics_nothing_changes() -> None:
    assert controller().decide(0.0, 3, [], 3) == 3


def test_a_resource_that_nobody_measured_counts_as_used_up_where_fewer_are_wanted() -> None:
    target = Target(signal="busy", value=0.5, source="Resource")
    found = controller(targets=[target], down=FREE_DOWN).decide(0.0, 4, pods(0.1, 0.1), 2)
    assert found == 4  # 0.1 + 0.1 + 1 + 1 of 4 x 0.5 changes the direction; on target it would be 0.6 of 4


def test_the_default_rules_add_four_pods_or_double_and_wait_five_minutes_to_take_away() -> None:
    held = controller()
    assert held.decide(0.0, 1, pods(1000.0), 0) == 5
    assert held.decide(15.0, 5, pods(*[1000.0] * 5), 0) == 10
    assert held.decide(30.0, 10, pods(*[1000.0] * 10), 0) == 20
    for round_ in range(20):  # the last one that wanted more was at 30 s
        assert held.decide(45.0 + 15 * round_, 20, pods(*[1.0] * 20), 0) == (20 if 45 + 15 * round_ < 330 else 2)


def test_the_example_of_the_documentation_takes_ten_percent_or_four_pods_a_minute() -> None:
    # "Horizontal Pod Autoscaling": 80 replicas, 10 wanted: 8 go, of 72 another 8 (7.2 rounded up), below 40 four.
    policies = (Policy(kind="Pods", value=4, period_s=60.0), Policy(kind="Percent", value=10, period_s=60.0))
    held = controller(least=10, down=Direction(window_s=0.0, policies=policies))
    replicas, found = 80, []
    for minute in range(12):
        replicas = held.decide(60.0 * minute, replicas, pods(*[0.0] * replicas), 0)
        assert held.decide(60.0 * minute + 30, replicas, pods(*[0.0] * replicas), 0) == replicas  # once a period
        found.append(replicas)
    assert found[:3] == [72, 64, 57]
    below = [each for each in found if each < 40]
    assert all(a - b == 4 for a, b in pairwise(below))


def test_select_policy_takes_the_smallest_change_or_none() -> None:
    policies = (Policy(kind="Pods", value=1, period_s=60.0), Policy(kind="Percent", value=50, period_s=60.0))
    for select, wanted in (("Max", 6), ("Min", 9), ("Disabled", 10)):
        way = Direction(window_s=0.0, policies=policies, select=select)
        assert controller(down=way).decide(0.0, 10, pods(*[0.0] * 10), 0) == (5 if select == "Max" else wanted)


def test_a_window_for_scaling_up_waits_until_all_recommendations_agree() -> None:
    held = controller(up=Direction(window_s=60.0, policies=(Policy(kind="Pods", value=100, period_s=15.0),)))
    assert held.decide(0.0, 2, pods(10.0, 10.0), 0) == 2
    assert [held.decide(15.0 * each, 2, pods(50.0, 50.0), 0) for each in (1, 2, 3)] == [2, 2, 2]
    assert held.decide(75.0, 2, pods(50.0, 50.0), 0) == 10


def test_of_several_metrics_the_one_that_wants_most_wins() -> None:
    targets = [OPEN, Target(signal="queue-s", value=5.0)]
    assert controller(targets=targets).decide(0.0, 2, [{"open": 1.0, "queue-s": 10.0}] * 2, 0) == 4


def test_limits_are_restored_at_once() -> None:
    assert controller(least=4, most=8).decide(0.0, 1, pods(0.0), 0) == 4
    assert controller(least=4, most=8).decide(0.0, 12, pods(*[99.0] * 12), 0) == 8


def test_an_external_metric_is_shared_out_over_all_replicas() -> None:
    target = Target(signal="open", value=10.0, source="External")
    assert controller(targets=[target]).decide(0.0, 4, pods(30.0, 31.0), 2) == 7


MANIFEST = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "asr"},
    "spec": {
        "minReplicas": 2,
        "maxReplicas": 10,
        "metrics": [
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "tritone_open_streams"},
                    "target": {"type": "AverageValue", "averageValue": "30"},
                },
            },
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}},
            },
        ],
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 30, "tolerance": "50m"},
            "scaleDown": {"selectPolicy": "Min", "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]},
        },
    },
}


def written(folder: Path, *changes: tuple[str, object]) -> Path:
    text = yaml.safe_dump(MANIFEST)
    manifest = yaml.safe_load(text)
    for path, value in changes:
        *parents, last = path.split(".")
        held = manifest
        for each in parents:
            held = held[int(each) if each.isdigit() else each]
        held[last] = value
    file = folder / "gentle.yaml"
    file.write_text("kind: Service\n---\n" + yaml.safe_dump(manifest), encoding="utf-8")
    return file


def test_a_manifest_is_read_with_the_defaults_of_kubernetes(tmp_path: Path) -> None:
    found = read_autoscaler(written(tmp_path), {"cpu": "busy"})
    assert (found.name, found.least, found.most) == ("gentle", 2, 10)
    assert found.targets == [
        Target(signal="open", value=30.0),
        Target(signal="busy", value=0.6, source="Resource"),
    ]
    assert (found.up.window_s, found.up.tolerance, len(found.up.policies)) == (30.0, 0.05, 2)
    assert found.down == Direction(
        window_s=300.0, policies=(Policy(kind="Pods", value=1, period_s=60.0),), select="Min"
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("apiVersion", "autoscaling/v1"), "apiVersion must be autoscaling/v2"),
        (("kind", "Deployment"), "must hold one HorizontalPodAutoscaler, it has 0"),
        (("spec.metrics.0.pods", {"metric": {"name": "x"}}), "--metric x=SIGNAL, one of open, occupied"),
        (("spec.metrics.0.type", "ContainerResource"), "metrics of type ContainerResource are not simulated"),
        (("spec.metrics.0.pods", {}), "not a complete HorizontalPodAutoscaler: KeyError"),
        (("spec.metrics", []), "no metric to scale by"),
        (("spec.maxReplicas", 1), "minReplicas .2. must be from 1 to maxReplicas .1."),
        (("spec.behavior.scaleDown.selectPolicy", "Mean"), "selectPolicy must be Max, Min or Disabled"),
        (("spec.behavior.scaleUp.tolerance", "1Gi"), "'1Gi' is not a quantity"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(tmp_path: Path, change: tuple[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_autoscaler(written(tmp_path, change), {"cpu": "busy"})


def test_files_that_are_no_manifest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_autoscaler(tmp_path / "none.yaml")
    (tmp_path / "wrong.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(InputError, match="is no YAML"):
        read_autoscaler(tmp_path / "wrong.yaml")


def test_quantities_have_suffixes_of_numbers() -> None:
    assert [quantity(each) for each in ("30", 30, "500m", "2k", "0.5")] == [30.0, 30.0, 0.5, 2000.0, 0.5]
