"""When full speed is reached after a restart, told from when texts were there; and a whole run on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.startup import full_speed_s

ROOT = Path(__file__).resolve().parents[2]


def test_full_speed_is_when_the_rate_comes_near_that_of_the_end() -> None:
    slow, fast = np.arange(10, 20, 1.0), np.arange(20, 40, 0.1)
    begin, rate = full_speed_s([*slow, *fast])
    assert rate == pytest.approx(10.0)
    assert begin == pytest.approx(19.0, abs=1.01)


def test_what_is_at_full_speed_from_the_first_text_on_is_there_at_once() -> None:
    begin, rate = full_speed_s(list(np.arange(7.0, 17.0, 0.05)))
    assert (begin, rate) == (7.0, pytest.approx(20.0))


def test_texts_that_come_in_bursts_are_no_slower_than_others() -> None:
    bursts = [6.0 + turn + 1e-4 * each for turn in range(20) for each in range(32)]
    begin, rate = full_speed_s(bursts)
    assert begin == pytest.approx(6.0, abs=1.01)
    assert rate == pytest.approx(32.0, rel=0.06)


def test_too_few_texts_tell_no_rate() -> None:
    with pytest.raises(ValueError, match="7 texts are too few"):
        full_speed_s([float(each) for each in range(7)])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["process", "served"])
def test_a_run_writes_what_a_cold_and_a_warm_start_take(tmp_path: Path, way: str) -> None:
    command = [sys.executable, "-m", "benchmarks.startup", "--out", str(tmp_path), "--size", "mini", "--device", "cpu"]
    command += ["--way", way, "--in-flight", "2", "--tokens", "4", "--seconds", "2", "--starts", "2", "--load-s", "8"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((tmp_path / "startup.json").read_text(encoding="utf-8"))
    assert [each["cache"] for each in found["starts"]] == ["cold", "warm"]
    for each in found["starts"]:
        assert each["first_text_s"] > 0
        assert each["first_text_s"] <= each.get("full_speed_s", each["first_text_s"])
        assert "ready" in each["states"]
        assert any("the model answers" in line for line in each["log"])
