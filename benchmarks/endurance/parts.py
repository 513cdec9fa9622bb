"""The parts of the endurance run: each attacks a deployment of its own, and ends as findings with their bars.

PartOptions  ->  pauses(...), kills(...), ...  ->  Part(findings, rows, samples)
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.endurance import faults
from benchmarks.endurance.deployment import MODELS, Deployment, DeploymentError, build
from benchmarks.endurance.faults import Fault, choose_victim
from benchmarks.endurance.gauges import Gauges
from benchmarks.endurance.load import Load
from benchmarks.endurance.truth import Task, offline_tasks, stream_tasks
from benchmarks.measure import Finding, Setup
from tritone.repository import ModelOptions

TOLD_S, BACK_S = 5.0, 15.0  # bars of the issue


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """What all parts have alike.

    `count`: of whatever the part counts. `minutes`: after which it stops, with the counts until then. `start`: the
    first number of the random faults, to go on where a run was broken off. `serve_args`: more options of `tritone
    serve`. `senders`: threads that send requests, a fourth as many stream.
    """

    count: int
    minutes: float
    seed: int = 0
    start: int = 0
    senders: int = 12
    serve_args: Sequence[str] = ()
    setup: Setup
    victims: Sequence[str] = ("model", "model", "tritonserver", "all")
    through_proxy: bool = False


@dataclass
class Part:
    """What one part found: numbers with bars, every row, and the gauges over time."""

    name: str
    findings: list[Finding]
    rows: list[dict[str, Any]]
    samples: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_met(self) -> bool:
        return all(finding.is_met for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "samples": self.samples, "notes": self.notes}


def say(text: str) -> None:
    """One line of progress."""
    print(time.strftime("%H:%M:%S", time.gmtime()), text, flush=True)


@contextmanager
def attacked(options: PartOptions, models: ModelOptions | None = None) -> Iterator[tuple[Deployment, Gauges]]:
    """A deployment of the demo models and its gauges."""
    with tempfile.TemporaryDirectory(prefix="tritone-endurance-") as folder:
        repository = build(Path(folder), models)
        with (
            Deployment(repository, Path(folder), options.serve_args) as deployment,
            Gauges(deployment) as gauges,
        ):
            yield deployment, gauges


def small_tasks(seed: int) -> tuple[list[Task], list[Task]]:
    """Requests and streams that are short, so that many are under way when a fault comes, with texts that differ."""
    rng = np.random.default_rng([seed, 1])
    say("computing the right answers in this process")
    requests = offline_tasks(rng, 24, 0.6, 5.0)
    return _distinct(requests), _distinct(stream_tasks(rng, 30, 1.0, 5.0))


def _distinct(tasks: Sequence[Task]) -> list[Task]:
    """Those with a text that no other task of the model has, so that an answer to another request is seen as wrong."""
    kept: dict[tuple[str, str], Task] = {}
    for task in tasks:
        text = task.expected.text or str(len(kept)) * (task.expected.embedding is not None)
        if text:
            kept.setdefault((task.model, text), task)
    return list(kept.values())


def pauses(options: PartOptions) -> Part:
    """Random pauses of a model, of tritonserver, or of all processes together, as of a frozen container."""

    def once(deployment: Deployment, load: Load, number: int, rng: np.random.Generator) -> Fault:
        length_s = float(rng.uniform(faults.SHORTEST_PAUSE_S, faults.LONGEST_PAUSE_S))
        return faults.pause(deployment, load, number, choose_victim(rng, options.victims), length_s)

    return _faults("pauses", options, once)


def kills(options: PartOptions) -> Part:
    """SIGKILL of a model's process under load, as the kernel does it when memory is short."""

    def once(deployment: Deployment, load: Load, number: int, rng: np.random.Generator) -> Fault:
        return faults.kill(deployment, load, number, f"model {MODELS[number % len(MODELS)]}")

    return _faults("kills", options, once)


def _faults(name: str, options: PartOptions, once: Any) -> Part:
    requests, streams = small_tasks(options.seed)
    rows: list[Fault] = []
    notes: list[str] = []
    with attacked(options) as (deployment, gauges):
        urls = [f"grpc://{deployment.grpc}", f"http://{deployment.http}"]
        groups = [(requests, options.senders), (streams, max(2, options.senders // 4))]
        say(f"{name}: {options.count} under load of {groups[0][1]} senders and {groups[1][1]} streams")
        deadline = time.monotonic() + options.minutes * 60
        with Load(urls, groups, seed=options.seed) as load:
            time.sleep(3)
            try:
                for number in range(options.start, options.start + options.count):
                    if time.monotonic() > deadline:
                        notes.append(f"stopped after {options.minutes:g} minutes; go on with --start {number}")
                        break
                    rng = np.random.default_rng([options.seed, 2, number])
                    time.sleep(float(rng.uniform(0.2, 0.6)))
                    rows.append(once(deployment, load, number, rng))
                    say(str(rows[-1]))
            except (DeploymentError, KeyboardInterrupt) as error:
                notes.append(f"broken off: {type(error).__name__}: {error}")
                say(notes[-1])
        total = load.outcomes
    wrong = [each for each in total if each.verdict == "wrong"]
    notes += [f"wrong answer of {each.model} over {each.protocol}: {each.message}" for each in wrong[:10]]
    notes.append(f"{len(total)} requests and streams in all, {sum(each.verdict == 'right' for each in total)} right")
    return Part(
        name=name,
        findings=fault_findings(name, rows, len(wrong), options.setup, notes),
        rows=[each.to_dict() for each in rows],
        samples=gauges.to_list(),
        notes=notes,
    )


def fault_findings(name: str, rows: Sequence[Fault], wrong: int, setup: Setup, notes: Sequence[str]) -> list[Finding]:
    """The numbers of some faults: wrong answers, clients told late, service back late, commands that ended."""
    count = len(rows)
    hurt = [each for each in rows if each.errors or each.restarted]
    late = [each for each in hurt if each.told_s is None or each.told_s > TOLD_S]
    not_back = [each for each in rows if each.back_s is None or each.back_s > BACK_S]
    summary: list[dict[str, Any]] = []
    for what in sorted({each.what for each in rows}):
        of = [each for each in rows if each.what == what]
        summary.append(
            {
                "what": what,
                "times": len(of),
                "wrong": sum(each.wrong for each in of),
                "without an error": sum(not each.errors for each in of),
                "longest told s": _most(each.told_s for each in of),
                "longest wait for an error s": _most(each.slowest_s for each in of),
                "longest back s": _most(each.back_s for each in of),
                "started again by us": sum(each.restarted for each in of),
            }
        )
    values: Mapping[str, tuple[str, float]] = {
        "wrong": (f"{name}: wrong answers in {count}", wrong),
        "told": (f"{name}: clients told later than {TOLD_S:g} s, of {len(hurt)} that hurt", len(late)),
        "back": (f"{name}: not serving again within {BACK_S:g} s, of {count}", len(not_back)),
        "ended": (f"{name}: `tritone serve` ended or never recovered, of {count}", sum(r.restarted for r in rows)),
    }
    return [
        Finding(
            key=f"{name}-{key}",
            title=title,
            value=value,
            bar=0,
            sense="at most",
            setup=setup,
            rows=summary if key == "wrong" else [],
            notes=list(notes) if key == "wrong" else [],
        )
        for key, (title, value) in values.items()
    ]


def _most(values: Any) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.2f}" if known else "-"
