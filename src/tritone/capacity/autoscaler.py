"""Kubernetes' HorizontalPodAutoscaler: its settings, read from a manifest, and its decisions.

    hpa.yaml (autoscaling/v2)  ->  AutoscalerSettings  ->  Controller.decide(...)  ->  replicas

Source: kubernetes/kubernetes, pkg/controller/podautoscaler: replica_calculator.go (`calcPlainMetricReplicas`) and
horizontal.go (`stabilizeRecommendationWithBehaviors`, `convertDesiredReplicasWithBehaviorRate`).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from tritone.capacity.simulation import Signal
from tritone.errors import InputError

KIND, VERSION = "HorizontalPodAutoscaler", "autoscaling/v2"
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance
DOWN_WINDOW_S = 300.0  # --horizontal-pod-autoscaler-downscale-stabilization
MAX_BYTES = 1_000_000  # of a manifest
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|)")
FACTORS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6}
# Metrics of Triton and Tritone, and of the adapter's rules in deploy/kubernetes.
SIGNALS: Mapping[str, Signal] = {
    "tritone_open_streams": "open",
    "nv_inference_pending_request_count": "waiting",
    "tritone_streams": "open",
    "tritone_queue_seconds": "queue-s",
}

Source = Literal["Pods", "Resource", "External"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is aimed at: a mean of `value` of a signal for each replica. External: of the sum over all, shared out."""

    signal: Signal
    value: float
    source: Source = "Pods"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """At most so many pods, or percent of those at its begin, more or fewer in any period."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: float


@dataclass(frozen=True, kw_only=True)
class Direction:
    """The rules for one direction: the window over which recommendations are stabilised, and the policies."""

    window_s: float
    policies: Sequence[Policy]
    select: Literal["Max", "Min", "Disabled"] = "Max"
    tolerance: float = TOLERANCE


UP = Direction(
    window_s=0.0,
    policies=(Policy(kind="Percent", value=100, period_s=15.0), Policy(kind="Pods", value=4, period_s=15.0)),
)
DOWN = Direction(window_s=DOWN_WINDOW_S, policies=(Policy(kind="Percent", value=100, period_s=15.0),))


@dataclass(frozen=True, kw_only=True)
class AutoscalerSettings:
    """The settings of one HorizontalPodAutoscaler; the defaults are those of Kubernetes."""

    name: str
    least: int = 1
    most: int
    targets: Sequence[Target]
    up: Direction = UP
    down: Direction = DOWN

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"{self.name}: minReplicas ({self.least}) must be from 1 to maxReplicas ({self.most})")
        if not self.targets:
            raise ValueError(f"{self.name}: no metric to scale by")


class Controller:
    """Decides as the controller of Kubernetes does, one call for each of its rounds.

    Replicas that start have no metrics yet ("missing"): they count as idle where more are wanted and as on target where
    fewer are. Of several metrics the one that wants most replicas wins.
    """

    def __init__(self, settings: AutoscalerSettings) -> None:
        self.settings = settings
        self._recommended: list[tuple[float, int]] = []
        self._ups: list[tuple[float, int]] = []
        self._downs: list[tuple[float, int]] = []

    def decide(self, now_s: float, current: int, pods: Sequence[Mapping[Signal, float]], starting: int) -> int:
        """See `simulation.Autoscaler`."""
        held = self.settings
        if not held.least <= current <= held.most:
            wanted = min(max(current, held.least), held.most)
        else:
            found = [self._proposed(each, current, pods, starting) for each in held.targets]
            wanted = self._limited(now_s, current, self._stabilised(now_s, current, max(found)))
        if wanted > current:
            self._ups.append((now_s, wanted - current))
        elif wanted < current:
            self._downs.append((now_s, current - wanted))
        longest = max((each.period_s for way in (held.up, held.down) for each in way.policies), default=0.0)
        self._ups, self._downs = (_since(events, now_s - longest) for events in (self._ups, self._downs))
        return wanted

    def _proposed(self, target: Target, current: int, pods: Sequence[Mapping[Signal, float]], starting: int) -> int:
        values = [each[target.signal] for each in pods]
        if not values:
            return current  # "did not receive metrics for targeted pods"
        if target.source == "External":
            wanted = sum(values) / target.value
            return current if self._is_near(wanted / current) else _ceil(wanted)
        ratio = sum(values) / (target.value * len(values))
        if not starting:
            return current if self._is_near(ratio) else _ceil(ratio * len(values))
        # For a share of a resource, pods without metrics count as using all of it where fewer are wanted.
        assumed = 0.0 if ratio > 1 else max(1.0, target.value) if target.source == "Resource" else target.value
        count = len(values) + starting
        whole = (sum(values) + starting * assumed) / (target.value * count)
        if self._is_near(whole) or (ratio < 1 < whole) or (whole < 1 < ratio):
            return current
        wanted = _ceil(whole * count)
        return current if (whole < 1 and wanted > current) or (whole > 1 and wanted < current) else wanted

    def _is_near(self, ratio: float) -> bool:
        return 1 - self.settings.down.tolerance <= ratio <= 1 + self.settings.up.tolerance

    def _stabilised(self, now_s: float, current: int, wanted: int) -> int:
        up, down = self.settings.up, self.settings.down
        least = min([wanted, *(count for when, count in self._recommended if when > now_s - up.window_s)])
        most = max([wanted, *(count for when, count in self._recommended if when > now_s - down.window_s)])
        self._recommended = _since(self._recommended, now_s - max(up.window_s, down.window_s))
        self._recommended.append((now_s, wanted))
        return min(max(current, least), most)

    def _limited(self, now_s: float, current: int, wanted: int) -> int:
        if wanted > current:
            limit = max(current, self._limit(now_s, current, self.settings.up, 1))
            return min(wanted, limit, self.settings.most)
        if wanted < current:
            limit = min(current, self._limit(now_s, current, self.settings.down, -1))
            return max(wanted, limit, self.settings.least)
        return current

    def _limit(self, now_s: float, current: int, way: Direction, sign: int) -> int:
        """The number that the policies of one direction allow; `sign` is 1 for up and -1 for down."""
        if way.select == "Disabled" or not way.policies:
            return current
        allowed = []
        for each in way.policies:
            added, removed = (
                sum(count for when, count in events if when > now_s - each.period_s)
                for events in (self._ups, self._downs)
            )
            start = current - added + removed
            if each.kind == "Pods":
                allowed.append(start + sign * each.value)
            else:
                # Rounded away from what there is, so that a small fleet can change at all; downwards too.
                share = start * (1 + sign * each.value / 100)
                allowed.append(_ceil(share) if sign > 0 else int(share))
        # "Max" selects the largest change, "Min" the smallest.
        return max(allowed) if (sign > 0) == (way.select == "Max") else min(allowed)


def read_autoscaler(path: Path, names: Mapping[str, Signal] | None = None) -> AutoscalerSettings:
    """Read a manifest, in a file that may hold other objects too.

    Args:
        path: YAML with one HorizontalPodAutoscaler of autoscaling/v2.
        names: the signals that its metrics have, by their names; in addition to `SIGNALS`.

    Raises:
        InputError: it cannot be read, or has something that is not simulated; the message names the field.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} has more than {MAX_BYTES} bytes; name the manifest of a {KIND}")
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:  # of what is nested too deeply
        raise InputError(f"{path} is no YAML: {error}") from error
    found = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    if len(found) != 1:
        raise InputError(f"{path} must hold one {KIND}, it has {len(found)}; for several give a file each")
    if found[0].get("apiVersion") != VERSION:
        raise InputError(f"{path}: apiVersion must be {VERSION}, got {found[0].get('apiVersion')!r}")
    try:
        return _settings(found[0], path.stem, {**SIGNALS, **(names or {})})
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a complete {KIND}: {error!r}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _settings(manifest: Mapping[str, Any], name: str, names: Mapping[str, Signal]) -> AutoscalerSettings:
    spec = manifest["spec"]
    behavior = spec.get("behavior") or {}
    return AutoscalerSettings(
        name=name,
        least=int(spec.get("minReplicas", 1)),
        most=int(spec["maxReplicas"]),
        targets=[_target(each, names) for each in spec.get("metrics") or ()],
        up=_direction(behavior.get("scaleUp"), UP),
        down=_direction(behavior.get("scaleDown"), DOWN),
    )


def _target(metric: Mapping[str, Any], names: Mapping[str, Signal]) -> Target:
    source = metric["type"]
    if source not in get_args(Source):
        raise ValueError(f"metrics of type {source} are not simulated, only {', '.join(get_args(Source))}")
    held = metric[source.lower()]
    name = held["name"] if source == "Resource" else held["metric"]["name"]
    if name not in names:
        known = ", ".join(get_args(Signal))
        raise ValueError(f"metric {name!r} is not known; say what it counts: --metric {name}=SIGNAL, one of {known}")
    target = held["target"]
    if source == "Resource":
        if target["type"] != "Utilization":
            raise ValueError(f"target of {name}: only type Utilization is simulated, got {target['type']!r}")
        value = float(target["averageUtilization"]) / 100
    elif target["type"] != "AverageValue":
        raise ValueError(f"target of {name}: only type AverageValue is simulated, got {target['type']!r}")
    else:
        value = quantity(target["averageValue"])
    if not value > 0:
        raise ValueError(f"target of {name} must be above 0, got {value:g}")
    return Target(signal=names[name], value=value, source=source)


def _direction(fields: Mapping[str, Any] | None, default: Direction) -> Direction:
    if not fields:
        return default
    found = default
    if fields.get("stabilizationWindowSeconds") is not None:
        found = replace(found, window_s=float(fields["stabilizationWindowSeconds"]))
    if fields.get("selectPolicy") is not None:
        if fields["selectPolicy"] not in ("Max", "Min", "Disabled"):
            raise ValueError(f"selectPolicy must be Max, Min or Disabled, got {fields['selectPolicy']!r}")
        found = replace(found, select=fields["selectPolicy"])
    if fields.get("tolerance") is not None:
        found = replace(found, tolerance=quantity(fields["tolerance"]))
    if fields.get("policies"):
        found = replace(found, policies=tuple(map(_policy, fields["policies"])))
    return found


def _policy(fields: Mapping[str, Any]) -> Policy:
    kind, value, period = fields["type"], int(fields["value"]), float(fields["periodSeconds"])
    if kind not in ("Pods", "Percent"):
        raise ValueError(f"a policy is of type Pods or Percent, got {kind!r}")
    if value < 1 or not 1 <= period <= 1800:
        raise ValueError(f"a policy has a value from 1 and periodSeconds from 1 to 1800, got {value} and {period:g}")
    return Policy(kind=kind, value=value, period_s=period)


def quantity(text: object) -> float:
    """Read a quantity of Kubernetes, such as 30, "500m" or "2k".

    Raises:
        ValueError: it is none, or has a suffix that counts bytes.
    """
    match = QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write a number, with m for thousandths or k for thousands")
    return float(match[1]) * FACTORS[match[2]]


def _since(events: Iterable[tuple[float, int]], when: float) -> list[tuple[float, int]]:
    return [each for each in events if each[0] > when]


def _ceil(value: float) -> int:
    # 3.0000000000000004 replicas are 3: Kubernetes counts in thousandths.
    return math.ceil(round(value, 6))
