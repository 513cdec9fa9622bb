"""Compiled code goes with a bundle or a repository to machines of the same kind, checked, and only where trusted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tritone import paths
from tritone.cli.main import app
from tritone.errors import InputError, OperatorError, StorageError
from tritone.repository import compiled as stored
from tritone.repository.compiled import INDEX, pull_compiled, push_compiled, store_beside
from tritone.runtime.cuda.kernels import stamp_of
from tritone.runtime.files.program import read_program
from tritone.runtime.graph import Bucket
from tritone.runtime.kept import kernels_of, stamp_digest
from tritone.runtime.torch import kept
from tritone.runtime.torch.compiled import CompiledStore, input_shapes
from tritone.storage.folder_store import FolderStore

CPU = torch.device("cpu")


def keep_one(bundle: Path) -> None:
    """Put something into the cache that stands for one compiled size."""
    program = read_program(bundle / "encoder.pt2", CPU)
    store = CompiledStore(program, CPU)
    store.prepare()
    (store.folder / "made").write_text("code", encoding="utf-8")
    store.keep(("num_frames",), input_shapes(program.inputs, Bucket(2, 9000)), store.folder / "made", 1.5)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_bundle_of_both: Path) -> FolderStore:
    """A store that has a bundle and what was compiled of it on the machine of the cache `a`; this is that of `b`."""
    monkeypatch.setenv(paths.CACHE, str(tmp_path / "a"))
    keep_one(toy_bundle_of_both)
    store: Any = store_beside(f"{tmp_path / 'store'}/")
    assert store.folder == tmp_path / "store.compiled"
    moved = push_compiled(toy_bundle_of_both, store, "cpu")
    assert (moved.sent, moved.files) == (2, 2)
    assert push_compiled(toy_bundle_of_both, store, "cpu").sent == 0
    monkeypatch.setenv(paths.CACHE, str(tmp_path / "b"))
    return store


def calls(bundle: Path) -> list[tuple[int, str]]:
    found = CompiledStore(read_program(bundle / "encoder.pt2", CPU), CPU).calls()
    return [(call.bucket.samples, file.read_text(encoding="utf-8")) for call, file in found]


def test_what_was_compiled_elsewhere_is_used_here(there: FolderStore, toy_bundle_of_both: Path, tmp_path: Path) -> None:
    assert calls(toy_bundle_of_both) == []
    moved = pull_compiled(there, "cpu", trust=True)
    assert (moved.sent, moved.files) == (2, 2)
    assert calls(toy_bundle_of_both) == [(9000, "code")]
    assert pull_compiled(there, "cpu", trust=True).sent == 0
    written = [path for path in (tmp_path / "b" / "compiled").rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in [tmp_path / "b" / "compiled", *written]} == {0}


def test_without_trust_nothing_is_pulled(there: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"runs with your rights.*--trust"):
        pull_compiled(there, "cpu", trust=False)
    assert not (tmp_path / "b").exists()


def test_what_is_damaged_or_missing_is_not_put_into_the_cache(there: FolderStore, toy_bundle_of_both: Path) -> None:
    (code,) = there.folder.rglob("**/*.pt2")
    code.write_text("coda", encoding="utf-8")
    with pytest.raises(StorageError, match="is damaged"):
        pull_compiled(there, "cpu", trust=True)
    code.unlink()
    with pytest.raises(StorageError, match="is missing or of another size"):
        pull_compiled(there, "cpu", trust=True)
    assert calls(toy_bundle_of_both) == []


@pytest.mark.parametrize("name", ["../x.pt2", "kernels/../../x", "/etc/x", "kernels/a/b/c", "kernels/.x", "x.pt2", ""])
def test_a_list_that_names_other_places_is_refused(there: FolderStore, name: str, tmp_path: Path) -> None:
    (index,) = there.folder.rglob(f"**/{INDEX}")
    content = json.loads(index.read_text(encoding="utf-8"))
    content["files"][name] = next(iter(content["files"].values()))
    index.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(StorageError, match="which is no compiled file"):
        pull_compiled(there, "cpu", trust=True)
    assert not (tmp_path / "b").exists()


def test_another_kind_of_machine_is_told_what_differs(there: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    own = stamp_of(CPU)
    monkeypatch.setattr(kept, "stamp_of", lambda device: own | {"torch": "9.9"})
    with pytest.raises(StorageError, match=rf"torch {torch.__version__.replace('+', '.')} there, 9\.9 here"):
        pull_compiled(there, "cpu", trust=True)


def test_nothing_is_pulled_to_a_cache_that_others_can_write_to(there: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "b" / "compiled").mkdir(parents=True)
    (tmp_path / "b" / "compiled").chmod(0o777)
    with pytest.raises(OperatorError, match="others can write to"):
        pull_compiled(there, "cpu", trust=True)


def test_a_folder_of_which_nothing_is_compiled_cannot_be_pushed_so(
    there: FolderStore, toy_bundle_of_both: Path
) -> None:
    with pytest.raises(OperatorError, match="is compiled for cpu on this machine"):
        push_compiled(toy_bundle_of_both, there, "cpu")  # of this cache


def test_kernels_find_their_files_where_they_were_pulled_to(there: FolderStore, tmp_path: Path) -> None:
    """Lists of Triton's compiler name files by their whole paths, which are others here."""
    stamp, folder = stamp_of(CPU), tmp_path / "pushed"
    names = {
        "k.json": "{}",
        "k.cubin": "code",
        "__grp__k.json": json.dumps({"child_paths": {"k.cubin": "/else/k.cubin"}}),
    }
    where = stamp_digest(stamp)
    (index,) = there.folder.rglob(f"**/{INDEX}")
    content = json.loads(index.read_text(encoding="utf-8"))
    folder.mkdir()
    for name, text in names.items():
        (folder / name).write_text(text, encoding="utf-8")
        there.write(f"{where}/kernels/KEY/{name}", text.encode())
        facts = {"size": len(text), "sha256": stored.sha256_of(folder / name)}
        content["files"][f"kernels/KEY/{name}"] = facts
    index.write_text(json.dumps(content), encoding="utf-8")
    pull_compiled(there, "cpu", trust=True)
    here = kernels_of(tmp_path / "b" / "compiled", stamp) / "KEY"
    found = json.loads((here / "__grp__k.json").read_text(encoding="utf-8"))
    assert found == {"child_paths": {"k.cubin": str(here / "k.cubin")}}
    assert (here / "k.cubin").read_text(encoding="utf-8") == "code"


def test_it_lies_beside_what_it_is_of_and_not_within_where_triton_reads() -> None:
    assert store_beside("hf://org/name").title == "hf://org/name/.compiled"
    with pytest.raises(InputError, match="s3://models is a whole bucket"):
        store_beside("s3://models")


def test_the_commands_push_and_pull_it(
    tmp_path: Path, toy_bundle_of_both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.CACHE, str(tmp_path / "a"))
    keep_one(toy_bundle_of_both)
    storage = str(tmp_path / "store")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["repo", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    assert "2 of 2 files pushed" in run("push", str(toy_bundle_of_both), storage, "--compiled", "cpu")
    monkeypatch.setenv(paths.CACHE, str(tmp_path / "b"))
    refused = CliRunner().invoke(app, ["repo", "pull", storage, str(tmp_path / "copy"), "--compiled", "cpu"])
    assert refused.exit_code != 0
    assert not (tmp_path / "copy").exists()
