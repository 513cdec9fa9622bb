"""Bundles on a real Triton, and loads that our own load test sends it.

[Served(name, bundle, mode, options), ...]  ->  one server  ->  measured(server, name, load)  ->  row
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

from benchmarks.endurance.deployment import Deployment
from benchmarks.gpu.audio import workload
from tritone.client import Client
from tritone.loadtest.findings.result import Measurement
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.plans.build_options import BuildOptions
from tritone.loadtest.plans.generator import find_target
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.streams.measure import measure_streams
from tritone.repository import build_repository
from tritone.server import ServerOptions, TritonServer

WARM_UP_S = 1.5
GENERATOR_SHARE = 0.6  # of the cores, of streams
STREAM_TIMEOUT_S = 10.0
SPREAD_S = 5.0  # over which streams start
WINDOWS = 3


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A bundle under a name. `options`: fields of `BuildOptions`."""

    name: str
    bundle: Path
    streaming: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server: its address of gRPC, its metrics and its process, below which all others are."""

    grpc: str
    metrics_url: str
    pid: int


@contextmanager
def serving(
    models: Sequence[ServedModel], *, mps: bool = False, supervised: bool = False, log: TextIO | None = None
) -> Iterator[Server]:
    """Serve models together; ready when entered, gone when left.

    Args:
        mps: with CUDA's Multi-Process Service.
        supervised: by `tritone serve`, which starts again what dies; else by Triton alone.
        log: where Triton's log goes, if it is alone.
    """
    with tempfile.TemporaryDirectory(prefix="tritone-gpu-") as folder:
        repository = Path(folder) / "repository"
        for model in models:
            build_repository(
                [model.bundle],
                repository,
                names=[model.name],
                modes="streaming" if model.streaming else "offline",
                options=BuildOptions(**model.options),
                link=True,
            )
        if supervised:
            with Deployment(repository, Path(folder), ("--mps",) if mps else ()) as deployment:
                yield Server(
                    grpc=deployment.grpc, metrics_url=f"http://{deployment.metrics}/metrics", pid=deployment.pid
                )
        else:
            options = ServerOptions.on_free_ports(mps=mps)
            with TritonServer(repository, options, log=log) as server:
                metrics = f"http://{options.address('metrics')}/metrics"
                yield Server(grpc=server.grpc_address, metrics_url=metrics, pid=server.pid)


def options_of(device: str, precision: str, given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Fields of `BuildOptions` for a model: the product's own defaults but for where and in what it computes."""
    known = {each.name for each in fields(BuildOptions)}
    place = "gpu" if device.startswith("cuda") else "cpu"
    found = {"device": place, "runtime": "torch", "precision": precision}
    return {**found, **more, **{name: value for name, value in given.items() if name in known}}


def measured(
    server: Server, model: str, load: int, kind: str, seconds: float, wire: str = "float32", *, batch_size: int = 1
) -> dict[str, Any]:
    """So many requests in flight; `kind` of audio as of `audio.workload`, which travels as float32 or int16."""
    target = target_of(server, model, wire, streaming=False)
    options = _options(server, seconds, batch_size=batch_size)
    found = measure_closed(target, workload(kind, target.sample_rate), load, options)
    return _row(found, target, audio=kind)


def measured_streams(
    server: Server, model: str, streams: int, chunk_ms: float, seconds: float, wire: str = "float32"
) -> dict[str, Any]:
    """So many streams in real time."""
    target = target_of(server, model, wire, streaming=True)
    # A process plays some 1,500 chunks a second, so thousands of streams need more of them than is usual.
    processes = max(1, round(GENERATOR_SHARE * len(os.sched_getaffinity(0))))
    options = _options(
        server, seconds, STREAM_TIMEOUT_S, chunk_ms=chunk_ms, start_spread_s=SPREAD_S, processes=processes
    )
    found = measure_streams(target, workload("10", target.sample_rate), streams, options)
    row = _row(found, target, audio="10")
    if found.streaming is not None:
        chunk, first, final = found.streaming.chunk, found.streaming.first_partial_chunk, found.streaming.final
        row |= {
            "streams": streams,
            "in_time": found.streaming.in_time,
            "held_back": found.streaming.held_back,
            "drift_ms": found.streaming.drift_ms,
            "chunk_p50_ms": chunk.p50_ms if chunk else None,
            "chunk_p95_ms": chunk.p95_ms if chunk else None,
            "chunk_p99_ms": chunk.p99_ms if chunk else None,
            "first_p95_ms": first.p95_ms if first else None,
            "final_p95_ms": final.p95_ms if final else None,
        }
    return row


def target_of(server: Server, model: str, wire: str, *, streaming: bool) -> Any:
    """A model of a server, for the load test; audio travels as int16 where `wire` says so and the model takes it."""
    with Client(f"grpc://{server.grpc}") as client:
        target: Any = find_target(client, model, streaming=streaming)
    return replace(target, pcm=False) if wire == "float32" and hasattr(target, "pcm") else target


def _options(server: Server, seconds: float, timeout_s: float = 30.0, **more: Any) -> LoadOptions:
    windows = WindowPlan(
        warmup_s=WARM_UP_S,
        window_s=seconds / WINDOWS,
        max_window_s=seconds,
        stable_windows=WINDOWS,
        max_windows=WINDOWS,
    )
    return LoadOptions(windows=windows, metrics_url=server.metrics_url, timeout_s=timeout_s, drain_s=2.0, **more)


def _row(found: Measurement, target: Any, audio: str) -> dict[str, Any]:
    server, latency = found.server, found.latency
    return {
        "model": found.model,
        "load": found.load,
        "audio": audio,
        "wire": "int16" if getattr(target, "pcm", False) else "float32",
        "requests": found.requests,
        "errors": dict(found.errors),
        "utterances_s": found.throughput,
        "rtfx": found.rtfx,
        "mean_ms": latency.mean_ms if latency else None,
        "p50_ms": latency.p50_ms if latency else None,
        "p95_ms": latency.p95_ms if latency else None,
        "p99_ms": latency.p99_ms if latency else None,
        "batch": server.mean_batch if server else None,
        "queue_ms": server.queue_ms if server else None,
        "compute_ms": server.compute_infer_ms if server else None,
        "padding": server.padding_waste if server else None,
        "generator_cores": found.client_cpu,
        "stable": found.stable,
        "notes": [note[:300] for note in found.notes],
    }
