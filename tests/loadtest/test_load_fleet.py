"""The processes of the generator: started together, stopped together, never left behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tritone.errors import OperatorError
from tritone.loadtest.processes.fleet import Fleet
from tritone.loadtest.processes.worker import Link
from waiting import until

TIMEOUT_S = 60.0
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Count:
    """Tells numbers from `first` until it is stopped, and then who it was."""

    first: int

    def run(self, link: Link) -> None:
        begin = link.ready()
        link.report(begin)
        number = self.first
        while not link.stopping.wait(0.01):
            link.report(number)
            number += 1
        link.report(f"from {self.first}")


@dataclass(frozen=True)
class Break:
    def run(self, link: Link) -> None:
        raise RuntimeError("the job is broken")


@dataclass(frozen=True)
class Die:
    def run(self, link: Link) -> None:
        link.ready()
        os.write(sys.stderr.fileno(), b"famous last words\n")
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Hang:
    def run(self, link: Link) -> None:
        link.ready()
        while True:
            time.sleep(60)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_all_begin_at_the_same_time_and_all_tell():
    with Fleet([Count(0), Count(100)]) as fleet:
        at = fleet.begin()
        assert fleet.receive(TIMEOUT_S) == [at, at]
        assert fleet.receive(TIMEOUT_S) == [0, 100]
        assert fleet.receive(TIMEOUT_S) == [1, 101]
        told = fleet.stop(TIMEOUT_S)
        pids = fleet.pids
    assert [each[-1] for each in told] == ["from 0", "from 100"]
    assert all(map(is_gone, pids))


def test_a_job_that_fails_is_told_with_its_traceback():
    with pytest.raises(OperatorError, match=r"(?s)failed.*RuntimeError: the job is broken"), Fleet([Count(0), Break()]):
        pass


def test_a_process_that_dies_is_told_with_its_exit_code_and_last_words():
    with Fleet([Die()]) as fleet:
        fleet.begin()
        with pytest.raises(OperatorError, match=r"exit code -9.*famous last words"):
            fleet.receive(TIMEOUT_S)


def test_a_process_that_says_nothing_is_told_and_killed():
    with Fleet([Hang()]) as fleet:
        fleet.begin()
        with pytest.raises(OperatorError, match="does not answer"):
            fleet.receive(0.05)
        pids = fleet.pids
    assert all(map(is_gone, pids))


def test_leaving_by_an_error_leaves_no_process():
    pids: list[int] = []

    def work() -> None:
        with Fleet([Count(0), Hang()]) as fleet:
            pids.extend(fleet.pids)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert len(pids) == 2
    assert all(map(is_gone, pids))


def test_no_process_outlives_the_one_that_started_it(tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(
        f"import sys, time; sys.path[:0] = {[str(folder) for folder in (HERE, HERE.parent / 'support')]}\n"
        "from test_load_fleet import Count, Fleet, Hang\n"
        "with Fleet([Count(0), Hang()]) as fleet:\n"
        "    fleet.begin()\n"
        "    print(*fleet.pids, flush=True)\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    # The script has no `if __name__ == '__main__'`: starting processes must not run it again.
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, encoding="utf-8") as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(map(is_gone, pids))
        parent.kill()
    until(lambda: all(map(is_gone, pids)))
