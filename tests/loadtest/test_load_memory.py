"""A measurement of any length fits in memory: what is held is counted, because the size of a process is noise."""

from collections import deque
from collections.abc import Callable, Sized
from itertools import count

import numpy as np
import pytest

from simulation import TARGET
from tritone.loadtest.options import LoadOptions, WindowPlan
from tritone.loadtest.requests.loops import ClosedJob, RequestLoop
from tritone.loadtest.requests.windows import Recorder, Tick
from tritone.loadtest.senders.wire import Body, Reply


class Echo:
    """A sender whose answers wait until they are asked for, each with another text."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[Reply], None]] = deque()
        self._numbers = count()

    def send(self, body: Body, timeout_s: float, done: Callable[[Reply], None]) -> None:
        self.waiting.append(done)

    def answer(self) -> None:
        self.waiting.popleft()(Reply(texts=(f"text {next(self._numbers)}",), received=0.0))

    def close(self) -> None:
        pass


def sizes(held: object) -> dict[str, int]:
    """How many things each attribute holds."""
    return {name: len(value) for name, value in vars(held).items() if isinstance(value, Sized)}


def test_a_worker_holds_what_is_in_flight_and_one_tick_however_many_requests_it_sent(monkeypatch: pytest.MonkeyPatch):
    echo = Echo()
    monkeypatch.setattr("tritone.loadtest.requests.loops.open_sender", lambda endpoint: echo)
    waveforms = list(enumerate(np.zeros((3, 50), dtype=np.float32)))
    job = ClosedJob(index=0, target=TARGET, pool=waveforms, options=LoadOptions(), concurrency=4)
    with job._open() as loop:
        loop.answered = lambda error: loop.send()
        for _ in range(job.concurrency):
            loop.send()
        for _ in range(100):
            for _ in range(200):
                echo.answer()
            tick = loop.take()
            assert (tick.sent, len(tick.latencies), tick.texts.total()) == (pytest.approx(200, abs=4), 200, 200)
            assert len(echo.waiting) == loop.num_in_flight == 4
            assert max(sizes(loop).values()) == 4
    assert isinstance(loop, RequestLoop)


def test_the_recorder_holds_the_last_windows_and_not_those_before():
    recorder = Recorder(WindowPlan(warmup_s=0, window_s=1.0, max_windows=1000, min_requests=1), timeout_s=10)
    for number in range(999):
        tick = Tick(number, number + 1)
        tick.latencies.extend([0.01 * (1 + number % 2)] * 100)  # never stable
        recorder.add(tick)
        held = recorder.windows
        assert len(held) <= 3
        assert sum(len(window.latencies) for window in held) <= 300
    assert recorder.end is None
    assert recorder.num_windows >= 990
