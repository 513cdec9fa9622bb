"""Pauses and deaths of processes under load, and what clients see of them.

Deployment, Load, random faults  ->  [Fault(what, seconds, wrong, told_s, back_s, ...), ...]
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil

from benchmarks.endurance.deployment import MODELS, Deployment
from benchmarks.endurance.load import RIGHT, WRONG, Load, Outcome, tally

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
QUIET_S = 1.5  # without an error, before a server counts as recovered
GIVE_UP_S = 45.0  # after which a server that does not recover is started again by us
STEP_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One pause or death and what followed. Seconds; None where nothing of the kind was seen.

    `told_s`: from the harm to the first error of a client, or to the model's saying that it is not ready; harm begins
    with the signal, but where tritonserver itself stood still, when it went on. `slowest_s`: the longest that a client
    waited for an error. `back_s`: from the end of the harm (a kill is over at once) to the first right answers of all
    models after the last error. `restarted`: whether we had to start the command again, because it ended or never
    recovered.
    """

    number: int
    what: str
    length_s: float
    right: int
    wrong: int
    errors: dict[str, int]
    told_s: float | None
    slowest_s: float | None
    back_s: float | None
    restarted: bool
    exit_code: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        errors = ", ".join(f"{count} {name}" for name, count in self.errors.items()) or "no errors"
        told = "-" if self.told_s is None else f"{self.told_s:.2f} s"
        back = "NEVER" if self.back_s is None else f"{self.back_s:.2f} s"
        ending = f", SERVER STARTED AGAIN (exit code {self.exit_code})" if self.restarted else ""
        return (
            f"#{self.number} {self.what} {self.length_s:.2f} s: {self.right} right, {self.wrong} WRONG, {errors}; "
            f"told {told}, back {back}{ending}"
        )


def victims_of(what: str, processes: dict[str, psutil.Process]) -> list[psutil.Process]:
    """The processes that a fault of that name stops: one role, or all as in a frozen container, the command first."""
    if what == "all":
        return list(processes.values())
    return [processes[what]] if what in processes else []


def choose_victim(rng: np.random.Generator, kinds: Sequence[str]) -> str:
    """A random victim: "model NAME" for "model", else the kind itself."""
    kind = kinds[int(rng.integers(len(kinds)))]
    return f"model {MODELS[int(rng.integers(len(MODELS)))]}" if kind == "model" else kind


@contextmanager
def stopped(victims: Sequence[psutil.Process]) -> Iterator[None]:
    """Inside, the processes stand still."""
    try:
        for each in victims:
            with suppress(psutil.Error):
                each.suspend()
        yield
    finally:
        for each in victims:
            with suppress(psutil.Error):
                each.resume()


def pause(deployment: Deployment, load: Load, number: int, what: str, length_s: float) -> Fault:
    """Stop processes for a while, and watch what follows."""

    def harm() -> tuple[float, float]:
        with stopped(victims_of(what, deployment.processes())):
            began = time.monotonic()
            time.sleep(length_s)
        ended = time.monotonic()
        return (began if what.startswith("model ") else ended), ended

    return _watched(deployment, load, number, what, length_s, harm)


def kill(deployment: Deployment, load: Load, number: int, what: str) -> Fault:
    """Kill a process with SIGKILL, and watch what follows."""

    def harm() -> tuple[float, float]:
        for each in victims_of(what, deployment.processes()):
            with suppress(psutil.Error):
                each.send_signal(signal.SIGKILL)
        return (now := time.monotonic()), now

    return _watched(deployment, load, number, f"kill of {what}", 0.0, harm)


def _watched(
    deployment: Deployment,
    load: Load,
    number: int,
    what: str,
    length_s: float,
    harm: Callable[[], tuple[float, float]],
) -> Fault:
    first = len(load.outcomes)
    began, ended = harm()
    model = what.rpartition("model ")[2] if "model " in what else ""
    not_ready: float | None = None
    back: float | None = None
    while back is None and time.monotonic() < ended + GIVE_UP_S and deployment.is_alive():
        if model and not_ready is None and not deployment.is_ready(model):
            not_ready = time.monotonic()
        time.sleep(STEP_S)
        back = recovered_at(load.since(first), ended, time.monotonic())
    exit_code = None
    restarted = back is None
    if restarted:
        exit_code = deployment.stop()
        deployment.start()
        _await_service(load)
    outcomes = load.since(first)
    counts = tally(outcomes)
    signs = [each.answered for each in outcomes if each.is_error] + ([not_ready] if not_ready is not None else [])
    waits = [each.answered - max(each.sent, began) for each in outcomes if each.is_error]
    return Fault(
        number=number,
        what=what,
        length_s=length_s,
        right=counts.pop(RIGHT, 0),
        wrong=counts.pop(WRONG, 0),
        errors=counts,
        told_s=max(0.0, min(signs) - began) if signs else None,
        slowest_s=max(waits, default=None),
        back_s=None if back is None else max(0.0, back - ended),
        restarted=restarted,
        exit_code=exit_code,
    )


def recovered_at(outcomes: Sequence[Outcome], ended: float, now: float) -> float | None:
    """When all models were served again: the latest of their first right answers after the last error.

    Args:
        outcomes: of requests since the harm began.
        ended: when the harm ended.
        now: an error less than `QUIET_S` ago says that it is too early to tell.

    Returns:
        None if that was not yet.
    """
    last_error = max((each.answered for each in outcomes if each.is_error), default=ended)
    if now < max(last_error, ended) + QUIET_S:
        return None
    firsts = []
    for model in MODELS:
        # One that was asked before the last error may still be answered by a process that is about to go.
        answers = [each.answered for each in outcomes if each.model == model and each.verdict == RIGHT]
        later = [answered for answered in answers if answered >= max(last_error, ended)]
        if not later:
            return None
        firsts.append(min(later))
    return max(firsts)


def _await_service(load: Load) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    start, began = len(load.outcomes), time.monotonic()
    while recovered_at(load.since(start), began, time.monotonic()) is None and time.monotonic() < deadline:
        time.sleep(STEP_S)
