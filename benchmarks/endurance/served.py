"""The parts that send work: mixed requests with hostile ones among them, streams of clients that die, and drains."""

import logging
import multiprocessing
import os
import re
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.endurance.deployment import STREAMING, Deployment
from benchmarks.endurance.hostile import DEADLY, HOSTILE, Target
from benchmarks.endurance.load import RIGHT, WRONG, Connection, Load, Outcome, pieces, tally
from benchmarks.endurance.parts import Part, PartOptions, attacked, say, small_tasks
from benchmarks.endurance.truth import Task, offline_tasks, stream_tasks
from benchmarks.measure import Finding
from tritone.client import Client
from tritone.errors import TritoneError
from tritone.repository import ModelOptions

HOSTILE_SHARE = 0.1
KILLED_SHARE, ABANDONED_SHARE = 0.2, 0.1  # of streams: their process is killed; they are left without a word
STREAMS_OF_A_CLIENT = 10  # at once, in one process
IDLE_S = 5.0  # after which the server frees the slot of a stream without a client
SETTLE_S = 6.0  # of rest before memory is compared
GROWTH = 1.05
BUSY = "ServerBusyError"
REFUSED_AT_DRAIN = {"ServerBusyError", "ServerUnreachableError", "InputError"}  # InputError: the model is not ready
OPEN_STREAMS = re.compile(r"^tritone_open_streams\{[^}]*\} (\S+)", re.MULTILINE)


def requests(options: PartOptions) -> Part:
    """Mixed requests over gRPC and HTTP to all models, a tenth of them hostile."""
    rng = np.random.default_rng([options.seed, 1])
    say("computing the right answers in this process")
    tasks = offline_tasks(rng, 40 if options.count >= 1000 else 8)
    attacks = {**HOSTILE, **(DEADLY if options.through_proxy else {})}
    outcomes: list[Outcome] = []
    refusals: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    leaks: dict[str, str] = {}
    notes: list[str] = []
    deaths = 0
    with attacked(options) as (deployment, gauges):
        urls = [f"grpc://{deployment.grpc}", f"http://{deployment.http}"]
        numbers = iter(range(options.count))
        lock = threading.Lock()
        over = threading.Event()
        deadline = time.monotonic() + options.minutes * 60
        limit = options.count // 10

        def send(index: int) -> None:
            own = np.random.default_rng([options.seed, 3, index, limit])
            connection = Connection(urls[index % 2], 120.0)
            target = Target(deployment.grpc, deployment.http, own)
            while not over.is_set():
                with lock:
                    number = next(numbers, None)
                if number is None:
                    break
                if own.random() < HOSTILE_SHARE:
                    name = list(attacks)[int(own.integers(len(attacks)))]
                    reply = attacks[name](target)
                    with lock:
                        (accepted if reply.accepted else refusals)[name] += 1
                        if reply.leaks:
                            leaks.setdefault(name, reply.message)
                else:
                    outcomes.append(connection.ask(tasks[int(own.integers(len(tasks)))], own))
            connection.close()
            target.close()

        marks = [gauges.mark("start", 1.0)]
        for share in (limit, options.count - limit):
            numbers = iter(range(share))
            threads = [threading.Thread(target=send, args=(index,), daemon=True) for index in range(options.senders)]
            for thread in threads:
                thread.start()
            last = time.monotonic()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.2)
                if not deployment.is_alive():
                    deaths += 1
                    notes.append(f"the server ended after {len(outcomes)} good requests: {deployment.log_tail(6)}")
                    say(f"THE SERVER ENDED with {deployment.stop()}; started again")
                    deployment.start()
                if time.monotonic() > deadline and not over.is_set():
                    notes.append(f"stopped after {options.minutes:g} minutes")
                    over.set()
                if time.monotonic() - last > 10:
                    last = time.monotonic()
                    say(f"requests: {len(outcomes)} good, {sum(refusals.values())} hostile, {tally(outcomes)}")
            marks.append(gauges.mark(f"after {len(outcomes) + refusals.total() + accepted.total()}", SETTLE_S))
            limit += 1
    wrong = [each for each in outcomes if each.verdict == WRONG]
    harmed = [each for each in outcomes if each.is_error and each.verdict != BUSY]
    notes += [f"wrong answer of {each.model} over {each.protocol}: {each.message[:300]}" for each in wrong[:10]]
    notes += [f"{each.verdict} of {each.model} over {each.protocol}: {each.message[:300]}" for each in harmed[:10]]
    notes += [f"hostile, but accepted: {name} ({count})" for name, count in accepted.items()]
    notes += [f"tells of the inside: {name}: {text[:200]!r}" for name, text in leaks.items()]
    notes.append(f"verdicts: {tally(outcomes)}; hostile: {refusals.total()} refused, {accepted.total()} accepted")
    rows = [
        {
            "when": mark.note,
            "own and shared MiB": mark.total,
            "shared MiB": mark.shared,
            "resident MiB": mark.resident,
            "descriptors": sum(mark.descriptors.values()),
        }
        for mark in marks
    ]

    def finding(key: str, title: str, value: float, bar: float, **more: Any) -> Finding:
        title = f"requests: {title}"
        return Finding(
            key=f"requests-{key}", title=title, value=value, bar=bar, sense="at most", setup=options.setup, **more
        )

    sent = len(outcomes) + refusals.total() + accepted.total()
    return Part(
        name="requests",
        findings=[
            finding("wrong", f"wrong answers in {len(outcomes)} good ones of {sent}", len(wrong), 0, notes=notes),
            finding("harmed", "good requests that failed", len(harmed), 0),
            finding("deaths", "deaths of the server", deaths, 0),
            finding("leaks", "kinds of hostile requests whose errors show tracebacks or paths", len(leaks), 0),
            finding(
                "memory",
                "memory at the end ÷ after a tenth",
                marks[-1].total / marks[1].total,
                GROWTH,
                rows=rows,
            ),
        ],
        rows=rows,
        samples=gauges.to_list(),
        notes=notes,
    )


def streams(options: PartOptions) -> Part:
    """Streams in chunks of random sizes, of whose clients nearly a third are killed or leave without a word."""
    rng = np.random.default_rng([options.seed, 4])
    say("computing the right answers in this process")
    tasks = stream_tasks(rng, 100 if options.count >= 1000 else 20)
    outcomes: list[Outcome] = []
    abandoned = lost = started = 0
    notes: list[str] = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.endurance.served"])
    with attacked(options, ModelOptions(stream_idle_timeout_s=IDLE_S)) as (deployment, gauges):
        deadline = time.monotonic() + options.minutes * 60
        clients: dict[Any, tuple[Any, float, int]] = {}
        marks = [gauges.mark("start", 1.0)]
        last = time.monotonic()
        lengths: list[float] = [2.0]
        while started < options.count or clients:
            if time.monotonic() > deadline and started < options.count:
                notes.append(f"stopped after {options.minutes:g} minutes")
                options = replace(options, count=started)
            while started < options.count and len(clients) < max(2, options.senders // 4):
                size = min(STREAMS_OF_A_CLIENT, options.count - started)
                chosen = [tasks[int(index)] for index in rng.integers(len(tasks), size=size)]
                leave = [bool(each) for each in rng.random(size) < ABANDONED_SHARE]
                url = f"grpc://{deployment.grpc}" if rng.random() < 0.5 else f"http://{deployment.http}"
                ours, theirs = context.Pipe(duplex=False)
                seed = int(rng.integers(2**62))
                process = context.Process(target=_client, args=(url, chosen, leave, seed, theirs), daemon=True)
                process.start()
                theirs.close()
                life_s = float(rng.uniform(0, max(lengths[-50:]))) if rng.random() < KILLED_SHARE else np.inf
                clients[ours] = (process, time.monotonic() + life_s, size)
                started += size
            for pipe, (process, dies_at, size) in list(clients.items()):
                if time.monotonic() > dies_at and process.is_alive():
                    process.kill()
                process.join(0.01)
                if process.is_alive() and not pipe.poll():
                    continue
                found: list[Outcome | None] = []
                with suppress(EOFError, OSError):
                    found = pipe.recv() if pipe.poll() else []
                process.join(5)
                lengths += [each.answered - each.sent for each in found if each is not None]
                outcomes += [each for each in found if each is not None]
                abandoned += sum(each is None for each in found)
                lost += size - len(found)
                pipe.close()
                del clients[pipe]
            if time.monotonic() - last > 10:
                last = time.monotonic()
                say(f"streams: {started} started, {tally(outcomes)}, {abandoned} abandoned, {lost} killed")
        marks.append(gauges.mark("end", IDLE_S + SETTLE_S))
        unswept = open_streams(deployment)
        again = _all_slots(deployment, tasks)  # a model looks for streams without a client when it works for another
        left = open_streams(deployment)
    wrong = [each for each in outcomes if each.verdict == WRONG]
    harmed = [each for each in outcomes if each.is_error and each.verdict != BUSY]
    notes += [f"wrong answer of {each.model} over {each.protocol}: {each.message[:300]}" for each in wrong[:10]]
    notes += [f"{each.verdict} of {each.model} over {each.protocol}: {each.message[:300]}" for each in harmed[:10]]
    notes.append(
        f"{started} streams: {tally(outcomes)}, {lost} with killed processes, {abandoned} abandoned; "
        f"{unswept} were open {IDLE_S + SETTLE_S:g} s later, {left} after {again} more that played right"
    )
    rows = [
        {"when": mark.note, "own and shared MiB": mark.total, "shared MiB": mark.shared, "resident MiB": mark.resident}
        for mark in marks
    ]

    def finding(key: str, title: str, value: float, **more: Any) -> Finding:
        return Finding(
            key=f"streams-{key}",
            title=f"streams: {title}",
            value=value,
            bar=0,
            sense="at most",
            setup=options.setup,
            **more,
        )

    return Part(
        name="streams",
        findings=[
            finding(
                "wrong", f"wrong texts in {len(outcomes)} of {started} streams", len(wrong), rows=rows, notes=notes
            ),
            finding("harmed", "streams of living clients that failed", len(harmed)),
            finding("left", "streams that are open when all clients are gone", left),
        ],
        rows=rows,
        samples=gauges.to_list(),
        notes=notes,
    )


def _client(url: str, tasks: Sequence[Task], leave: Sequence[bool], seed: int, pipe: Any) -> None:
    """A client process: plays streams at once, and reports their outcomes; None for one that it left."""
    logging.disable()  # what is abandoned complains
    found: list[Outcome | None] = []
    connection = Connection(url, 60.0)

    def play(index: int) -> None:
        rng = np.random.default_rng([seed, index])
        if leave[index]:
            _abandon(url, tasks[index], rng)
            found.append(None)
        else:
            found.append(connection.ask(tasks[index], rng))

    threads = [threading.Thread(target=play, args=(index,), daemon=True) for index in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    pipe.send(found)
    pipe.close()
    os._exit(0)  # the abandoned streams must not be closed politely


def _abandon(url: str, task: Task, rng: np.random.Generator) -> None:
    with suppress(TritoneError):
        client = Client(url, timeout_s=60)
        stream = client.stream(task.model)
        upto = int(rng.integers(1, 8))
        for number, piece in enumerate(pieces(task, rng)):
            if number >= upto:
                break
            stream.accept(piece)
        _ABANDONED.append((client, stream))  # else it would be closed when it is collected


_ABANDONED: list[Any] = []


def open_streams(deployment: Deployment) -> int:
    """How many streams the models have open, as their metrics say."""
    with urllib.request.urlopen(f"http://{deployment.metrics}/metrics", timeout=10) as answer:
        return round(sum(float(value) for value in OPEN_STREAMS.findall(answer.read().decode())))


def _all_slots(deployment: Deployment, tasks: Sequence[Task]) -> int:
    connection = Connection(f"grpc://{deployment.grpc}", 60.0)
    rng = np.random.default_rng(0)
    firsts = [next(task for task in tasks if task.model == model) for model in STREAMING]
    good = sum(connection.ask(task, rng).verdict == RIGHT for task in firsts)
    connection.close()
    return good


def drains(options: PartOptions) -> Part:
    """SIGTERM to `tritone serve` under lasting load."""
    requests_, streams_ = small_tasks(options.seed)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    with attacked(options) as (deployment, gauges):
        deadline = time.monotonic() + options.minutes * 60
        urls = [f"grpc://{deployment.grpc}", f"http://{deployment.http}"]
        groups = [(requests_, options.senders), (streams_, max(2, options.senders // 4))]
        for number in range(options.start, options.start + options.count):
            if time.monotonic() > deadline:
                notes.append(f"stopped after {options.minutes:g} minutes; go on with --start {number}")
                break
            rng = np.random.default_rng([options.seed, 5, number])
            if not deployment.is_alive():
                deployment.start()
            with Load(urls, groups, seed=options.seed + number, timeout_s=60) as load:
                time.sleep(float(rng.uniform(1.5, 3.0)))
                signalled = time.monotonic()
                deployment.signal(signal.SIGTERM)
                code = deployment.wait()
                ended = time.monotonic()
                time.sleep(0.5)
                load.stop()
            rows.append(drain_row(number, load.outcomes, signalled, code, ended - signalled))
            notes += [
                f"#{number} lost: {each.verdict} of {each.model} over {each.protocol}, sent "
                f"{signalled - each.sent:.2f} s before: {each.message[:200]}"
                for each in lost_of(load.outcomes, signalled)[:3]
            ]
            say(str(rows[-1]))
            deployment.stop()
    count = len(rows)

    def finding(key: str, title: str, value: float, **more: Any) -> Finding:
        title = f"drains: {title}"
        return Finding(
            key=f"drains-{key}", title=title, value=value, bar=0, sense="at most", setup=options.setup, **more
        )

    return Part(
        name="drains",
        findings=[
            finding("lost", f"requests and streams in flight that were lost in {count}", _sum(rows, "lost"), rows=rows),
            finding("wrong", "wrong answers", _sum(rows, "wrong")),
            finding(
                "unclear",
                "new ones that failed otherwise than as busy, not ready or unreachable",
                _sum(rows, "unclear"),
            ),
            finding(
                "exit", f"exit codes other than 0 of {count}", sum(row["exit code"] != 0 for row in rows), notes=notes
            ),
        ],
        rows=rows,
        samples=gauges.to_list(),
        notes=notes,
    )


SENT_MARGIN_S = 0.15  # a request that is this old has left the client, also on a machine that is busy


def lost_of(outcomes: Sequence[Outcome], signalled: float) -> list[Outcome]:
    """What was under way at the signal and was not answered."""
    return [each for each in outcomes if each.is_error and each.sent < signalled - SENT_MARGIN_S < each.answered]


def drain_row(
    number: int, outcomes: Sequence[Outcome], signalled: float, code: int | None, seconds: float
) -> dict[str, Any]:
    """What became of the requests around one SIGTERM."""
    flying = [each for each in outcomes if each.sent < signalled - SENT_MARGIN_S < each.answered]
    later = [each for each in outcomes if each.sent > signalled]
    return {
        "number": number,
        "in flight": len(flying),
        "lost": len(lost_of(outcomes, signalled)),
        "wrong": sum(each.verdict == WRONG for each in outcomes),
        "later answered": sum(each.verdict == RIGHT for each in later),
        "later refused": sum(each.verdict in REFUSED_AT_DRAIN for each in later),
        "unclear": sum(each.is_error and each.verdict not in REFUSED_AT_DRAIN for each in later),
        "exit code": -1 if code is None else code,
        "seconds": round(seconds, 2),
    }


def _sum(rows: Sequence[dict[str, Any]], name: str) -> int:
    return sum(int(row[name]) for row in rows)
