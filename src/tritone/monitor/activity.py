"""What the models of a server did between two looks at it.

Snapshot, Snapshot  ->  Activity: a ModelActivity for each model
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tritone.loadtest.findings.statistics import Look
from tritone.monitor.snapshot import PENDING, STREAMS, Snapshot
from tritone.net.prometheus import quantile

PERCENTILES = {
    "p50_ms": ("latency", 50),
    "p95_ms": ("latency", 95),
    "p99_ms": ("latency", 99),
    "queue_p95_ms": ("queue", 95),
}


@dataclass(frozen=True, kw_only=True)
class ModelActivity:
    """A model between two looks; None is not known. Times are means of the requests answered, in milliseconds.

    `requests_per_s` counts all, `failures_per_s` those of them that got an error. `fill`: rows of a batch ÷ the most
    that the model takes. `padding`: share of what the network computed that was padding. `audio_rate`: seconds of audio
    computed in a second. `p50_ms` to `p99_ms` and `queue_p95_ms`: percentiles over the last minute or so.
    `proxy_p50_ms` to `proxy_p99_ms`: of requests and chunks through the proxy, between the looks. `waiting`: requests
    in the queue now. `streams`: open now. `memory`: bytes of its processes.
    """

    model: str
    requests_per_s: float
    failures_per_s: float
    latency_ms: float | None = None
    queue_ms: float | None = None
    compute_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    queue_p95_ms: float | None = None
    proxy_p50_ms: float | None = None
    proxy_p95_ms: float | None = None
    proxy_p99_ms: float | None = None
    batch: float | None = None
    fill: float | None = None
    padding: float | None = None
    audio_rate: float | None = None
    waiting: int | None = None
    streams: int | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class Activity:
    """A server between two looks. `restarted`: its counters restarted, so rates are not known this time."""

    seconds: float
    models: tuple[ModelActivity, ...]
    gpus: Mapping[str, tuple[float, float, float]]
    restarted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def activity(before: Snapshot, after: Snapshot) -> Activity:
    """What happened from one look to a later one."""
    seconds = max(after.time_s - before.time_s, 1e-9)
    models = {name: _model(name, before, after, seconds) for name in sorted(after.looks)}
    return Activity(
        seconds=seconds,
        models=tuple(models.values()),
        gpus=after.gpus,
        restarted=any(
            name in before.looks and look.requests < before.looks[name].requests for name, look in after.looks.items()
        ),
    )


def _model(name: str, before: Snapshot, after: Snapshot, seconds: float) -> ModelActivity:
    look, gauges = after.looks[name], after.gauges.get(name, {})
    # A model that was loaded meanwhile, or whose server restarted, has counted everything since then.
    earlier = before.looks.get(name, Look())
    failed = after.unanswered.get(name, 0.0) - before.unanswered.get(name, 0.0)
    if look.requests < earlier.requests:
        earlier, failed = Look(), after.unanswered.get(name, 0.0)
    side = earlier.until(look)
    known: dict[str, Any] = {}
    if side.requests:
        compute = side.compute_input_ms + side.compute_infer_ms + side.compute_output_ms
        known = {"latency_ms": side.queue_ms + compute, "queue_ms": side.queue_ms, "compute_ms": compute}
    percentiles = after.percentiles.get(name, {})
    known |= {field: percentiles[key] for field, key in PERCENTILES.items() if key in percentiles}
    earlier_counts = before.through.get(name, {})
    counts = {bound: count - earlier_counts.get(bound, 0.0) for bound, count in after.through.get(name, {}).items()}
    if min(counts.values(), default=0.0) < 0:  # the proxy restarted, and has counted everything since then
        counts = dict(after.through[name])
    for percent in (50, 95, 99):
        if (seconds_of_it := quantile(counts, percent / 100)) is not None:
            known[f"proxy_p{percent}_ms"] = 1000 * seconds_of_it
    if side.batches:
        known["batch"] = side.mean_batch
        if after.max_batch_sizes.get(name):
            known["fill"] = side.mean_batch / after.max_batch_sizes[name]
    if side.audio_s is not None:
        known["padding"] = side.padding_waste
        if look.audio_s:  # a model that never received any may take none
            known["audio_rate"] = side.audio_s / seconds
    for field, gauge in (("streams", STREAMS), ("waiting", PENDING)):
        if gauge in gauges:
            known[field] = int(gauges[gauge])
    return ModelActivity(
        model=name,
        requests_per_s=(side.requests + side.failures) / seconds,
        failures_per_s=(side.failures + failed) / seconds,
        memory=after.memory.get(name),
        **known,
    )
