"""What `tritone plan` predicts for two replicas, beside what two replicas do.

    python -m benchmarks.capacity [--repeats 3] [--output FILE.json]

One replica is measured in closed loops, which is all that the prediction gets. Then nginx spreads random arrivals over
two Tritons. The model waits in place of computing, because two replicas that compute would share the cores of this
machine. Streams, whose starts are random too, go to one of two replicas with few slots, and are refused where there is
none. Prints every repeat, and writes the JSON with its conditions and the page beside it (FILE.md).
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from statistics import median
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

from benchmarks import echo
from benchmarks.measure import ROOT, Bystanders, Cell, Finding, Setup, save, to_markdown
from benchmarks.served import MODEL, serving
from tritone.bundle import Bundle
from tritone.capacity.replica import Replica, request_replica
from tritone.capacity.simulation import Arrivals, Fleet, Routing, ServiceCurve, simulate
from tritone.capacity.sizing import refused_streams
from tritone.client import Client
from tritone.client.endpoint import Endpoint
from tritone.errors import ServerBusyError
from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.offline import measure_closed, measure_open
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload, speech_workload
from tritone.report.stamp import Stamp
from tritone.repository.config import ModelOptions
from tritone.server import TritonServer, free_ports

SECONDS = "2"
CONCURRENCIES = (1, 2, 4, 8, 16)
SHARES = (0.3, 0.6, 0.85)  # of the highest throughput of two replicas
BATCH_S, ROW_S = 0.06, 0.02  # that the model waits for a batch, and for each row of it
OPTIONS = ModelOptions(queue_delay_ms=0, max_batch_size=8, max_streams=4)
CLOSED = WindowPlan(warmup_s=1.0, window_s=2.0, max_windows=4)
OPEN = WindowPlan(warmup_s=3.0, window_s=10.0, max_windows=2, judge_throughput=False)
PREDICTED = 60_000  # arrivals of a prediction
BALANCING: dict[Routing, str] = {"round-robin": "", "least": "least_conn;"}
BAR = 0.25  # how far a predicted latency may be off, as a share of the measured one
SLOTS, STREAM_S, STREAMS_PER_S, STREAMS = 8, 2.0, 6.0, 400
OUTPUT = ROOT / "docs" / "performance" / "capacity.json"
TITLE = "Predicted and measured: two replicas"
INTRODUCTION = """\
What `tritone plan` predicts for two replicas from a report on one, beside what two replicas on this machine did. Of
latencies the value is the median over all loads and repeats of how far the prediction is off. The model waits in place
of computing, because two replicas that compute would share the cores of one machine. "others %" is how much of the
cores foreign processes took: above a few percent latencies are only indicative. Written by `python -m
benchmarks.capacity`; raw rows are in [capacity.json](capacity.json), the method is in
[capacity.md](../capacity.md)."""
WAITING = echo.CODE.replace(
    "    def execute(self, requests):\n",
    f"""    def execute(self, requests):
        rows = sum(pb_utils.get_input_tensor_by_name(each, "WAV_LENS").shape()[0] for each in requests)
        time.sleep({BATCH_S} + {ROW_S} * rows)
""",
).replace("import numpy as np\n", "import time\n\nimport numpy as np\n")
NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  upstream replicas {{ {balancing} {servers} keepalive 256; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of every load (default: 3)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    arguments = parser.parse_args()
    if shutil.which("nginx") is None:
        parser.error("nginx is not installed; it spreads the load over the replicas")
    is_met = True
    for finding in chain(_streams(arguments.repeats), _requests(arguments.repeats)):
        print(finding, flush=True)
        page = to_markdown(save([finding], arguments.output), TITLE, INTRODUCTION)
        arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
        is_met = is_met and finding.is_met
    return 0 if is_met else 1


def _requests(repeats: int) -> Iterator[Finding]:
    workload = speech_workload(SECONDS, Tape.shipped(echo.SAMPLE_RATE), max_utterances=8)
    with echo.echoing(OPTIONS, WAITING) as one, echo.echoing(OPTIONS, WAITING) as other:
        replica = _measured(one, workload)
        for routing in BALANCING:
            rows = []
            with _balancing(routing, (one, other)) as url:
                for _ in range(repeats):
                    rows += [_row(url, replica, workload, routing, share) for share in SHARES]
            errors = [abs(float(row[f"{name} ratio"]) - 1) for row in rows for name in ("p50", "p95")]
            curve = ", ".join(f"{load:g}: {rate / float(SECONDS):.1f}/s" for load, rate in replica.points)
            yield Finding(
                key=f"requests-{routing}",
                title=f"requests over two replicas, {routing}: predicted latency off by (share, median)",
                value=median(errors),
                bar=BAR,
                sense="at most",
                setup=Setup.here("waiting in place of computing", "benchmarks.capacity"),
                rows=rows,
                notes=[
                    f"Utterances of {SECONDS} s by HTTP through nginx; batches of up to {OPTIONS.max_batch_size} wait "
                    f"{1000 * BATCH_S:g} ms and {1000 * ROW_S:g} ms a row. One replica by requests in flight: {curve}.",
                    f"The worst prediction of p50 or p95 is off by {max(errors):.2f}.",
                ],
            )


def _measured(server: TritonServer, workload: Workload) -> Replica:
    """A replica as `tritone plan` reads it: closed loops of growing concurrency."""
    options = LoadOptions(windows=CLOSED, processes=1)
    target = _target(server.http_address)
    found = [_checked(measure_closed(target, workload, count, options)) for count in CONCURRENCIES]
    return request_replica(Report(stamp=Stamp.here(), measurements=found))


def _row(url: str, replica: Replica, workload: Workload, routing: Routing, share: float) -> dict[str, Cell]:
    rate = share * 2 * replica.curve.peak / float(SECONDS)
    times = np.cumsum(np.random.default_rng(0).exponential(1 / rate, PREDICTED))
    predicted = simulate(
        Arrivals(times=times, lengths=np.full(PREDICTED, float(SECONDS))),
        replica.curve,
        replicas=2,
        start_s=float(times[-1]) / 20,
        end_s=float(times[-1]),
        fleet=Fleet(routing=routing),
    )
    with Bystanders() as bystanders:
        found = _checked(measure_open(_target(url), workload, rate, "poisson", LoadOptions(windows=OPEN, processes=1)))
    assert found.latency is not None
    row: dict[str, Cell] = {"share %": 100 * share, "offered/s": rate, "answered/s": found.throughput}
    for name, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
        measured = float(getattr(found.latency, f"{name}_ms"))
        expected = predicted.latency_ms(percent)
        row |= {f"{name} predicted ms": expected, f"{name} measured ms": measured, f"{name} ratio": expected / measured}
    return row | {"others %": bystanders.percent}


def _target(address: str) -> Target:
    return Target(endpoint=Endpoint.parse(address, "http"), model=echo.OFFLINE, sample_rate=echo.SAMPLE_RATE, pcm=True)


def _checked(found: Measurement) -> Measurement:
    if found.failed or found.latency is None:
        raise SystemExit(f"{found.failed} requests failed, so nothing is compared: {dict(found.errors)}")
    return found


@contextmanager
def _balancing(routing: Routing, servers: Sequence[TritonServer]) -> Iterator[str]:
    """nginx in front of replicas; the address when it answers."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="tritone-nginx-") as folder:
        listed = " ".join(f"server {each.http_address};" for each in servers)
        file = Path(folder) / "nginx.conf"
        file.write_text(
            NGINX.format(folder=folder, port=port, balancing=BALANCING[routing], servers=listed), encoding="utf-8"
        )
        with subprocess.Popen(["nginx", "-p", folder, "-c", str(file)]) as process:
            try:
                _await(f"http://127.0.0.1:{port}/v2/health/ready", process)
                yield f"127.0.0.1:{port}"
            finally:
                process.terminate()


def _await(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(URLError, OSError), urlopen(url, timeout=5) as reply:
            if reply.status == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"nginx does not answer at {url}")


def _streams(repeats: int) -> Iterator[Finding]:
    """Streams of random length that open at random times, each on a replica that a key would choose."""
    bundle = Bundle.open("demo-asr")
    options = ModelOptions(max_streams=SLOTS)
    rows: list[dict[str, Cell]] = []
    with (
        serving(bundle, "streaming", options) as one,
        serving(bundle, "streaming", options) as other,
        Client(one.grpc_address) as left,
        Client(other.grpc_address) as right,
    ):
        clients = (left, right)
        for repeat in range(repeats):
            rng = np.random.default_rng(repeat)
            times = np.cumsum(rng.exponential(1 / STREAMS_PER_S, STREAMS))
            lengths = rng.exponential(STREAM_S, STREAMS)
            keys = rng.integers(0, 2, STREAMS)
            with Bystanders() as bystanders, ThreadPoolExecutor(128) as pool:
                start = time.perf_counter() + 0.5
                jobs = [
                    pool.submit(_is_refused, clients[key], bundle.manifest.sample_rate, start + when, length)
                    for key, when, length in zip(keys, times, lengths, strict=True)
                ]
                refused = sum(job.result() for job in jobs)
            # The very arrivals, each replica with its own: the simulation has no chance left.
            curve = ServiceCurve(rates=[float(each) for each in range(1, SLOTS + 1)], max_waiting=0.0)
            predicted = sum(
                simulate(
                    Arrivals(times=times[keys == key], lengths=lengths[keys == key]), curve, replicas=1, end_s=1e6
                ).refused
                for key in (0, 1)
            )
            rows.append(
                {
                    "streams": STREAMS,
                    "predicted refused": predicted,
                    "measured refused": refused,
                    "ratio": predicted / max(1, refused),
                    "others %": bystanders.percent,
                }
            )
    erlang = refused_streams(STREAMS_PER_S * STREAM_S, SLOTS, 2, "random")
    yield Finding(
        key="streams",
        title="streams on two replicas with a key: predicted refusals off by (share, median)",
        value=median(abs(float(row["ratio"]) - 1) for row in rows),
        bar=BAR,
        sense="at most",
        setup=Setup.here(bundle.manifest.name, "benchmarks.capacity"),
        rows=rows,
        notes=[
            f"{SLOTS} slots a replica; {STREAMS_PER_S:g} streams a second, {STREAM_S:g} s long on average. Over a long "
            f"time Erlang's formula has {100 * erlang:.1f} % refused, which is {erlang * STREAMS:.0f} of {STREAMS}."
        ],
    )


def _is_refused(client: Client, sample_rate: int, when: float, length: float) -> bool:
    time.sleep(max(0.0, when - time.perf_counter()))
    chunk = np.zeros(sample_rate, np.float32)  # enough for a first step
    stream = client.stream(MODEL, chunk_ms=1000)
    try:
        stream.accept(chunk)
    except ServerBusyError:
        return True
    time.sleep(max(0.0, when + length - time.perf_counter()))
    stream.finish()
    return False


if __name__ == "__main__":
    sys.exit(main())
