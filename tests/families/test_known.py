"""Families of other packages: what their pages may do wrong, and that all else works then."""

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tritone import pages
from tritone.families import known
from tritone.families.family import Checkpoint, Family, Seen
from tritone.families.known import families, recognise


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Install packages: names of modules with their text, each with an entry point for its `FAMILY`."""
    monkeypatch.syspath_prepend(tmp_path)
    points: list[EntryPoint] = []

    def add(**modules: str) -> None:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, name, raising=False)
            points.append(EntryPoint(name, f"{name}:FAMILY", Family.GROUP))
        families.cache_clear()

    monkeypatch.setattr(pages, "entry_points", lambda group: points if group == Family.GROUP else [])
    families.cache_clear()
    yield add
    families.cache_clear()


def page(name: str = "tidy", recognise: str = "lambda seen: None", interface: int = Family.INTERFACE) -> str:
    return (
        "from tritone.families.family import Checkpoint, Family\n"
        f"FAMILY = Family(name={name!r}, package='pages', what='Export it.', options='options:Options',\n"
        f"    export='export:export', recognise={recognise}, interface={interface})\n"
    )


def test_a_family_of_a_package_is_known_beside_ours(install: Callable[..., None]) -> None:
    ours = set(families())
    install(tidy=page())
    assert set(families()) == ours | {"tidy"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import a_module_that_is_not_there\n", "'tidy' of the package tidy cannot be loaded .*a_module_that_is"),
        ("FAMILY = 3\n", "cannot be loaded .* must hold a Family, or a tuple of some, got int"),
        (
            "from tritone.families.family import Family\nFAMILY = Family(name='x', shape='y')\n",
            "cannot be loaded .*shape",
        ),
        (
            page(interface=Family.INTERFACE + 1),
            f"was made for interface {Family.INTERFACE + 1} .* this Tritone has {Family.INTERFACE}",
        ),
        (page(interface=0), "was made for interface 0"),
        (page(name="wenet"), "the package tidy has a family 'wenet', a name that Tritone has"),
    ],
)
def test_a_page_that_cannot_be_used_is_named_and_all_others_are_there(
    install: Callable[..., None], caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    ours = dict(families())
    install(tidy=text)
    with caplog.at_level(logging.WARNING):
        assert dict(families()) == ours
    assert re.search(said, caplog.text)


def test_of_two_packages_with_one_name_the_first_is_known_and_both_are_named(
    install: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    install(second=page(), first=page())
    assert "tidy" in families()
    assert "the package second has a family 'tidy', a name that first has" in caplog.text


def test_a_page_that_imports_a_heavy_package_is_named_and_used(
    install: Callable[..., None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "heavy_for_the_test.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(pages, "HEAVY", ("heavy_for_the_test",))
    install(tidy="import heavy_for_the_test\n" + page())
    assert "tidy" in families()
    assert "the package tidy imports heavy_for_the_test with its page tidy:FAMILY" in caplog.text


def test_recognition_that_raises_harms_nobody(
    install: Callable[..., None], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    install(tidy=page(recognise="lambda seen: 1 / 0"))
    (tmp_path / "a-graph.onnx").write_bytes(b"")
    assert recognise(tmp_path / "a-graph.onnx").family == "onnx"
    assert "'tidy', failed on" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_recognition_that_never_ends_is_not_waited_for(
    install: Callable[..., None], caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def forever(seen: Seen) -> Checkpoint | None:
        released.wait()
        return None

    install(tidy=page())
    stuck: Any = Family(
        name="tidy",
        package="pages",
        what="Export it.",
        options="options:Options",
        export="export:export",
        recognise=forever,
        interface=Family.INTERFACE,
    )
    monkeypatch.setattr(known, "families", lambda: {**families(), "tidy": stuck})
    monkeypatch.setattr(known, "LOOK_S", 0.05)
    (tmp_path / "a-graph.onnx").write_bytes(b"")
    try:
        assert recognise(tmp_path / "a-graph.onnx").family == "onnx"
    finally:
        released.set()
    assert "has not said in 0.05 s what" in caplog.text
