"""What a server and the processes of its models are started with."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tritone.backend.stub import OWN, STANDING, UTILS
from tritone.server import ServerOptions
from tritone.server.installation import STUB, Installation, temporary_folder, utf8_locale


@pytest.fixture
def engine(tmp_path: Path) -> Installation:
    """An unpacked release at a path that no shell would leave alone."""
    root = tmp_path / "an engine é"
    python = root / "backends" / "python"
    python.mkdir(parents=True)
    for name in ("libtriton_python.so", STUB, f"{UTILS}.py"):
        (python / name).write_text(f"NAME = {name!r}\n", encoding="utf-8")
    (root / "backends" / "other").mkdir()
    return Installation(executable=root / "bin" / "tritonserver", origin="given", root=root)


def test_where_one_stands_is_no_place_of_programs_libraries_or_modules(
    engine: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, ":/somewhere:.:sub/folder:")
    environment = engine.environment()
    for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"):
        entries = environment[name].split(":")
        assert "/somewhere" in entries
        assert all(map(os.path.isabs, entries)), environment[name]


def test_without_path_programs_are_where_systems_have_them(
    engine: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PATH")
    path = engine.environment()["PATH"]
    assert path.split(":")[0] == str(Path(sys.executable).parent)
    assert shutil.which("bash", path=path)


@pytest.mark.parametrize(
    ("environment", "changes"),
    [
        ({}, {"LC_CTYPE": "C.UTF-8"}),
        ({"LANG": "de_DE.UTF-8"}, {}),
        ({"LANG": "de_DE.utf8@euro"}, {}),
        ({"LANG": "de_DE.UTF-8", "LC_CTYPE": "de_DE.ISO-8859-1"}, {"LC_CTYPE": "C.UTF-8"}),
        ({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_ALL": "", "LANG": "C"}, {"LC_CTYPE": "C.UTF-8"}),
    ],
)
def test_a_locale_becomes_one_of_utf_8_unless_it_is(environment: dict[str, str], changes: dict[str, str]) -> None:
    assert utf8_locale(environment) == {"PYTHONUTF8": "1", **changes}


def test_links_lead_to_the_backends_and_ours_comes_before_tritons_own_module(
    engine: Installation, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assembled = engine.assemble(folder)
    python = assembled / "python"
    assert (python / "libtriton_python.so").resolve() == engine.root / "backends" / "python" / "libtriton_python.so"
    assert (python / OWN).resolve() == engine.root / "backends" / "python" / f"{UTILS}.py"
    assert (python / f"{UTILS}.py").resolve().name == "stub.py"
    assert (assembled / "other").resolve() == engine.root / "backends" / "other"


def test_triton_takes_the_rights_from_a_copy_of_the_stub(engine: Installation, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    engine.stub.chmod(0o100)  # as a server of before has left it
    copy = engine.assemble(folder) / "python" / STUB
    copy.chmod(0o100)  # Triton does that
    assert engine.stub.read_bytes() == f"NAME = {STUB!r}\n".encode()
    assert engine.stub.stat().st_mode & 0o777 == (0o755 if os.geteuid() else 0o100)


def test_where_no_program_runs_the_stub_is_run_where_it_is(
    engine: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritone.server.installation.runs_programs", lambda folder: False)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert (engine.assemble(folder) / "python" / STUB).resolve() == engine.stub


def test_a_stub_begins_in_an_empty_folder_and_finds_the_shell_of_the_user_as_it_was(
    engine: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", "/t é")
    monkeypatch.setenv("BASH_ENV", "/it's mine")
    started = engine.start_environment(folder)
    # As Triton does it.
    script = "exec /bin/sh -c 'pwd; echo \"$BASH_ENV\"; ls -A'"
    done = subprocess.run(["bash", "-c", script], env=started, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines() == [str(folder / "empty"), "/it's mine"]
    assert started[STANDING] == os.getcwd()
    assert started["TMPDIR"] == str(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", "/plain")
    assert temporary_folder(folder) == "/plain"


def test_repositories_among_arguments_for_triton_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    extra = ("--model-repository=more", "--model-store", "others", "--log-file=log", "--model-repository=s3://bucket")
    assert ServerOptions(extra=extra).arguments()[-5:] == [
        f"--model-repository={tmp_path}/more",
        "--model-store",
        f"{tmp_path}/others",
        "--log-file=log",
        "--model-repository=s3://bucket",
    ]
