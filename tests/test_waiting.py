"""What tests wait with, and how long a thread keeps the interpreter in processes that they start."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from waiting import until

SWITCHING = Path(__file__).parent / "support" / "switching"


def test_a_fact_is_waited_for_and_given() -> None:
    facts: list[str] = []
    with pytest.raises(AssertionError, match=r"is \[\] after 0\.01 s"):
        until(lambda: facts, 0.01)
    telling = threading.Timer(0.02, facts.append, ("there",))
    telling.start()
    assert until(lambda: facts) == ["there"]
    telling.join()


def test_a_process_has_the_switch_interval_of_the_run() -> None:
    own = {"PYTHONPATH": str(SWITCHING), "TRITONE_TEST_SWITCH_INTERVAL": "0.25"}
    code = "import sys; print(sys.getswitchinterval())"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | own, capture_output=True, encoding="utf-8")
    assert (done.stdout, done.stderr) == ("0.25\n", "")
