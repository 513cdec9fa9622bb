"""What a request costs the client and the server by the way its audio travels: float32 or int16, in messages or shared.

    python -m benchmarks.transfer [--protocols grpc,http] [--seconds 10] [--repeats 5] [--cuda]

Against a model that does nothing. CPU time per request of the load generator and of the server with its model's
process; the ways take turns, and the ratios are to float32 in messages of the same turn. Prints every repeat.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psutil

from benchmarks.echo import OFFLINE, SAMPLE_RATE, echoing
from tritone.client.endpoint import Endpoint
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.offline import measure_closed
from tritone.loadtest.senders.wire import Target
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import Workload, speech_workload
from tritone.server import TritonServer

CONCURRENCY = 32
UTTERANCES = 16
WINDOWS = WindowPlan(warmup_s=0.5, window_s=1.0, max_windows=3, tolerance=0.5)
WAYS: tuple[tuple[bool, str | None], ...] = ((False, None), (True, None), (False, "system"), (True, "system"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", default="grpc,http", help="some of grpc,http (default: both)")
    parser.add_argument("--seconds", default="10", help="length of the utterances (default: 10)")
    parser.add_argument("--repeats", type=int, default=5, help="of every comparison (default: 5)")
    parser.add_argument("--processes", type=int, default=1, help="of the generator (default: 1)")
    parser.add_argument("--cuda", action="store_true", help="CUDA shared memory, too")
    arguments = parser.parse_args()
    ways = [*WAYS, *([(True, "cuda")] if arguments.cuda else [])]
    workload = speech_workload(arguments.seconds, Tape.shipped(SAMPLE_RATE), max_utterances=UTTERANCES)
    options = LoadOptions(windows=WINDOWS, processes=arguments.processes, drain_s=1.0)
    with echoing() as server:
        for protocol in arguments.protocols.split(","):
            turns = [
                [measure(server, protocol, pcm, memory, workload, options) for pcm, memory in ways]
                for _ in range(arguments.repeats)
            ]
            print(table(protocol, ways, turns), flush=True)


@dataclass(frozen=True)
class Row:
    """One measurement; CPU time in milliseconds a request."""

    samples: str
    throughput: float
    client_ms: float
    server_ms: float


def measure(
    server: TritonServer, protocol: str, pcm: bool, memory: str | None, workload: Workload, options: LoadOptions
) -> Row:
    endpoint = Endpoint.parse(f"{protocol}://{server.options.address(protocol)}", key=server.options.key)
    target = Target(endpoint=endpoint, model=OFFLINE, sample_rate=SAMPLE_RATE, pcm=pcm, shared_memory=memory)
    served: list[tuple[float, int]] = []

    def window(_: object) -> None:
        served.append((cpu_s(server), requests(server)))

    found = measure_closed(target, workload, CONCURRENCY, options, on_window=window)
    if found.errors:
        raise SystemExit(f"{target.samples}: {found.errors}")
    (first_s, first), (last_s, last) = served[0], served[-1]
    row = Row(target.samples, found.throughput, found.client_ms, 1000 * (last_s - first_s) / max(1, last - first))
    figures = f"{row.throughput:8.0f}/s   client {row.client_ms:.3f} ms   server {row.server_ms:.3f} ms"
    print(f"{protocol} {row.samples:24} {figures}", flush=True)
    return row


def table(protocol: str, ways: Sequence[object], turns: Sequence[Sequence[Row]]) -> str:
    lines = [
        f"\n| {protocol} | requests/s | client ms | server ms | client ÷ float32 | server ÷ float32 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for index in range(len(ways)):
        rows = [turn[index] for turn in turns]
        cells = [
            rows[0].samples,
            f"{median(row.throughput for row in rows):.0f}",
            f"{median(row.client_ms for row in rows):.3f}",
            f"{median(row.server_ms for row in rows):.3f}",
            f"{median(turn[index].client_ms / turn[0].client_ms for turn in turns):.2f}",
            f"{median(turn[index].server_ms / turn[0].server_ms for turn in turns):.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cpu_s(server: TritonServer) -> float:
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def requests(server: TritonServer) -> int:
    """How many requests the model has answered."""
    from tritone.client import Client

    with Client(server.grpc_address) as client:
        (statistics,) = client._transport.statistics(OFFLINE, 10.0)
    return int(statistics["inference_stats"]["success"]["count"])


if __name__ == "__main__":
    main()
