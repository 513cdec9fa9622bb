"""Several servers behind one address: what two of them carry, what a balancer costs, what live streams live through.

    python -m benchmarks.routing [--only throughput|latency|drain|trial] [--streams 60] [--output FILE.json]

Needs nginx and HAProxy, as Debian has them. Each server is `tritone serve --proxy`. Prints every repeat, and writes the
JSON with its conditions and the page beside it (FILE.md).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import echo
from benchmarks.measure import ROOT, Bystanders, Cell, Finding, Setup, median_ratio, save, timed, to_markdown
from benchmarks.routing.fleet import Balancer, Fleet, Kind, missing
from benchmarks.routing.trial import CHUNK_MS, Live, Players, alone, errors, summary, try_streams
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.families.generic.python import export_python
from tritone.loadtest.workload.speech import Tape
from tritone.loadtest.workload.workload import speech_workload
from tritone.repository import ModelOptions, build_repository

KINDS: tuple[Kind, ...] = ("nginx", "haproxy")
PROTOCOLS = ("http", "grpc")
OUTPUT = ROOT / "docs" / "performance" / "routing.json"
TITLE = "Several servers behind one address"
INTRODUCTION = """\
Servers (`tritone serve --proxy`), balancer, clients and everything else share the cores of one machine, so latencies
are those of that machine, busy as it was; ratios and differences are of repeats in turn. "others %" is how much of the
cores foreign processes took. What is balanced how is in [routing.md](../operations/routing.md). Written by
`python -m benchmarks.routing`; raw rows are in [routing.json](routing.json)."""
WORK_MS = 40  # of the model that sleeps, for each request
IN_FLIGHT = 16
REQUESTS = 200
REPEATS = 5
LATENCY_REQUESTS = 300
DRAINED = 50
PAUSE_S = 4.0
SLEEPER = f'''\
"""Takes its time, and no CPU's."""

import time


def work(number: list[int]) -> list[int]:
    """The numbers, after {WORK_MS} ms for each."""
    time.sleep({WORK_MS / 1000} * len(number))
    return number
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part (may be given again)")
    parser.add_argument("--bundle", default="demo-asr", help="streaming bundle of the trials (default: demo-asr)")
    parser.add_argument("--streams", type=int, default=60, help="live streams of the trials (default: 60)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file; the page is written beside it")
    arguments = parser.parse_args()
    if absent := [kind for kind in KINDS if missing(kind)]:
        parser.error(f"there is no {' and no '.join(absent)} here: apt-get install {' '.join(absent)}")
    found: list[Finding] = []
    for name in arguments.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="tritone-routing-") as folder:
            for finding in PARTS[name](Path(folder), arguments):
                print(finding, flush=True)
                found.append(finding)
                page = to_markdown(save([finding], arguments.output), TITLE, INTRODUCTION)
                arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if all(each.is_met for each in found) else 1


def throughput(folder: Path, _: argparse.Namespace) -> list[Finding]:
    """Two servers against one, with a model whose time is not the CPU's."""
    (folder / "sleeper.py").write_text(SLEEPER, encoding="utf-8")
    export_python(target="sleeper:work", output=folder / "bundle", folder=folder)
    build_repository(
        [folder / "bundle"],
        folder / "repository",
        names=["sleeper"],
        options=ModelOptions(runtime="python", max_batch_size=1, queue_delay_ms=0),
    )
    findings = []
    with Fleet(folder / "repository", folder) as fleet, ExitStack() as stack:
        fleet.add(2)
        balancers = []
        for count in (1, 2):
            (folder / str(count)).mkdir()
            balancers.append(stack.enter_context(Balancer("nginx", fleet.replicas[:count], folder / str(count))))
        one, two = balancers
        for protocol in PROTOCOLS:
            sides = {}
            for name, balancer in (("one server s", one), ("two servers s", two)):
                client = stack.enter_context(Client(balancer.url(protocol), timeout_s=120))
                sides[name] = _work(client)
            rows = _in_turn(sides, REPEATS)
            ratio, basis = median_ratio(rows, "one server s", "two servers s")
            findings.append(
                Finding(
                    key=f"throughput-{protocol}",
                    title=f"requests/s of two servers behind nginx ÷ of one, {protocol}",
                    value=ratio,
                    bar=1.8,
                    sense="at least",
                    setup=Setup.here("sleeper", "benchmarks.routing"),
                    rows=rows,
                    notes=[
                        basis,
                        f"A Python function that sleeps {WORK_MS} ms for each request, one process on each server: the "
                        f"load is bound by no CPU. {REQUESTS} requests, {IN_FLIGHT} in flight. One server can answer "
                        f"{1000 / WORK_MS:g} a second.",
                    ],
                )
            )
    return findings


def _work(client: Client) -> Callable[[], object]:
    inputs = [{"number": [index]} for index in range(REQUESTS)]

    def work() -> None:
        answers = client.infer(inputs, "sleeper", concurrency=IN_FLIGHT)
        if failed := [each.error for each in answers if each.error is not None]:
            raise SystemExit(f"{len(failed)} of {REQUESTS} requests failed: {failed[0]}")

    return work


def latency(folder: Path, _: argparse.Namespace) -> list[Finding]:
    """What a balancer adds to the time of a request."""
    (folder / "repository").mkdir()
    echo.write_models(folder / "repository")
    spoken = speech_workload("1", Tape.shipped(echo.SAMPLE_RATE), max_utterances=1).waveforms
    samples = [spoken[0]] * LATENCY_REQUESTS
    findings = []
    with Fleet(folder / "repository", folder) as fleet:
        (server,) = fleet.add()
        for kind in KINDS:
            with Balancer(kind, fleet.replicas, folder) as balancer:
                for protocol in PROTOCOLS:
                    port = server.http if protocol == "http" else server.grpc
                    with (
                        Client(f"{protocol}://127.0.0.1:{port}") as near,
                        Client(balancer.url(protocol)) as far,
                    ):
                        findings.append(_latency(kind, protocol, near, far, samples))
    return findings


def _latency(kind: Kind, protocol: str, near: Client, far: Client, samples: Sequence[Waveform]) -> Finding:
    def p50_ms(client: Client) -> float:
        # One after the other: the figure is of a request's way, not of a queue.
        return 1000 * median(each.latency_s for each in client.transcribe(samples, echo.OFFLINE, concurrency=1))

    for client in (near, far):
        p50_ms(client)
    rows: list[dict[str, Cell]] = []
    for _ in range(REPEATS):
        with Bystanders() as bystanders:
            row: dict[str, Cell] = {"direct p50 ms": p50_ms(near), "balanced p50 ms": p50_ms(far)}
        added = float(row["balanced p50 ms"]) - float(row["direct p50 ms"])
        rows.append(row | {"added ms": added, "others %": bystanders.percent})
    return Finding(
        key=f"latency-{kind}-{protocol}",
        title=f"p50 that {kind} adds, ms, {protocol}",
        value=median(float(row["added ms"]) for row in rows),
        bar=3.0,
        sense="at most",
        setup=Setup.here("echo", "benchmarks.routing"),
        rows=rows,
        notes=[f"{len(samples)} requests of 1 s of audio, one after the other, to a model that does nothing."],
    )


def drain(folder: Path, arguments: argparse.Namespace) -> list[Finding]:
    """A server that is told to end while it has live streams."""
    audio, rate = _repository(folder, arguments.bundle, 4 * PAUSE_S)
    findings = []
    for kind in KINDS:
        with Fleet(folder / "repository", folder) as fleet:
            fleet.add()
            texts = alone(fleet.replicas[0], audio, rate)
            with Balancer(kind, fleet.replicas, folder) as balancer:
                players = Players(balancer, audio, rate, CHUNK_MS)
                plan = [Live(PROTOCOLS[index % 2], False, index % len(audio)) for index in range(DRAINED)]
                players.start(plan, PAUSE_S)
                held, begun = fleet.replicas[0].open_streams, time.monotonic()
                fleet.replicas[0].drain()
                players.wait()
                code = fleet.replicas[0].process.wait(60)
                took_s = time.monotonic() - begun
        lost = sum(each.text is None for each in plan)
        wrong = sum(each.text is not None and each.text != texts[each.audio] for each in plan)
        findings.append(
            Finding(
                key=f"drain-{kind}",
                title=f"of {DRAINED} live streams lost, or with another text, by a drain behind {kind}",
                value=float(lost + wrong),
                bar=0,
                sense="at most",
                setup=Setup.here(arguments.bundle, "benchmarks.routing"),
                rows=[
                    {
                        "streams": DRAINED,
                        "open at SIGTERM": held,
                        "lost": lost,
                        "wrong texts": wrong,
                        "exit code": code,
                        "ended after s": round(took_s, 1),
                    }
                ],
                notes=[f"Half of them by HTTP, half by gRPC, {4 * PAUSE_S:g} s and more of speech in real time."],
            )
        )
    return findings


def trial(folder: Path, arguments: argparse.Namespace) -> list[Finding]:
    """One server added, one ended, one killed."""
    audio, rate = _repository(folder, arguments.bundle, 6 * PAUSE_S)
    findings = []
    for kind in KINDS:
        with Fleet(folder / "repository", folder) as fleet:
            first, second, third, added = fleet.add(4)
            texts = alone(first, audio, rate)
            with Balancer(kind, [first, second, third], folder) as balancer:
                seen = try_streams(
                    balancer,
                    [first, second, third],
                    added,
                    audio,
                    texts,
                    sample_rate=rate,
                    streams=arguments.streams,
                    late=arguments.streams // 6,
                    pause_s=PAUSE_S,
                )
        late = [each for each in seen.losses if each.stream.error is not None and each.told_s > 5]
        silent = [each for each in seen.streams if each.text is None and each.error is None]
        failed = [each for each in seen.streams if each.resume and each.error is not None]
        findings.append(
            Finding(
                key=f"trial-{kind}",
                title=f"streams behind {kind} with another text, lost and not told within 5 s, or not resumed",
                value=float(len(seen.wrong) + len(late) + len(silent) + len(failed)),
                bar=0,
                sense="at most",
                setup=Setup.here(arguments.bundle, "benchmarks.routing"),
                rows=summary(seen, kind),
                notes=[
                    f"Three servers, {arguments.streams} live streams and {arguments.streams // 6} that began after "
                    "the drain; half of the former resume, all of the latter do. One server was added, "
                    f"{PAUSE_S:g} s later one was told to end with {seen.held['drain']} streams open, then one was "
                    f"killed with {seen.held['kill']}.",
                    f"The server that was told to end {'ended by itself' if seen.drained else 'did not end well'}, and "
                    f"{'took' if seen.taken else 'took no'} new streams. Errors: {dict(errors(seen)) or 'none'}.",
                ],
            )
        )
    return findings


def _repository(folder: Path, bundle: str, length_s: float) -> tuple[list[Waveform], int]:
    """Build a streaming model; returns recordings for it, and their rate."""
    opened = Bundle.open(bundle)
    build_repository([bundle], folder / "repository", names=["live"], modes="streaming")
    rate = opened.manifest.sample_rate
    spoken = speech_workload(f"uniform:{length_s},{length_s + 3}", Tape.shipped(rate), max_utterances=20)
    return list(spoken.waveforms), rate


def _in_turn(sides: dict[str, Callable[[], object]], repeats: int) -> list[dict[str, float]]:
    """Seconds of each side, in turn, after one turn of warm-up."""
    for work in sides.values():
        work()
    rows = []
    for _ in range(repeats):
        with Bystanders() as bystanders:
            row = {name: timed(work) for name, work in sides.items()}
        (slow, fast), *_ = pairwise(row.values())
        rows.append(row | {"ratio": slow / fast, "others %": bystanders.percent})
    return rows


PARTS: dict[str, Callable[[Path, argparse.Namespace], list[Finding]]] = {
    "throughput": throughput,
    "latency": latency,
    "drain": drain,
    "trial": trial,
}

if __name__ == "__main__":
    sys.exit(main())
