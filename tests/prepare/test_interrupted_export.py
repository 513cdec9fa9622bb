"""The export of a Whisper without torch that is killed, begun twice at once, or runs out of room."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exports import let_go
from families.whisper_models import random_model, write_ctranslate2
from tritone.prepare import cache, cached, prepare

pytestmark = pytest.mark.slow

# Torch cannot be imported; the program's arguments are more of it, and what it prepares.
PREPARE = """
import resource, sys
sys.modules["torch"] = None
limit, what = sys.argv[1:]
from tritone.errors import TritoneError
from tritone.prepare import prepare
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)
try:
    print("done", prepare(what, notify=lambda line: print(line, flush=True)).path)
except TritoneError as error:
    print("refused", error)
"""


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ctranslate2(tmp_path_factory.mktemp("whisper") / "small", random_model())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    let_go()


def begin(whisper: Path, file_bytes: int = 0) -> subprocess.Popen[str]:
    """Prepare in a process whose files may have so many bytes; 0 for any."""
    command = [sys.executable, "-c", PREPARE, str(file_bytes), str(whisper)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")


def test_killed_in_the_middle_and_begun_again_by_two_at_once(whisper: Path):
    with begin(whisper) as first:
        assert first.stdout is not None
        assert any(line.startswith("making decoder.onnx") for line in first.stdout)
        first.send_signal(signal.SIGKILL)
    assert list(cache.folder().glob("*.partial/*"))
    assert cached() == []
    both = [begin(whisper) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in both]
    assert sorted("making decoder.onnx" in lines for lines in said) == [False, True]  # it was made once
    (path,) = {lines[-1] for lines in said}
    [entry] = cached()
    assert path == f"done {entry.bundle}"
    assert prepare(whisper).path == entry.bundle  # its checksums are right
    assert not list(cache.folder().glob("*.partial"))


def test_without_room_for_a_file_nothing_is_kept_and_the_reason_is_said(whisper: Path, folder: Path):
    with begin(whisper, file_bytes=100_000) as process:
        assert process.stdout is not None
        *before, last = process.stdout
    assert any(line.startswith("making encoder.onnx") for line in before)
    assert last.startswith(
        f"refused cannot keep an export in {folder}/models (TRITONE_CACHE names another folder): File"
    )
    assert cached() == []
    assert not list(cache.folder().glob("*/"))
