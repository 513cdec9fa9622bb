"""Invented load tests: round figures whose tables, plots and comparisons can be told without running our code."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tritone.loadtest.findings.result import Latency, Loop, Measurement, Report, ServerSide, Streaming
from tritone.report.stamp import Stamp

HOSTILE = "<script>alert(1)</script> | $x_1$ \x1b[31m \u202e\nnext"

STAMP = Stamp(
    command="tritone bench run",
    date="2026-01-02 03:04 UTC",
    commit="1a2b3c4",
    processor="A processor",
    cores=4,
    memory_gib=16.0,
    system="An OS, Python 3.11.7",
    versions={"tritone": "0.1.0", "onnxruntime": "1.20.0"},
    load=0.1,
)


def latency(p50_ms: float) -> Latency:
    """p50, and multiples of it: p90 1.5, p95 2, p99 3, at most 4."""
    return Latency(
        count=100,
        mean_ms=1.1 * p50_ms,
        p50_ms=p50_ms,
        p90_ms=1.5 * p50_ms,
        p95_ms=2 * p50_ms,
        p99_ms=3 * p50_ms,
        max_ms=4 * p50_ms,
    )


def server(queue_ms: float = 2.0) -> ServerSide:
    return ServerSide(
        requests=100,
        failures=0,
        queue_ms=queue_ms,
        compute_input_ms=1.0,
        compute_infer_ms=10.0,
        compute_output_ms=0.5,
        batches={1: 10, 4: 20},
        audio_s=75.0,
        padding_s=25.0,
    )


def measured(load: float = 1.0, loop: Loop = "closed", p50_ms: float = 20.0, **changes: Any) -> Measurement:
    """Ten utterances of 5 s per second and unit of load, for 10 s; a WER of 5 % over 200 words."""
    utterances = int(100 * load)
    point = Measurement(
        model="asr",
        protocol="grpc",
        loop=loop,
        load=load,
        seconds="5",
        wall_s=10.0,
        requests=utterances,
        utterances=utterances,
        audio_s=5.0 * utterances,
        latency=latency(p50_ms),
        client_ms=0.5,
        client_cpu=0.1,
        windows=3,
        server=server(),
        wer=0.05,
        wer_words=200,
    )
    return replace(point, **changes)


def failed(load: float, message: str = "no", **changes: Any) -> Measurement:
    """Forty requests, all of which failed."""
    nothing: dict[str, Any] = {"latency": None, "utterances": 0, "audio_s": 0.0, "wer": None, "wer_words": 0}
    return measured(load, errors={message: 40}, requests=40, **nothing, **changes)


def streams(count: int, p50_ms: float = 30.0, in_time: float = 1.0, **changes: Any) -> Measurement:
    streaming = Streaming(
        streams=count,
        chunk_ms=640.0,
        first_partial=latency(700.0),
        chunk=latency(p50_ms),
        final=latency(2 * p50_ms),
        in_time=in_time,
        drift_ms=0.5,
    )
    return measured(float(count), "streaming", p50_ms, seconds="files", streaming=streaming, **changes)


def report(*measurements: Measurement, gpus: Sequence[str] = (), **changes: Any) -> Report:
    return replace(Report(stamp=replace(STAMP, gpus=gpus), measurements=measurements), **changes)


def labelled(**labels: str) -> Mapping[str, Any]:
    """The argument that gives a measurement these labels."""
    return {"labels": labels}
