"""`tritone repo`, and other commands that are given storage: what they print, and how they fail."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from object_server import ObjectServer
from tritone.cli.main import app
from tritone.cli.shared.transfer_bar import TransferBar
from tritone.installing import pip_install

ADDRESS = "s3://bucket/models"


def run(*arguments: str | Path, code: int = 0) -> tuple[list[str], str]:
    """The lines on stdout, and stderr, of a command that ends with `code`."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.stderr
    return result.stdout.splitlines(), result.stderr


def test_a_repository_is_built_into_storage_pulled_changed_and_rolled_back(
    objects: ObjectServer, toy_bundle: Path, tmp_path: Path
):
    here = tmp_path / "here"
    out, told = run("build", toy_bundle, "--output", ADDRESS, "--mode", "offline")
    assert out == [f"toy\toffline\t{ADDRESS}/toy"]
    assert f"toy: version 1, new\nServe it with: tritone serve {ADDRESS}" in told
    assert run("repo", "pull", ADDRESS, here)[0] == ["toy\t1\tnew"]
    assert run("repo", "pull", ADDRESS, here)[0] == ["toy\t1\tunchanged"]
    assert run("repo", "diff", here, ADDRESS)[0] == []
    code = here / "toy" / "1" / "model.py"
    code.chmod(0o644)
    code.write_text(code.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    out, told = run("repo", "diff", here, ADDRESS, code=1)
    assert out == ["! toy/*/model.py"]
    assert told == "1 files differ, 0 on the left alone, 0 on the right alone\n"
    assert run("repo", "push", here, ADDRESS)[0] == ["toy\t2\tupdated"]
    rows = [line.split() for line in run("repo", "ls", ADDRESS)[0]]
    assert [(row[0], row[1], "served" in row) for row in rows[1:]] == [("toy", "1", False), ("toy", "2", True)]
    assert run("repo", "rollback", ADDRESS, "toy")[0] == ["toy\t1\tserved"]
    out, told = run("repo", "gc", ADDRESS, "--keep", "0")
    assert [line.split("\t")[:2] for line in out] == [["toy", "2"]]
    assert told == "removed 1 versions\n"
    _, told = run("repo", "rollback", ADDRESS, "toy", code=1)
    assert "model toy has no complete version before 1" in told


def test_a_bundle_is_pushed_listed_and_pulled(objects: ObjectServer, toy_bundle: Path, tmp_path: Path):
    assert run("repo", "push", toy_bundle, "s3://bucket/toy")[0] == ["s3://bucket/toy\tpushed"]
    assert run("repo", "push", toy_bundle, "s3://bucket/toy")[0] == ["s3://bucket/toy\tunchanged"]
    assert "manifest.json" in [line.split()[0] for line in run("repo", "ls", "s3://bucket/toy")[0]]
    assert run("repo", "pull", "s3://bucket/toy", tmp_path / "copy")[0] == [str(tmp_path / "copy")]
    assert json.loads((tmp_path / "copy" / "manifest.json").read_text(encoding="utf-8"))["name"] == "toy"
    assert run("repo", "diff", tmp_path / "copy", "s3://bucket/toy")[0] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ls", "s3://bucket/absent"], "s3://bucket/absent: there is nothing"),
        (["push", "absent", ADDRESS], "there is no folder absent"),
        (["push", "demo", "hf://anna/asr"], "there is no folder demo"),
        (["gc", "hf://anna/asr"], "the hub is only read here; its own tool writes: hf upload anna/asr FOLDER"),
        (["pull", ADDRESS, "copy"], "there is no model. `tritone repo push` puts some there"),
        (["ls", "s3://"], "names no bucket; write s3://BUCKET/FOLDER"),
    ],
)
def test_what_cannot_be_done_is_said(objects: ObjectServer, arguments: list[str], complaint: str, tmp_path: Path):
    assert complaint in run("repo", *arguments, code=1)[1]


def test_a_link_to_storage_and_an_engine_in_it_are_refused(objects: ObjectServer, toy_bundle: Path, tmp_path: Path):
    run("repo", "push", toy_bundle, "s3://bucket/toy")
    for arguments, complaint in (
        (["build", "s3://bucket/toy", "--link", "--output", tmp_path / "r"], "Build without --link"),
        (["engine", "s3://bucket/toy"], "give --output, a folder here"),
    ):
        assert complaint in " ".join(run(*arguments, code=2)[1].replace("│", " ").split())


def test_a_missing_package_is_named(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch):
    for module, address in (("obstore", "s3://bucket/a"), ("huggingface_hub", "hf://anna/asr")):
        for name in [name for name in sys.modules if name.startswith("tritone.storage.")]:
            if name.endswith(("objects.store", "hf.store")):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, module, None)
        _, told = run("repo", "ls", address, code=1)
        assert told == f"error: {address}: storage needs the package {module}: {pip_install('remote')}\n"


def test_a_large_transfer_is_a_line_in_a_log(capsys: pytest.CaptureFixture[str]):
    bar = TransferBar()
    for size in (10, 12_000_000):
        bar.begin("s3://bucket/a", 3, size)
        bar.advance(size)
        bar.end()
    assert capsys.readouterr().err == "s3://bucket/a: 3 files, 12.0 MB ...\n"


def test_bundles_and_repositories_in_storage_are_inspected_and_described(
    objects: ObjectServer, toy_bundle: Path, tmp_path: Path
):
    run("repo", "push", toy_bundle, "s3://bucket/toy")
    run("build", toy_bundle, "--output", ADDRESS, "--mode", "offline")
    assert "toy" in "\n".join(run("inspect", "s3://bucket/toy")[0])
    assert "toy" in "\n".join(run("inspect", ADDRESS)[0])
    run("api", ADDRESS, "--output", tmp_path / "api")
    assert list((tmp_path / "api").iterdir())
