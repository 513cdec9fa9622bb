"""The line of pip that adds extras, for each place that Tritone can come from."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from tritone import installing
from tritone.installing import pip_install


def install_from(monkeypatch: pytest.MonkeyPatch, record: object) -> None:
    text = None if record is None else json.dumps(record)
    monkeypatch.setattr(installing, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))


def test_a_checkout_is_named_by_its_path_and_by_a_dot_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    install_from(monkeypatch, {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    assert pip_install("gateway", "traces") == f"pip install '{checkout}[gateway,traces]'"
    monkeypatch.chdir(checkout)
    assert pip_install("gateway") == "pip install '.[gateway]'"


def test_who_is_in_a_folder_that_was_deleted_gets_the_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "gone").mkdir()
    install_from(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert pip_install("torch") == f"pip install '{tmp_path}[torch]'"


def test_a_wheel_is_named_by_its_file_as_far_as_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "tritone-0.2.0-py3-none-any.whl"
    install_from(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert pip_install("torch") == f"pip install '{wheel.name}[torch]'"
    wheel.touch()
    assert pip_install("torch") == f"pip install '{wheel}[torch]'"


def test_an_index_and_plain_sources_are_named_by_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    install_from(monkeypatch, None)
    assert pip_install("ray") == "pip install 'tritone[ray]'"

    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installing, "distribution", absent)
    assert pip_install("ray") == "pip install 'tritone[ray]'"
