"""Modules in processes of their own: they import from where this process does, and not from where it stands."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tritone.runtime.child import python_command

ANSWERS = """
import json, sys
import tritone

def main(*arguments):
    print(json.dumps([arguments, sys.path]))
"""


def test_a_child_imports_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, library = tmp_path / "here", tmp_path / "library é"
    for each in (here, library):
        each.mkdir()
    (library / "answering.py").write_text(ANSWERS, encoding="utf-8")
    for name in ("json.py", "importlib.py", "answering.py", "tritone.py"):
        (here / name).write_text("raise SystemExit(9)", encoding="utf-8")
    monkeypatch.setattr(sys, "path", ["", ".", "relative", *sys.path, str(library)])
    monkeypatch.setenv("PYTHONPATH", ":.")
    command = python_command("answering", "é", Path("b c"), 3)
    done = subprocess.run(command, cwd=here, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    arguments, path = json.loads(done.stdout)
    assert arguments == ["é", "b c", "3"]
    assert path[:-1] == sys.path[3:]
