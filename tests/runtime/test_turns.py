"""Turns on a GPU: how many have one, in which order, and what is left of those that die."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tritone.runtime.cuda import turns as module
from tritone.runtime.cuda.turns import Permit, Turns

TIMEOUT_S = 60.0
TAKES = """
import sys
from pathlib import Path
from tritone.runtime.cuda.turns import Turns
permit = Turns("gpu", 1, Path(sys.argv[1])).take()
print("taken", flush=True)
sys.stdin.read()
"""


def taken(turns: Turns) -> tuple[threading.Thread, list[Permit]]:
    """A thread that takes a permit, and where it puts it."""
    found: list[Permit] = []
    thread = threading.Thread(target=lambda: found.append(turns.take()), daemon=True)
    thread.start()
    return thread, found


def test_no_more_have_a_turn_than_may(tmp_path: Path) -> None:
    turns = Turns("gpu", 2, tmp_path)
    first, second = turns.take(), turns.take()
    thread, third = taken(turns)
    thread.join(0.2)  # would be enough for it, if it did not wait
    assert not third
    second.release()  # the oldest goes first, so this is not the one that is waited for
    first.release()
    thread.join(TIMEOUT_S)
    assert len(third) == 1
    Turns("gpu", 2, tmp_path).take().release()
    third[0].release()


def test_others_of_the_same_name_count(tmp_path: Path) -> None:
    permit = Turns("gpu", 1, tmp_path).take()
    thread, other = taken(Turns("gpu", 1, tmp_path))
    Turns("another", 1, tmp_path).take().release()
    assert not other
    permit.release()
    thread.join(TIMEOUT_S)
    assert other
    other[0].release()


def test_a_permit_is_released_once(tmp_path: Path) -> None:
    turns = Turns("gpu", 1, tmp_path)
    permit = turns.take()
    permit.release()
    held = turns.take()  # has the same descriptor, which a second release must not close
    permit.release()
    thread, other = taken(turns)
    thread.join(0.2)
    assert not other
    held.release()
    thread.join(TIMEOUT_S)
    assert other


@pytest.mark.slow
def test_what_a_process_held_is_free_when_it_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TAKES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        thread, found = taken(Turns("gpu", 1, tmp_path))
        thread.join(0.2)
        assert not found
        process.kill()
        process.wait()
        thread.join(TIMEOUT_S)
        assert found
        found[0].release()


def test_what_is_never_released_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    turns = Turns("gpu", 2, tmp_path)
    hung, other = turns.take(), turns.take()
    other.release()
    turns.take().release()  # in place of what hangs
    assert "has not ended for 0.05 s" in caplog.text
    caplog.clear()
    for _ in range(4):
        turns.take().release()
    assert caplog.text == ""  # there are two again
    hung.release()


def test_without_its_files_nobody_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns("gpu", 1, tmp_path / "turns")
    shutil.rmtree(tmp_path / "turns")
    first = turns.take()
    turns.take().release()
    first.release()
    assert [each.getMessage().split(":")[0] for each in caplog.records] == ["calls on GPU gpu take no turns any more"]


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="only user"):
        Turns("gpu", 1, tmp_path)
