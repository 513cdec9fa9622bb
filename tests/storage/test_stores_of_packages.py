"""Stores of other packages: a toy one over folders of this machine, and that ours do not wait for anybody's."""

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tritone import pages
from tritone.bundle.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import BundleError, InputError, MissingDependencyError
from tritone.paths import not_supported, stored
from tritone.storage import Address, fetch, open_store, parse
from tritone.storage.known import schemes
from tritone.storage.scheme import Scheme

PAGE = """
from tritone.storage.scheme import Scheme
SCHEME = Scheme(
    name="toy", package="toy_storage", store="opened:ToyStore", place="box", files=True, single=True, interface=1
)
"""
STORE = """
import os
from pathlib import Path
from tritone.storage.folder_store import FolderStore

class ToyStore(FolderStore):
    def __init__(self, address):
        super().__init__(Path(os.environ["TOY_BOXES"], address.place, address.path))
        self.address = address

    @property
    def title(self):
        return str(self.address)
"""


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The package's folder, and `boxes` beside it for what it stores."""
    package = tmp_path / "packages" / "toy_storage"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("scheme", PAGE), ("opened", STORE)):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("TOY_BOXES", str(tmp_path / "boxes"))
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    point = EntryPoint("toy", "toy_storage.scheme:SCHEME", Scheme.GROUP)
    monkeypatch.setattr(pages, "entry_points", lambda group: [point] if group == Scheme.GROUP else [])
    schemes.cache_clear()
    yield package
    schemes.cache_clear()
    for name in [name for name in sys.modules if name.startswith("toy_storage")]:
        del sys.modules[name]


def test_a_store_of_a_package_is_used_like_ours_until_it_is_removed(
    toys: Path, toy_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = tmp_path / "boxes" / "place" / "folder"
    box.mkdir(parents=True)
    for path in toy_bundle.iterdir():
        (box / path.name).write_bytes(path.read_bytes())
    assert parse(Path("toy://place/folder")) == Address("toy", "place", "folder")
    assert {each.name for each in open_store("toy://place/folder").entries()} == {path.name for path in box.iterdir()}
    assert (fetch("toy://place/folder") / "manifest.json").read_bytes() == (box / "manifest.json").read_bytes()
    assert Bundle.open("toy://place/folder").manifest == Bundle.open(toy_bundle).manifest
    assert stored("toy:/place/a.wav") == "toy://place/a.wav"
    assert "s3://, gs://, az://, hf:// and toy://" in not_supported("ftp://host/a", "ftp")
    with pytest.raises(InputError, match="names no box; write toy://BOX/FOLDER"):
        parse("toy://")
    shown = CliRunner().invoke(app, ["inspect", "toy://place/folder"])
    assert shown.exit_code == 0, shown.output
    assert "toy" in shown.stdout

    monkeypatch.setattr(pages, "entry_points", lambda group: [])
    schemes.cache_clear()
    assert parse("toy://place/folder") is None
    with pytest.raises(
        BundleError, match=r"the scheme toy:// is not supported here\. .* s3://, gs://, az:// and hf://;"
    ):
        Bundle.open("toy://place/folder")
    assert CliRunner().invoke(app, ["inspect", "toy://place/folder"]).exit_code == 2
    with pytest.raises(InputError, match="the scheme toy:// is not supported here"):
        open_store(Address("toy", "place", "folder"))


def test_a_page_that_cannot_be_loaded_is_named_and_all_others_are_there(
    toys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (toys / "scheme.py").write_text("import a_module_that_is_not_there\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert set(schemes()) == {"s3", "gs", "az", "hf"}
    assert "the scheme 'toy' of the package toy_storage.scheme cannot be loaded" in caplog.text


def test_a_package_that_a_store_needs_is_named(toys: Path) -> None:
    (toys / "opened.py").write_text("import a_module_that_is_not_there\n", encoding="utf-8")
    with pytest.raises(
        MissingDependencyError, match="needs the package a_module_that_is_not_there: install what toy_s"
    ):
        open_store("toy://place/folder")


def test_paths_and_addresses_of_ours_do_not_wait_for_packages(toys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def looks(group: str) -> list[EntryPoint]:
        raise AssertionError(f"packages are looked for {group}")

    monkeypatch.setattr(pages, "entry_points", looks)
    assert parse("models/asr") is None
    assert parse("demo-asr") is None
    assert stored("a.wav") is None
    for text in ("s3://bucket/a", "GS://bucket/a", "az://container/a", "hf://owner/name"):
        assert parse(text) is not None
    assert stored("hf://owner/name") is None
    with pytest.raises(AssertionError, match=r"tritone\.stores"):
        parse("toy://place/folder")
