"""One look at all counters of a server: statistics of its models, its metrics page, and the memory of its processes.

endpoint, metrics page  ->  Snapshot
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from tritone.client.endpoint import Endpoint
from tritone.client.transport import Transport, connect
from tritone.errors import TritoneError
from tritone.loadtest.findings.statistics import (
    TIMEOUT_S,
    Look,
    counters_by_model,
    default_metrics_url,
    metrics_page,
)
from tritone.net.prometheus import samples
from tritone.server.watch import model_of

STREAMS = "tritone_open_streams"
REQUESTS = "tritone_requests_total"
PENDING = "nv_inference_pending_request_count"
GAUGES = (STREAMS, PENDING)
THROUGH = "tritone_proxy_request_seconds_bucket"
SUMMARIES = {"nv_inference_request_summary_us": "latency", "nv_inference_queue_summary_us": "queue"}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Counters since the server started, by model, and what is now: sums over versions and processes.

    `unanswered`: requests to which the model itself answered with an error, which Triton counts as successful.
    `gpus`: utilisation 0..1, memory used and in all in bytes, by the id of the GPU. `memory`: bytes of the resident
    sets of a model's processes, where they run on this machine. `percentiles`: of the last minute or so, in
    milliseconds, by ("latency" or "queue", percent); of several versions the largest. `through`: requests and chunks
    that passed the proxy in at most so many seconds, as a histogram counts them.
    """

    time_s: float
    looks: Mapping[str, Look]
    gauges: Mapping[str, Mapping[str, float]]
    unanswered: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    max_batch_sizes: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    percentiles: Mapping[str, Mapping[tuple[str, int], float]] = field(default_factory=dict)
    through: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    has_metrics: bool = True


class Monitor:
    """Looks at one server.

    Args:
        endpoint: of its HTTP or gRPC port.
        metrics_url: its metrics page; None tries port 8002 of the same host.
    """

    def __init__(self, endpoint: Endpoint, metrics_url: str | None = None) -> None:
        self._endpoint = endpoint
        self.metrics_url = metrics_url or default_metrics_url(endpoint)
        self._transport: Transport | None = None
        self._max_batch_sizes: dict[str, int] = {}

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.close()

    def look(self) -> Snapshot:
        """The counters now.

        Raises:
            TritoneError: the server does not answer.
        """
        if self._transport is None:
            self._transport = connect(self._endpoint)
        found: defaultdict[str, list[dict[str, object]]] = defaultdict(list)
        for entry in self._transport.statistics("", TIMEOUT_S):
            found[str(entry["name"])].append(entry)
        page = metrics_page(self.metrics_url)
        counters = counters_by_model(page)
        return Snapshot(
            time_s=time.monotonic(),
            looks={name: Look.of({"model_stats": entries}, counters.get(name)) for name, entries in found.items()},
            gauges={name: {key: each[key] for key in GAUGES if key in each} for name, each in counters.items()},
            unanswered=_unanswered(page),
            memory=memory_of_models(self._endpoint.port) if self._endpoint.is_loopback else {},
            max_batch_sizes={name: self._max_batch_size(self._transport, name) for name in found},
            gpus=_gpus(page),
            percentiles=_percentiles(page),
            through=_through(page),
            has_metrics=bool(page),
        )

    def _max_batch_size(self, transport: Transport, model: str) -> int:
        if model not in self._max_batch_sizes:
            try:
                config = transport.model_config(model, TIMEOUT_S)
            except TritoneError:  # it was unloaded just now
                return 0
            self._max_batch_sizes[model] = int(config.get("max_batch_size", 0))
        return self._max_batch_sizes[model]


def memory_of_models(port: int) -> dict[str, int]:
    """Resident bytes of the processes of each model of the server that listens on a port of this machine.

    Processes of other users, which cannot be looked into, count nothing.
    """
    found: Counter[str] = Counter()
    servers: dict[int, bool] = {}
    for process in psutil.process_iter():
        try:
            model = model_of(process)
            if model is not None and any(_listens(each, port, servers) for each in process.parents()):
                found[model[0]] += process.memory_info().rss
        except psutil.Error:  # it ended just now, or belongs to somebody else
            continue
    return dict(found)


def _listens(process: psutil.Process, port: int, known: dict[int, bool]) -> bool:
    if process.pid not in known:
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            connections = []
        known[process.pid] = any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)
    return known[process.pid]


def _percentiles(page: Sequence[str]) -> dict[str, dict[tuple[str, int], float]]:
    found: defaultdict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for name, labels, value in samples(page):
        if (what := SUMMARIES.get(name)) and "quantile" in labels and not math.isnan(value):  # nothing came lately
            of_model, key = found[labels.get("model", "")], (what, round(100 * float(labels["quantile"])))
            of_model[key] = max(of_model.get(key, 0.0), value / 1000)
    return found


def _through(page: Sequence[str]) -> dict[str, dict[float, float]]:
    found: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for name, labels, value in samples(page):
        if name == THROUGH:
            found[labels["model"]][float(labels["le"])] += value  # of both kinds
    return {model: dict(counts) for model, counts in found.items()}


def _unanswered(page: Sequence[str]) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for name, labels, value in samples(page):
        if name == REQUESTS and labels.get("outcome") != "ok":
            found[labels.get("model", "")] += value
    return found


def _gpus(page: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, labels, value in samples(page):
        if name.startswith("nv_gpu_") and "gpu_uuid" in labels:
            found[labels["gpu_uuid"]][name] = value
    return {
        uuid: (each.get("nv_gpu_utilization", 0.0), each["nv_gpu_memory_used_bytes"], each["nv_gpu_memory_total_bytes"])
        for uuid, each in found.items()
        if {"nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"} <= each.keys()
    }
