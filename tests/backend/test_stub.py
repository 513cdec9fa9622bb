"""What the process of a model does first, in a Python that takes everything for ASCII, as that of Triton's stub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritone.backend import stub

# Triton's own module, and what a function of a model may do; é is the letter in question.
TRITONS = """
import json, os, sys
from pathlib import Path

print("printed é", file=sys.stderr)
found = {
    "path": sys.path,
    "here": os.getcwd(),
    "text": open("text.txt").read(),
    "named": Path("caf\\u00e9").read_text(),
    "listed": [Path(each).read_text() for each in os.listdir(".") if each.startswith("caf")],
    "encoding": sys.getfilesystemencoding(),
}
"""


@pytest.mark.parametrize("locale", ["POSIX", "C.UTF-8", "no_SUCH.locale"])
def test_a_model_reads_utf_8_where_the_server_was_started_and_imports_nothing_from_there(
    tmp_path: Path, locale: str
) -> None:
    standing, empty, backend = tmp_path / "standing é", tmp_path / "empty", tmp_path / "backend"
    for each in (standing, empty, backend):
        each.mkdir()
    (standing / "text.txt").write_text("wörter", encoding="utf-8")
    (standing / "café").write_text("ü", encoding="utf-8")
    (standing / "json.py").write_text("raise SystemExit(9)", encoding="utf-8")
    (backend / f"{stub.UTILS}.py").symlink_to(Path(stub.__file__))
    (backend / stub.OWN).write_text(TRITONS, encoding="utf-8")
    script = (
        f"import sys; sys.path.append({str(backend)!r}); import {stub.UTILS} as utils; import json; "
        "print(json.dumps(utils.found))"
    )
    narrow = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", stub.STANDING: str(standing)}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNDEFAULTENCODING"} | narrow
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=empty, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["encoding"] == ("utf-8" if locale == "C.UTF-8" else "ascii"), "the case is not what it is to be"
    assert found["text"] == "wörter"
    assert (found["named"], found["listed"]) == ("ü", ["ü"])
    assert found["here"].encode("utf-8", "surrogateescape").decode("utf-8") == str(standing)
    assert all(map(os.path.isabs, found["path"]))
    assert "printed é" in done.stderr
