"""The server's own counters during a measurement: Triton's statistics of a model, and the model's metrics.

    before, after  ->  ServerSide (queue, compute, batches, padding)

Counters only ever grow, so that the difference of two looks is what happened between them. An ensemble counts its
requests alone; queues, batches and audio are counted by its stages.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tritone.client.endpoint import Endpoint
from tritone.client.transport import Transport, connect
from tritone.errors import TritoneError
from tritone.loadtest.findings.result import ServerSide
from tritone.loadtest.senders.wire import Target
from tritone.net.address import joined
from tritone.net.fetch import fetch
from tritone.net.prometheus import samples

TIMEOUT_S = 5.0
METRICS_PORT = 8002  # Triton's own
AUDIO, PADDING = "tritone_audio_seconds_total", "tritone_padding_seconds_total"
ANSWERED = "nv_inference_request_success"
FOREIGN = 1.05  # times our requests may be what the server counted
SLACK = 20  # answers between reading the statistics and the metrics
DURATIONS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, kw_only=True)
class Look:
    """Triton's counters of a model at some time, all versions of it together."""

    requests: int = 0
    failures: int = 0
    cached: int = 0  # requests that a cache answered
    batches: Counter[int] = field(default_factory=Counter)  # calls of the model by their size
    total_ns: Mapping[str, int] = field(default_factory=dict)  # of all requests
    answered: float | None = None  # `requests` according to the metrics page; None if there is no such page
    audio_s: float | None = None  # the model's own counters, on the same page
    padding_s: float | None = None
    stages: tuple["Look", ...] = ()  # of an ensemble

    @classmethod
    def of(
        cls,
        statistics: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        stages: Iterable["Look"] = (),
    ) -> "Look":
        """Read `model_stats` in Triton's JSON form (numbers may be strings), and the counters by name."""
        metrics = metrics or {}
        entries = statistics.get("model_stats", [])
        batches: Counter[int] = Counter()
        for entry in entries:
            for batch in entry.get("batch_stats", []):
                batches[int(batch["batch_size"])] += _number(batch.get("compute_infer"), "count")
        of_kind = [entry.get("inference_stats", {}) for entry in entries]
        return cls(
            requests=sum(_number(each.get("success"), "count") for each in of_kind),
            failures=sum(_number(each.get("fail"), "count") for each in of_kind),
            cached=sum(_number(each.get("cache_hit"), "count") for each in of_kind),
            batches=batches,
            total_ns={name: sum(_number(each.get(name), "ns") for each in of_kind) for name in DURATIONS},
            answered=metrics.get(ANSWERED),
            audio_s=metrics.get(AUDIO),
            padding_s=metrics.get(PADDING),
            stages=tuple(stages),
        )

    def until(self, later: "Look") -> ServerSide:
        """What happened between this look and a later one.

        The metrics count if their page saw as many answers as the statistics: there may be another Triton on that port.
        """
        requests = later.requests - self.requests
        answered = _difference(self.answered, later.answered)
        is_same = answered is None or abs(answered - requests) <= SLACK + (FOREIGN - 1) * requests
        # A request that failed has waited too, but Triton counts the times of those that succeeded.
        mean_ms = {
            name: (later.total_ns.get(name, 0) - self.total_ns.get(name, 0)) / max(1, requests) / 1e6
            for name in DURATIONS
        }
        sizes = {size: count - self.batches[size] for size, count in sorted(later.batches.items())}
        side = ServerSide(
            requests=requests,
            failures=later.failures - self.failures,
            batches={size: count for size, count in sizes.items() if count > 0},
            audio_s=_difference(self.audio_s, later.audio_s) if is_same else None,
            padding_s=_difference(self.padding_s, later.padding_s) if is_same else None,
            **{f"{name}_ms": milliseconds for name, milliseconds in mean_ms.items()},
        )
        return _of_stages(side, [one.until(other) for one, other in zip(self.stages, later.stages, strict=True)])


def _of_stages(ensemble: ServerSide, stages: list[ServerSide]) -> ServerSide:
    """An ensemble with the times of its stages added up, and the batches and the audio of the one with the network."""
    if not stages:
        return ensemble
    # It counts the audio; without the models' own metrics it is the one that computes longest.
    network = max(stages, key=lambda each: (each.audio_s or 0.0, each.compute_infer_ms * each.requests))
    times: Any = {
        name: sum(getattr(each, name) * each.requests for each in stages) / max(1, ensemble.requests)
        for name in (f"{each}_ms" for each in DURATIONS)
    }
    return replace(ensemble, batches=network.batches, audio_s=network.audio_s, padding_s=network.padding_s, **times)


class ServerWatch:
    """Reads one model's counters.

    Args:
        target: the model.
        metrics_url: where the server's Prometheus metrics are; None tries port 8002 of the same host.
    """

    def __init__(self, target: Target, metrics_url: str | None = None) -> None:
        self._target = target
        self._transport: Transport | None = None
        self.metrics_url = metrics_url or default_metrics_url(target.endpoint)
        self._has_metrics = True

    def __enter__(self) -> "ServerWatch":
        return self

    def __exit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.close()

    def look(self) -> Look | None:
        """The counters now; None when the server does not give them."""
        models = (*self._target.stages, self._target.model)
        statistics = [found for model in models if (found := self._statistics(model)) is not None]
        if len(statistics) < len(models):
            return None
        page = self._metrics_page()
        *stages, own = zip(statistics, (model_counters(page, model) for model in models), strict=True)
        self._has_metrics = bool(own[1])
        return Look.of(*own, stages=[Look.of(*each) for each in stages])

    def _statistics(self, model: str) -> Mapping[str, Any] | None:
        if self._transport is None:
            self._transport = connect(self._target.endpoint)
        try:
            return {"model_stats": self._transport.statistics(model, TIMEOUT_S)}
        except TritoneError:
            return None

    def _metrics_page(self) -> list[str]:
        # Asked once in vain is enough: a closed port may cost seconds.
        return metrics_page(self.metrics_url) if self._has_metrics else []


def server_side(
    before: Look | None, after: Look | None, requests: int, slack: float
) -> tuple[ServerSide | None, list[str]]:
    """What the server counted between two looks, and remarks on it.

    Args:
        before, after: the looks; None for one that failed.
        requests: how many were ours in that time.
        slack: how many may be counted on one side alone, because a look takes a moment while requests go on.
    """
    if before is None or after is None:
        return None, ["the server gave no statistics of its own"]
    side = before.until(after)
    if side.requests < 0:
        return None, ["the server's counters went backwards: it was started again meanwhile"]
    notes = []
    counted = side.requests + side.failures
    if counted > FOREIGN * requests + slack:
        notes.append(f"somebody else used the model too: the server counted {counted} requests, {requests} were ours")
    if side.audio_s is None and before.audio_s is not None and after.audio_s is not None:
        notes.append("the metrics page is of another server, so padding is not known; name the right one")
    if after.cached > before.cached:
        notes.append(f"{after.cached - before.cached} requests were answered by the server's response cache")
    return side, notes


def default_metrics_url(endpoint: Endpoint) -> str:
    """Where the metrics of a server usually are: on Triton's own port of the same host."""
    return f"http://{joined(endpoint.host, METRICS_PORT)}/metrics"


def metrics_page(url: str) -> list[str]:
    """The lines of a Prometheus page; none if there is no such page."""
    with suppress(OSError, ValueError):
        answer = fetch(url, timeout_s=TIMEOUT_S)
        if answer.status == 200:
            return answer.body.decode("utf-8", "replace").splitlines()
    return []


def counters_by_model(lines: Iterable[str]) -> dict[str, dict[str, float]]:
    """The samples of a Prometheus page with a label `model`, by model and metric; versions are added up."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in samples(lines):
        if "model" in labels:
            of_model = found.setdefault(labels["model"], {})
            of_model[name] = of_model.get(name, 0.0) + value
    return found


def model_counters(lines: Iterable[str], model: str) -> dict[str, float]:
    """The samples of a Prometheus page whose label `model` is that name, by metric; versions are added up."""
    return counters_by_model(lines).get(model, {})


def _number(fields: Mapping[str, Any] | None, name: str) -> int:
    return int((fields or {}).get(name, 0))


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
